"""Texts that are too long, from whoever may send one: cut or refused, and others are served."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, TlsClient, connect_uds, echo_target, status_of
from grpc_clients import GrpcCall
from stack import Stack, agent_context, wait_until
from test_token_watch import TokenApi, jwt, linked

from isthmus import logs
from isthmus.net.rules_slots import STRANGER_S, Allowance
from isthmus.text.text_limits import MAX_DETAIL_CHARS, MAX_LOGGED_CHARS, MAX_STATUS_BYTES
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort
from isthmus.wire import hpack
from isthmus.wire.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS_ACK,
    ErrorCode,
    Headers,
    encode_headers,
    frame,
    read_goaway,
    settings,
    unpack_head,
)
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Hello, Refusal, Welcome
from isthmus.wire.packet import dial_request
from isthmus.wire.payload import CONNECT_OPTIONS, connect_options

ATTACKER = "127.0.0.2"
#: The first byte of a TLS record that says what is wrong.
TLS_ALERT = b"\x15"
LOGGERS = tuple(map(logging.getLogger, ("isthmus", "asyncio", "aiohttp")))
GREETING = PREFACE + settings() + SETTINGS_ACK
CALL: Headers = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
TOKENS_BEGUN = "eyJ-" * 15_000


@pytest.fixture
def api() -> Iterator[TokenApi]:
    with TokenApi() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def by_token(fresh: Stack, api: TokenApi, tmp_path: Path) -> Stack:
    """A server that asks agents for tokens, not for certificates, and an honest agent."""
    linked(fresh, api, tmp_path, jwt(), mode=("grpc",))
    return fresh


@pytest.fixture
def grpc(fresh: Stack) -> Stack:
    """A server whose clients speak gRPC, and an agent."""
    fresh.add_server(mode=("grpc",))
    fresh.add_agent()
    return fresh


def with_path(path: bytes, block: bytes = b"") -> bytes:
    """A call of this path."""
    headers = tuple((name, path if name == b":path" else value) for name, value in CALL)
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, block or encode_headers(headers))


def stranger(stack: Stack, alpn: str) -> TlsClient:
    """Somebody without a certificate at the agent port."""
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    context.set_alpn_protocols([alpn])
    port = stack.server.agent_port
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, (ATTACKER, 0))
    try:
        return TlsClient(sock, context, "localhost")
    except BaseException:
        sock.close()
        raise


def answer(client: Client) -> dict[bytes, bytes]:
    """The headers of the first response."""
    decoder = hpack.Decoder(1 << 20)
    while True:
        high, low, kind, _, _ = unpack_head(client.read_exactly(9))
        payload = client.read_exactly(high << 8 | low)
        if kind == HEADERS:
            return dict(decoder.decode(payload))


def goodbye(client: Client) -> tuple[int, str]:
    """The code and the text of the GOAWAY."""
    while True:
        high, low, kind, _, _ = unpack_head(client.read_exactly(9))
        payload = client.read_exactly(high << 8 | low)
        if kind == GOAWAY:
            return read_goaway(payload)[1:]


def hello(said: Hello) -> bytes:
    """Open the control stream, by yamux's specification, and say it."""
    data = to_bytes(Control(hello=said))
    opened = struct.pack("!BBHII", 0, 1, 1, 1, 0)
    return opened + struct.pack("!BBHII", 0, 0, 0, 1, len(data)) + data


class Mux:
    """A peer of yamux in blocking code, which sees the first stream and those that are opened."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.streams: dict[int, bytearray] = {}

    def read(self) -> int:
        """Take one frame; the stream that has more data, 0 for none."""
        kind, flags, stream, size = struct.unpack("!xBHII", self.client.read_exactly(12))
        if kind == 2 and flags & 1:  # answer a ping
            self.client.send(struct.pack("!BBHII", 0, 2, 2, 0, size))
        if kind:
            return 0
        self.streams.setdefault(stream, bytearray()).extend(self.client.read_exactly(size))
        return stream

    def control(self) -> Control:
        """The next message of the control stream."""
        while (message := take_message(self.streams.setdefault(1, bytearray()), Control)) is None:
            self.read()
        return message

    def dial(self) -> int:
        """Wait for a dial; its stream."""
        while True:
            stream = self.read()
            if stream > 1 and take_message(self.streams[stream], Dial) is not None:
                return stream

    def send(self, stream: int, data: bytes, flags: int = 0) -> None:
        """Send data on a stream."""
        self.client.send(struct.pack("!BBHII", 0, 0, flags, stream, len(data)) + data)


def serves(stack: Stack) -> None:
    """An honest client is served, through an honest agent."""
    with echo_target() as target, connect_uds(stack.server.settings.uds_name) as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        call.send(b"ping")
        assert call.read_exactly(4) == b"ping"


def send_in_frames(client: Client, raw: bytes) -> None:
    """Send a message on the first stream, in frames of the usual size."""
    for at in range(0, len(raw), 16_000):
        client.send(frame(DATA, 0, 1, raw[at : at + 16_000]))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the programs log."""
    stream = io.StringIO()
    before = [(it, it.handlers[:], it.level, it.propagate) for it in LOGGERS]
    logs.configure(1, "text", stream)
    yield stream
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def longest(log: io.StringIO) -> int:
    """The longest line that was logged."""
    return max(map(len, log.getvalue().splitlines()), default=0)


# Without credentials, at the agent port.


def test_a_long_path_without_credentials(by_token: Stack) -> None:
    """One request with a path of 15 kB, each byte of which takes nine characters to quote."""
    with stranger(by_token, "h2") as client:
        client.send(GREETING + with_path(b"/" + b"\xff" * 15_000))
        said = answer(client)
        assert said[b"grpc-status"] == b"12" and len(said[b"grpc-message"]) < 500
        serves(by_token)


def test_requests_of_thousands_of_references(by_token: Stack) -> None:
    """One byte names a header that is in every table; 7,700 of them are a list of 300 kB."""
    block = encode_headers(CALL) + b"\x90" * 7_700
    with stranger(by_token, "h2") as client:
        client.send(GREETING + with_path(b"", block))
        assert goodbye(client)[0] == ErrorCode.ENHANCE_YOUR_CALM
    serves(by_token)


def test_request_after_request_that_is_no_call(by_token: Stack) -> None:
    """An agent makes one call; whoever asks for others, again and again, is not heard for long."""
    block = encode_headers(tuple((n, b"/x" if n == b":path" else v) for n, v in CALL))
    many = b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, block) for i in range(500))
    with stranger(by_token, "h2") as client:
        client.send(GREETING + many)
        assert goodbye(client)[0] == ErrorCode.ENHANCE_YOUR_CALM
    serves(by_token)


def test_more_bytes_than_a_greeting_has(by_token: Stack) -> None:
    """Frames that mean nothing, from somebody who never says who it is."""
    with stranger(by_token, "h2") as client, contextlib.suppress(OSError):
        for _ in range(200):
            client.send(frame(0x77, 0, 0, bytes(16_000)))
            client.send(frame(PING, 0, 0, b"ping----"))
        client.read_to_end()
    by_token.wait(lambda: len(by_token.server.links) == 1, "only the honest link is left")
    serves(by_token)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (Hello(agent_id="a", identifiers="ipv6=::1&" * 6_900), "identifiers has 62100 characters"),
        (Hello(agent_id="a" * 60_000), "agent id has 60000 characters"),
        (Hello(agent_id="a", network="n" * 60_000), "network has 60000 characters"),
        (Hello(agent_id="a", token="t" * 60_000), "token has 60000 characters"),
        (Hello(agent_id="a", labels={"k": "v" * 60_000}), "value of a label has 60000"),
        (Hello(agent_id="a", identifiers="a=b&" * 2_000), "more than 256 values"),
    ],
    ids=["identifiers", "id", "network", "token", "labels", "values"],
)
def test_a_hello_that_is_too_long_is_refused_in_one_sentence(
    by_token: Stack, said: Hello, sentence: str
) -> None:
    """Nothing is made of it before its length is known."""
    with stranger(by_token, "isthmus/1") as client:
        client.send(hello(said))
        assert sentence in Mux(client).control().refusal.reason
    serves(by_token)


def test_a_version_that_looks_like_tokens(by_token: Stack, log: io.StringIO) -> None:
    """60 kB that the log has to search for secrets: cut before."""
    with stranger(by_token, "isthmus/1") as client:
        client.send(hello(Hello(agent_id="attacker", version=TOKENS_BEGUN)))
        assert "no token was sent" in Mux(client).control().refusal.reason
    serves(by_token)
    by_token.wait(lambda: "attacker" in log.getvalue(), "it is in the log")
    assert longest(log) < 4 * MAX_LOGGED_CHARS


def test_a_user_agent_that_looks_like_tokens(by_token: Stack) -> None:
    """The same over gRPC, in several frames."""
    agent = ((b"agentid", b"attacker"), (b"user-agent", TOKENS_BEGUN[:50_000].encode()))
    headers = tuple((n, b"/AgentService/Connect" if n == b":path" else v) for n, v in CALL)
    block = encode_headers((*headers, *agent))
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    raw = frame(HEADERS, 0, 1, parts[0])
    for part in parts[1:]:
        raw += frame(9, END_HEADERS if part is parts[-1] else 0, 1, part)
    with stranger(by_token, "h2") as client:
        client.send(GREETING + raw)
        assert answer(client)[b"grpc-status"] == b"16"
    serves(by_token)


# What one source may cost.


def test_a_source_that_proves_nothing_runs_out(by_token: Stack) -> None:
    """It connects again and again; then it is reset before the handshake, and only it."""
    door = by_token.server.agent_door
    small = Allowance(by_token.loop.time, burst_s=10 * STRANGER_S, per_second_s=0.0)
    by_token.do(lambda: setattr(door, "allowance", small))
    done = 0
    with contextlib.suppress(OSError):
        for _ in range(20):
            with stranger(by_token, "h2"):
                done += 1
    assert done == 10
    # Whoever shows who it is gets back what it cost: many agents behind one address come in.
    for _ in range(15):
        by_token.stop(by_token.add_agent(link="auto", **_token_of(by_token)))
    serves(by_token)


def _token_of(stack: Stack) -> dict[str, str]:
    return {"service_account_token_path": stack.agent.settings.service_account_token_path}


def test_clients_without_certificates_run_out(fresh: Stack) -> None:
    """The same at the TLS frontend."""
    fresh.add_server()
    fresh.add_agent()
    frontend = fresh.server.doors._connect
    assert frontend is not None
    small = Allowance(fresh.loop.time, burst_s=10 * STRANGER_S, per_second_s=0.0)
    fresh.do(lambda: setattr(frontend, "_allowance", small))
    port = fresh.server.frontend_port
    assert port is not None
    answered = 0
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", port), LIMIT_S, (ATTACKER, 0))
        # A refused connection is closed, or reset because what it sent was not read.
        with sock, contextlib.suppress(ConnectionError):
            sock.sendall(b"\x16\x03\x01\x00\x05junk!")
            answered += sock.recv(1) == TLS_ALERT
    assert answered == 10
    with echo_target() as target:
        for _ in range(15):
            with fresh.tunnel("tls", target.name) as client:
                client.send(b"ping")
                assert client.read_exactly(4) == b"ping"


# As a client.


def test_a_long_path_of_a_client(grpc: Stack) -> None:
    """The same at the UNIX socket, in a header list of 16 KiB."""
    with grpc.uds() as client:
        client.send(GREETING + with_path(b"/" + b"\xff" * 15_000))
        assert len(answer(client)[b"grpc-message"]) < 500
    serves(grpc)


def test_a_long_address_of_a_client(grpc: Stack) -> None:
    """A DIAL_REQ for 60 kB of control characters is refused in a few words."""
    with grpc.uds() as client:
        call = GrpcCall(client)
        send_in_frames(client, dial_request("tcp", "\x01" * 60_000, 7))
        packet = call.packet()
        assert packet is not None
        error = packet.dialResponse.error
        assert "cannot dial" in error and len(error) < MAX_DETAIL_CHARS
    serves(grpc)


def test_a_dial_request_of_a_megabyte_ends_its_call(grpc: Stack) -> None:
    """No packet but data is that long."""
    with grpc.uds() as client:
        call = GrpcCall(client)
        send_in_frames(client, dial_request("tcp", "x" * 1_000_000, 1))
        assert call.packet() is None
    serves(grpc)


@pytest.mark.parametrize("value", [b"\xff" * 12_000, b"QUJD" * 3_000], ids=["junk", "base64"])
def test_metadata_that_name_a_long_target(grpc: Stack, value: bytes) -> None:
    """KEP-1281's metadata, which say the target."""
    block = encode_headers((*CALL, (CONNECT_OPTIONS, value)))
    with grpc.uds() as client:
        client.send(GREETING + frame(HEADERS, END_HEADERS, 1, block))
        said = answer(client)
        assert said[b"grpc-status"] == b"3" and len(said[b"grpc-message"]) <= MAX_STATUS_BYTES
    serves(grpc)


def test_a_head_in_thousands_of_pieces(fresh: Stack) -> None:
    """Each byte of a request head in a packet of its own: each is looked at once."""
    fresh.add_server()
    fresh.add_agent()
    with fresh.uds() as client:
        client.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nx: ")
        with contextlib.suppress(OSError):
            for _ in range(17_000):
                client.send(b"y")
        assert status_of(client.read_head()) == 431
    with echo_target() as target, fresh.tunnel("uds", target.name) as client:
        client.send(b"ping")
        assert client.read_exactly(4) == b"ping"


# As an agent.


def test_a_long_detail_of_an_agent(certificates: pki.PkiFiles) -> None:
    """A mux agent explains a failed dial in 15,000 characters to a client of KEP-1281."""
    with Stack(certificates) as stack:
        stack.add_server(mode=("grpc",))
        sock = socket.create_connection(("127.0.0.1", stack.server.agent_port), LIMIT_S)
        with TlsClient(sock, agent_context(certificates), "localhost") as far:
            far.send(hello(Hello(agent_id="attacker")))
            agent = Mux(far)
            assert agent.control().welcome.server_id
            target = connect_options(HostPort("10.0.0.1", 443))
            block = encode_headers((*CALL, (CONNECT_OPTIONS, target)))
            with stack.uds() as client:
                client.send(GREETING + frame(HEADERS, END_HEADERS, 1, block))
                stream = agent.dial()
                detail = "\N{REPLACEMENT CHARACTER}" * 5_000
                agent.send(stream, to_bytes(DialResult(failure=1, detail=detail)))
                said = answer(client)
                assert said[b"grpc-status"] == b"14"
                assert len(said[b"grpc-message"]) <= MAX_STATUS_BYTES
        stack.wait(lambda: not stack.server.links, "its link is gone")
        stack.add_agent()
        serves(stack)


# As a server.


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Control(welcome=Welcome(server_id="s" * 60_000)), "server_id has 60000 characters"),
        (Control(refusal=Refusal(reason=TOKENS_BEGUN)), "refused by the server"),
    ],
    ids=["id", "refusal"],
)
def test_a_server_that_says_too_much(
    certificates: pki.PkiFiles, log: io.StringIO, message: Control, reason: str
) -> None:
    """An agent survives it, says why in a line of bounded length, and links to an honest one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_cert, certificates.server_key)
    context.set_alpn_protocols(["isthmus/1"])
    with Stack(certificates) as stack, socket.create_server(("127.0.0.1", 0)) as listener:
        agent = stack.add_agent(
            linked=False, proxy_server_port=listener.getsockname()[1], link="mux"
        )
        data = to_bytes(message)
        sock, _ = listener.accept()
        with context.wrap_socket(sock, server_side=True) as far:
            far.settimeout(LIMIT_S)
            assert far.recv(12)
            far.sendall(struct.pack("!BBHII", 0, 1, 2, 1, 0))
            far.sendall(struct.pack("!BBHII", 0, 0, 0, 1, len(data)) + data)
            with contextlib.suppress(OSError):
                while far.recv(65536):
                    pass
        sock, _ = listener.accept()  # it comes again
        sock.close()
        wait_until(lambda: reason in log.getvalue(), f"it says {reason}")
        assert longest(log) < 4 * MAX_LOGGED_CHARS
        assert stack.do(lambda: agent.health_port) > 0
