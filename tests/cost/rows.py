"""Everything that reads a peer's bytes, or brings a peer's text somewhere, with its worst input.

A row makes the work for ``n`` bytes. ``most`` is the bound of a reader that refuses more: it is
measured at a quarter of it and at all of it, as often as it takes. Without one, n grows.
"""

from __future__ import annotations

import json
import logging
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h11
from prometheus_client import CollectorRegistry, Counter, generate_latest

from isthmus import logs
from isthmus.dial import rules_tokens as tokens
from isthmus.dial import settings_connectivity as connectivity
from isthmus.dial import settings_entitlements as entitlements
from isthmus.dial import settings_policy as policy
from isthmus.dial.frontends.statuses import explain
from isthmus.errors import ConfigError, IsthmusError, ProtocolError
from isthmus.frame.audit import model as audit
from isthmus.frame.dashboard import delta
from isthmus.frame.model.merge import Merge
from isthmus.frame.model.snapshot import ServerView, Totals, TunnelState, TunnelView, json_chunks
from isthmus.frame.workers import exposition
from isthmus.kube.kubeconfig import read_config
from isthmus.links.go_errors import detail_in, failure_in
from isthmus.links.talk import features_in, features_said, hello_fault
from isthmus.net import certificates, revocation
from isthmus.net.contexts import peer_identity
from isthmus.net.dns_messages import DnsError, question, read_answer
from isthmus.programs.apiserver_proxy import settings_haproxy_cfg as haproxy_cfg
from isthmus.programs.https_proxy.frontend import HttpClient
from isthmus.programs.sni_router import settings_routes as sni_routes
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.options import blanked
from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.text.patterns import Pattern
from isthmus.text.text_limits import plain
from isthmus.tools.doctor.bundle_secrets import Scrubber
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import NOBODY
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.message_reader import PacketReader
from isthmus.tunnel.payload import PayloadStream
from isthmus.tunnel.session import Session
from isthmus.values import AgentId, HostPort, Identity, ServerId, TunnelId
from isthmus.wire import grpc, hpack, http2, packet, payload, proxy_protocol, socks5
from isthmus.wire.client_hello import hello_in
from isthmus.wire.connect_answer import ConnectAsking
from isthmus.wire.http_connect import BadRequest, HeadReader, take_connect
from isthmus.wire.http_forward import read_request
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, Hello
from isthmus.wire.request_metadata import is_tracestate, metadata_in, parse_traceparent
from isthmus.wire.yamux import FrameType, Header

Work = Callable[[], object]
KIB = 1024
TARGET = HostPort("10.0.0.1", 443)


class Row(NamedTuple):
    """One reader or one way of a text."""

    name: str
    make: Callable[[int], Work]
    most: int | None = None


def _quietly(work: Work, *errors: type[Exception]) -> Work:
    def run() -> None:
        with suppress(*(errors or (IsthmusError, ValueError))):
            work()

    return run


def _times(unit: str | bytes, n: int) -> Any:
    return unit * (n // len(unit) + 1)


# HTTP/2 and gRPC.


def _block(unit: bytes) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        block = _times(unit, n)[:n]

        def read() -> None:
            with suppress(hpack.BlockError):  # not by HeaderReader, which knows short ones again
                hpack.Decoder(64 * KIB).decode(block)

        return read

    return make


def _one_value(flag: int, byte: bytes) -> Callable[[int], Work]:
    """A block of one long value, plain or in Huffman's code."""

    def make(n: int) -> Work:
        size = n - 127
        length = bytes((flag | 0x7F, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
        block = b"\x00\x01a" + length + byte * n
        return _block(block)(len(block))

    return make


def _frames(unit: bytes, *, streams: bool = False) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        raw = _times(unit, n)

        def read() -> None:
            carrier = MemoryCarrier(room_bytes=None)
            connection = carrier.session = Http2Connection(
                carrier,
                client=False,
                clock=ManualClock(),
                on_request=lambda stream, headers: NOBODY,
                limits=Http2Limits(),
            )
            connection.receive(memoryview(http2.PREFACE + http2.settings()))
            with suppress(ProtocolError):
                for at in range(0, len(raw), 16 * KIB):
                    connection.receive(memoryview(raw[at : at + 16 * KIB]))
                    connection.flush()
                    carrier.take()

        return read

    return make


def _requests(n: int) -> Work:
    """Calls of unknown paths, each answered with a sentence that quotes it."""
    head: http2.Headers = ((b":method", b"POST"), (b":scheme", b"http"))

    def answer() -> None:
        for number in range(n // 500):
            path = b"\xff" * 450 + b"%d" % number
            headers = (*head, (b":path", path), (b"content-type", b"application/grpc"))
            http2.request_fault(headers)
            said = grpc.Refusal(
                http_status=200,
                status=grpc.Status.UNIMPLEMENTED,
                message=f"unknown method {plain(path)}",
            )
            http2.encode_headers(tuple(said.to_headers()))

    return answer


def _status(n: int) -> Work:
    text = "\N{REPLACEMENT CHARACTER}" * n
    return lambda: http2.encode_headers(tuple(grpc.status_headers(grpc.Status.INTERNAL, text)))


def _encoded(n: int) -> Work:
    """Whatever reaches the encoder itself."""
    value = b"%EF%BF%BD" * (n // 9)
    return lambda: http2.encode_headers(((b"grpc-message", value),))


def _read_status(n: int) -> Work:
    raw = b"%EF" * (n // 3)
    return lambda: grpc.read_status([(b"grpc-status", b"2"), (b"grpc-message", raw)])


# Links.


def _hello(n: int) -> Work:
    hello = Hello(agent_id="a", identifiers="x" * (n // 2), version="eyJ-" * (n // 8 - 100))
    raw = to_bytes(Control(hello=hello))

    def read() -> None:
        buffer = bytearray()
        message = None
        for at in range(0, len(raw), 256):
            buffer += raw[at : at + 256]
            message = take_message(buffer, Control) or message
        assert message is not None
        said = message.hello
        hello_fault(
            agent_id=said.agent_id,
            identifiers=said.identifiers,
            labels=dict(said.labels),
            network=said.network,
            token=said.token,
        )
        features_said(said.features)

    return read


def _labels(n: int) -> Work:
    raw = to_bytes(Control(hello=Hello(labels={f"l{i}": "" for i in range(n // 12)})))

    def read() -> None:
        message = take_message(bytearray(raw), Control)
        assert message is not None
        labels = dict(message.hello.labels)
        hello_fault(agent_id="a", identifiers="", labels=labels, network="", token="")

    return read


def _dial(n: int) -> Work:
    raw = to_bytes(Dial(host="a", requester_groups=["g"] * (n // 3)))
    return _quietly(lambda: take_message(bytearray(raw), Dial))


def _yamux(kind: FrameType, length: int) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        frame = Header(kind, 0, 0 if kind is FrameType.PING else 1, length).to_bytes()
        raw = _times(frame, n)

        def read() -> None:
            carrier = MemoryCarrier(room_bytes=None)
            ends: list[MemoryEnd] = []

            def accept(stream: Any) -> None:
                ends.append(MemoryEnd())
                join(stream, ends[-1])

            session = carrier.session = Session(
                carrier, client=False, clock=ManualClock(), on_stream=accept
            )
            with suppress(ProtocolError):
                for at in range(0, len(raw), 16 * KIB):
                    session.receive(memoryview(raw[at : at + 16 * KIB]))
                    session.flush()
                    carrier.take()

        return read

    return make


class _Sink:
    """Counts what a reader of packets gives."""

    def __init__(self) -> None:
        self.count = 0

    def got_payload(self, connect_id: int, data: object) -> None:
        """Count."""
        self.count += 1

    def more_payload(self, data: object) -> None:
        """Count."""
        self.count += 1

    def got_message(self, message: memoryview | bytes) -> None:
        """Read and count."""
        packet.parse(message)
        self.count += 1


def _packets(raw: bytes, piece: int) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        many = _times(raw, n)

        def read() -> None:
            reader, sink = PacketReader(), _Sink()
            for at in range(0, len(many), piece):
                reader.feed(memoryview(many[at : at + piece]), sink)

        return read

    return make


def _one_packet(piece: int) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        raw = packet.dial_response(1, error="x" * (n - 64))

        def read() -> None:
            reader, sink = PacketReader(), _Sink()
            for at in range(0, len(raw), piece):
                reader.feed(memoryview(raw[at : at + piece]), sink)
            assert sink.count == 1

        return read

    return make


def _payloads(n: int) -> Work:
    raw = _times(payload.payload_head(1) + b"x", n)

    def read() -> None:
        end = PayloadStream()
        for at in range(0, len(raw), 1000):
            end.reader.feed(memoryview(raw[at : at + 1000]), end)
            end.pieces.clear()

    return read


def _go_error(n: int) -> Work:
    text = _times("dial tcp 10.0.0.1:443: denie", n)

    def read() -> None:
        failure = failure_in(text, TARGET)
        explain(failure, TARGET, detail_in(text, TARGET))

    return read


# HTTP/1, TLS, SOCKS, PROXY, DNS.


def _head(line: bytes) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        raw = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" + _times(line, n)[:n] + b"\r\n\r\n"
        return _quietly(lambda: take_connect(bytearray(raw)), BadRequest)

    return make


def _head_in_pieces(line: bytes) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        raw = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" + _times(line, n)[:n]

        def read() -> None:
            buffer, reader = bytearray(), HeadReader()
            for at in range(0, len(raw), 4):
                buffer += raw[at : at + 4]
                reader.take(buffer)

        return _quietly(read, BadRequest)

    return make


def _forward(n: int) -> Work:
    raw = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n" + _times(b"Connection: x,,,,,,\r\n", n) + b"\r\n"

    def read() -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=128 * KIB)
        connection.receive_data(raw)
        event = connection.next_event()
        assert isinstance(event, h11.Request)
        read_request(event)

    return read


class _Owner:
    """A sidecar, as far as a client asks it that has not said yet what it wants."""

    draining = False

    def __init__(self) -> None:
        self.poller = SimpleNamespace(register=lambda *_: None, close=lambda sock: sock.close())

    def unserved(self, client: object, why: object, detail: str) -> None:
        """Let it go."""

    def say_goodbye(self, end: Any, answer: bytes = b"") -> None:
        """Let it go."""
        end.abort(Ending.CANCELLED)


def _to_http_proxy(start: bytes, line: bytes, piece: int) -> Callable[[int], Work]:
    """A head that comes in pieces, to the frontend itself."""

    def make(n: int) -> Work:
        raw = start + _times(line, n)[:n]

        def read() -> None:
            ours, theirs = socket.socketpair()
            with theirs, ours:
                client = HttpClient(_Owner(), ours)  # type: ignore[arg-type]  # as far as it goes
                for at in range(0, len(raw), piece):
                    client.write(raw[at : at + piece])

        return read

    return make


def _answer(n: int) -> Work:
    raw = b"HTTP/1.1 502 Bad\r\n" + _times(b"a: b\r\n", n - 100) + b"\r\n" + b"\xff " * 100

    def read() -> None:
        asking = ConnectAsking(TARGET)
        for at in range(0, len(raw), 64):
            asking.receive(raw[at : at + 64])

    return _quietly(read, ProtocolError)


def _client_hello(n: int) -> Work:
    extensions = b""
    names = b"".join(bytes((1,)) + b"x" for _ in range(14))
    alpn = len(names).to_bytes(2, "big") + names
    extensions += b"\x00\x10" + len(alpn).to_bytes(2, "big") + alpn
    while len(extensions) < n - 1200:
        extensions += b"\xfa\xfa" + (900).to_bytes(2, "big") + bytes(900)
    body = bytes(34) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    record = b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message
    return lambda: hello_in(record)


def _proxy(n: int) -> Work:
    block = bytes(12) + _times(b"\x04\x00\x00", n - 40)
    raw = proxy_protocol.SIGNATURE + b"\x21\x11" + len(block).to_bytes(2, "big") + block
    return _quietly(lambda: proxy_protocol.take_proxy_header(bytearray(raw)), ProtocolError)


def _login(n: int) -> Work:
    raw = bytes((1, n // 2)) + b"u" * (n // 2) + bytes((n // 2 - 3,)) + b"p" * (n // 2 - 3)

    def read() -> None:
        buffer = bytearray()
        for byte in raw:
            buffer.append(byte)
            socks5.take_login(buffer)

    return read


def _dns(n: int) -> Work:
    asked = question("kubelet.example.test", "A")
    record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x00\x00\x01"
    count = (n - len(asked.wire)) // len(record)
    raw = asked.wire[:2] + b"\x81\x80\x00\x01" + count.to_bytes(2, "big") + b"\0\0\0\0"
    raw += asked.wire[12:]
    records = b"".join(record[:-2] + number.to_bytes(2, "big") for number in range(count))
    return _quietly(lambda: read_answer(asked, raw + records), DnsError)


# Metadata.


def _asking(n: int) -> Work:
    headers = [(b"isthmus-user", b"%41" * (n // 9)), (b"isthmus-object", b"a" * (n // 3))]
    headers += [(b"isthmus-group", b"g%20" * (n // 400))] * 32
    return lambda: metadata_in(headers)


def _trace(n: int) -> Work:
    state = _times("a=b,", n)[:n]
    parent = f"01-{'1' * 32}-{'2' * 16}-00-" + "x" * n

    def read() -> None:
        is_tracestate(state)
        parse_traceparent(parent)

    return read


def _identifiers(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)[:n]

        def read() -> None:
            with suppress(ValueError):
                Identifiers.read_claim(text)

        return read

    return make


def _token(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)[:n]

        def read() -> None:
            tokens.expiry(text)
            with suppress(ValueError):
                tokens.take_token(text, now=datetime.now(UTC))

        return read

    return make


# Names.


def _host(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)[:n] + "!:1"
        return _quietly(lambda: HostPort.parse(text))

    return make


def _pattern_of_names(n: int) -> Work:
    pattern, text = Pattern("a*ab*ab*b", fold=True), _times("aab", n)[:n] + "."
    return lambda: pattern.covers(text, {})


def _identity(n: int) -> Work:
    """Of a certificate with as many names as fit."""
    names = tuple(("DNS", f"n{number}.example") for number in range(n // 16))
    groups = tuple((("organizationName", "g" * 100),) for _ in range(n // 100))
    said = {"subject": ((("commonName", "c"),), *groups), "subjectAltName": names}
    peer: Any = SimpleNamespace(getpeercert=lambda: said)
    return lambda: peer_identity(peer)


# Logs, metrics, snapshots, pages, audit.

LOGGED = {
    "tokens begun": "eyJ-",
    "tokens half": "eyJaaaaaaaa.",
    "tokens whole": "eyJaaaaaaaa.bbbbbbbb.c ",
    "bearer": "bearer ",
    "bearer blanks": "bearer" + " " * 5000,
    "authorization": "authorization:\n",
    "keys begun": "-----BEGIN A",
    "keys": "-----BEGIN PRIVATE KEY-----",
    "key ends": "-----BEGIN PRIVATE KEY----------END A",
    "controls": "\x00\u202e\\",
}


def _escape(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)
        return lambda: logs.escape(text)

    return make


def _pattern(unit: str) -> Callable[[int], Work]:
    """The expression itself, without the cut before it."""

    def make(n: int) -> Work:
        text = _times(unit, n)
        return lambda: logs._SECRET_VALUE.sub("", text)

    return make


def _line(formatter: logging.Formatter) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times("eyJ-\x00", n)

        def write() -> None:
            record = logging.LogRecord("isthmus.x", 20, "", 0, text, (), None)
            record.fields = {"agent": text, "reason": text}
            formatter.format(record)

        return write

    return make


def _once(n: int) -> Work:
    """A flood of lines with ever new keys."""

    def write() -> None:
        once = logs.OncePer(lambda: 0.0)
        for number in range(n // 40):
            once.once_per(("refused", "10.0.0.1", f"{number:020}"), 30.0)

    return write


def _metric(n: int) -> Work:
    registry = CollectorRegistry()
    counter = Counter("dials", "x", ["who"], registry=registry)
    for number in range(n // 200):
        counter.labels('\\"\n' * 60 + str(number)).inc()
    return lambda: generate_latest(registry)


def _merged(n: int) -> Work:
    line = b'isthmus_x_total{who="%b%d"} 1\n'
    text = b"# TYPE isthmus_x_total counter\n" + b"".join(
        line % (b"\\\\" * 20, number) for number in range(n // 80)
    )

    def merge() -> None:
        each = [exposition.read(text), exposition.read(text)]
        exposition.write(exposition.merged(each, {"isthmus_x_total": Merge.SUM}))

    return merge


def _view(n: int, **changed: Any) -> ServerView:
    tunnels = tuple(
        TunnelView(
            id=TunnelId(number),
            frontend="grpc",
            requester="\N{REPLACEMENT CHARACTER}" * 40,
            target="\x00" * 40,
            agent_id=AgentId("\u202e" * 20),
            link_id=1,
            state=TunnelState.OPEN,
            age_s=1.0,
            bytes_to_target=number,
            bytes_to_client=0,
        )
        for number in range(n // 200)
    )
    return ServerView(
        server_id=ServerId("s"),
        version="1",
        uptime_s=1.0,
        draining=False,
        totals=Totals(),
        agents=(),
        links=(),
        tunnels=tunnels,
        **changed,
    )


def _snapshot(n: int) -> Work:
    view = _view(n)
    return lambda: [*json_chunks(view)]


def _page(n: int) -> Work:
    before, after = delta.Moment(view=_view(n)), delta.Moment(view=_view(n, truncated=1))

    def write() -> None:
        delta.at_once(delta.event("full", delta.at_once(delta.full(after, {}))))
        delta.at_once(delta.event("delta", delta.at_once(delta.delta(before, after, {}))))

    return write


def _audit(n: int) -> Work:
    identity = Identity("\N{REPLACEMENT CHARACTER}" * n, ("g" * n,))

    def write() -> None:
        requester = audit.requester_of.__wrapped__(identity)
        record = audit.Record(
            time=audit.rfc3339(0.0),
            stage=audit.Stage.REFUSED,
            requester=requester,
            reason="\x00" * (n // 3),
        )
        audit.to_line(record)

    return write


def _recent(n: int) -> Work:
    def keep() -> None:
        lines = logs.RecentLines()
        for _ in range(n // 100):
            lines.put("x" * 100)
        lines.last(1000)

    return keep


def _events(n: int) -> Work:
    from isthmus.frame.dashboard.feed import EventReader

    raw = b"event: full\ndata: " + json.dumps({"x": "y" * n}).encode() + b"\n\n"

    def read() -> None:
        reader = EventReader()
        for at in range(0, len(raw), 1000):
            reader.take(raw[at : at + 1000])

    return read


# Files.


def _text(read: Callable[[str], object], head: str, unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        parts, size, number = [head], len(head), 0
        while size < n:
            parts.append(unit.replace("@", str(number)))
            size += len(parts[-1])
            number += 1
        text = "".join(parts)
        return _quietly(lambda: read(text), ConfigError)

    return make


def _file(read: Callable[[str], object], head: str, unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        path = Path(tempfile.mkdtemp(prefix="isthmus-cost-")) / "file"
        path.write_text(head + _times(unit, n))
        return _quietly(lambda: read(str(path)), ConfigError)

    return make


POLICY = "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\nrules:\n"
RULE = '- {name: r@, effect: allow, match: {requesters: ["a-@*"], hosts: ["*.x@.example"]}}\n'
ROUTES = "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\nroutes:\n"
ROUTE = '- {name: r@, hosts: ["a@.example", "*.b@.example"], backends: ["10.0.0.1:443"]}\n'
BINDING = "apiVersion: isthmus.dev/v1alpha1\nkind: AgentIdentityBinding\nrules:\n"
BOUND = '- {subject: {commonName: "n@-*"}, agentIDs: ["n@"], identifiers: {host: ["h@.example"]}}\n'
SERVICE = """---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService: {name: n@, connection: {type: grpc, url: "grpc://h@:1"}}
"""
SERVERS = "frontend f\n  mode tcp\n  bind :6443\n  default_backend b\nbackend b\n  mode tcp\n"
KUBECONFIG = (
    "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
    "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
    "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers:\n"
)
SECRETS = {
    "plain": "nothing to see here\n",
    "tokens begun": "eyJ-",
    "tokens half": "eyJaaaaaaaa.",
    "key words": "token",
    "named": "--token-password-secret-",
    "quoted": "token: \\\"'",
    "bearer": "bearer ",
    "userinfo": "://a:",
    "user": "a:b",
    "at": "@a:@",
    "blanks": "password" + " " * 2000,
    "lines": "token: |\n  x\n",
    "keys": "-----BEGIN PRIVATE KEY-----\n",
    "base64": "QUJD" * 16 + " ",
    "variables": "secret_x",
    "cookie": "cookie\\\\\\\\",
    "ends of keys": "-----END PRIVATE KEY-----\nA",
    "keys in base64": "LS0tLS1CRUdJTi\n",
    "names and values": "name: token value: ",
    "logins": "login a password ",
    "elements": "<token",
}
FLAGS = {
    "users": "a:b",
    "urls": "://",
    "at": "@",
    "queries": "?token&token",
    "words": "?tokentoken",
}


def _scrub(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)
        return lambda: Scrubber(["a-known-secret-of-ours"]).clean(text)

    return make


def _blank(unit: str) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)
        return lambda: blanked(text)

    return make


def _pem(pattern: Any, unit: bytes) -> Callable[[int], Work]:
    def make(n: int) -> Work:
        text = _times(unit, n)
        return lambda: pattern(text)

    return make


def rows() -> Iterator[Row]:
    """The whole table."""
    yield Row("headers: indexes", _block(b"\x88"), 128)
    yield Row("headers: literals", _block(b"\x00\x01a\x01b"), 640)
    yield Row("headers: literals for the table", _block(b"\x40\x01a\x01b"), 640)
    yield Row("headers: more than may be", _block(b"\x00\x01a\x01b"), 64 * KIB)
    yield Row("headers: changes of the table", _block(b"\x20"), 16 * KIB)
    yield Row("headers: one value", _one_value(0, b"v"), 64 * KIB)
    yield Row("headers: one value by huffman", _one_value(0x80, b"\x00"), 32 * KIB)
    yield Row("http2: window updates", _frames(http2.window_update(0, 1)), 64 * KIB)
    yield Row("http2: settings", _frames(http2.settings((3, 1))), 64 * KIB)
    yield Row("http2: empty frames", _frames(http2.frame(0xEE, 0, 0)), 64 * KIB)
    yield Row("grpc: unknown paths", _requests)
    yield Row("grpc-message: quoted", _status)
    yield Row("grpc-message: encoder", _encoded)
    yield Row("grpc-message: read", _read_status)
    yield Row("link: hello in pieces", _hello, 60 * KIB)
    yield Row("link: labels", _labels, 60 * KIB)
    yield Row("link: groups of a dial", _dial, 16 * KIB)
    yield Row("link: features", lambda n: lambda: features_in([b"a," * (n // 2)]))
    yield Row("yamux: pings", _yamux(FrameType.PING, 1), 64 * KIB)
    yield Row("yamux: unknown streams", _yamux(FrameType.WINDOW_UPDATE, 1))
    yield Row("packets: data", _packets(packet.data_packet(1, b"x"), 16 * KIB))
    yield Row("packets: closes in pieces", _packets(packet.close_response(1, "e"), 7))
    yield Row("packets: one long in pieces", _one_packet(64), 64 * KIB)
    yield Row("payloads", _payloads)
    yield Row("konnectivity's errors", _go_error)
    yield Row("connect: header lines", _head(b"a: b\r\n"), 700)
    yield Row("connect: one line", _head(b"a"), 16 * KIB - 100)
    yield Row("connect: odd lines", _head(b"a:\n"), 300)
    yield Row("connect: a line in pieces", _head_in_pieces(b"a"), 16 * KIB - 100)
    yield Row("connect: lines in pieces", _head_in_pieces(b"a: bcdefghij\r\n"), 1600)
    yield Row("connect: answer in pieces", _answer, 16 * KIB)
    yield Row("forward proxy: request", _forward, 60 * KIB)
    connect, get = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n", b"GET http://a/ HTTP/1.1\r\nHost: a\r\n"
    for name, start in (("CONNECT", connect), ("GET", get)):
        yield Row(
            f"http proxy: {name}, a line in pieces", _to_http_proxy(start, b"a", 1), 8 * KIB - 100
        )
        yield Row(
            f"http proxy: {name}, lines in pieces",
            _to_http_proxy(start, b"a: " + b"b" * 75 + b"\r\n", 1), 8 * KIB - 100,
        )  # fmt: skip
    yield Row("client hello", _client_hello, 15 * KIB)
    yield Row("proxy header", _proxy, 8 * KIB)
    yield Row("socks5: login in pieces", _login, 500)
    yield Row("dns answer", _dns, 60 * KIB)
    yield Row("metadata", _asking, 9 * KIB)
    yield Row("trace context", _trace)
    yield Row("identifiers: addresses", _identifiers("ipv6=::1&"), 256 * 9)
    yield Row("identifiers: one name", _identifiers("a"), 8 * KIB)
    yield Row("identifiers: escapes", _identifiers("host=%41%42&"), 256 * 12)
    yield Row("identifiers: unknown keys", _identifiers("a=b&"), 1024)
    yield Row("host: labels", _host("a-."), 248)
    yield Row("host: one label", _host("a-"), 248)
    yield Row("host: numbers", _host("1."), 248)
    yield Row("patterns of names", _pattern_of_names, 4 * KIB)
    yield Row("certificate: names and groups", _identity, 64 * KIB)
    yield Row("tokens: signed", _token("eyJ."), 16 * KIB)
    yield Row("tokens: one part", _token("a"))
    for name, unit in LOGGED.items():
        yield Row(f"log pattern: {name}", _pattern(unit))
    yield Row("log: tokens begun", _escape("eyJ-"))
    yield Row("log: controls", _escape("\x00\u202e\\"), 1024)
    yield Row("log: a line of text", _line(logs.TextFormatter()))
    yield Row("log: a line of JSON", _line(logs.JsonFormatter()))
    yield Row("log: keys", _once)
    yield Row("log: recent lines", _recent)
    yield Row("metrics: labels", _metric)
    yield Row("metrics: merged", _merged)
    yield Row("snapshot", _snapshot)
    yield Row("page: events", _page)
    yield Row("page: reader", _events, 256 * KIB)
    yield Row("audit", _audit, 64 * KIB)
    yield Row("policy", _text(lambda t: policy.parse(t, "f"), POLICY, RULE), 20 * KIB)
    yield Row("sni routes", _text(lambda t: sni_routes.parse(t, "f"), ROUTES, ROUTE), 20 * KIB)
    yield Row("bindings", _text(lambda t: entitlements.parse(t, "f"), BINDING, BOUND), 20 * KIB)
    yield Row(
        "connectivity", _text(lambda t: connectivity.read(t, name="f"), "", SERVICE), 40 * KIB
    )
    yield Row(
        "haproxy",
        _text(lambda t: haproxy_cfg.convert(t, "f"), SERVERS, "  server s@ 10.0.0.1:1\n"),
        1400,
    )
    yield Row(
        "kubeconfig", _file(read_config, KUBECONFIG, "- {name: u, user: {token: t}}\n"), 16 * KIB
    )
    for name, unit in SECRETS.items():
        yield Row(f"support bundle: {name}", _scrub(unit))
    for name, unit in FLAGS.items():
        yield Row(f"flags: {name}", _blank(unit))
    yield Row("certificates", _pem(certificates.pem_blocks, b"-----BEGIN CERTIFICATE-----"))
    yield Row("revocation lists", _pem(revocation.pem_blocks, b"-----BEGIN X509 CRL-----"))


def broken_rows() -> Iterator[Row]:
    """What was quadratic once: the measure has to see it."""
    import re

    import hpack as package

    tokens_ = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")

    def pattern(n: int) -> Work:
        text = "eyJ-" * (n // 4)
        return lambda: tokens_.sub("", text)

    def huffman(n: int) -> Work:
        value = b"%EF%BF%BD" * (n // 9)
        return lambda: package.Encoder().encode([(b"grpc-message", value)])

    yield Row("a token's old pattern", pattern)
    yield Row("the encoder of Huffman's code", huffman)
