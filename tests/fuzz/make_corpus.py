"""Writes the seeds of the corpus: conversations that our own programs have, and their documents.

    python tests/fuzz/make_corpus.py

Files called found-* are inputs that once failed and stay as they are.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.message
import dns.rrset
import hpack
from sinks import REQUEST, RESPONSE

from isthmus.testing import Http2Pair, MemoryEnd, MemoryLink, Recorder
from isthmus.tunnel.end import join
from isthmus.values import HostPort
from isthmus.wire import packet, socks5
from isthmus.wire.connect_answer import ConnectAsking
from isthmus.wire.grpc import Status, message_head, status_headers
from isthmus.wire.http2 import encode_headers, goaway, literal_header, settings
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Hello, Welcome
from isthmus.wire.payload import END_OF_DATA, connect_options, payload_head
from isthmus.wire.yamux import SYN, pack

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Knobs in front: read in pieces of these sizes.
WHOLE, PIECES = b"\0\0\xff\xff", b"\0\0\x06\x40"
HOSTS = b"127.0.0.1\tlocalhost\n::1 localhost ip6-localhost # both\n192.0.2.1 a.example a\n"
NSSWITCH = b"passwd: files\nhosts: files mdns4_minimal [NOTFOUND=return] dns [!UNAVAIL=return]\n"
RESOLV_CONF = (
    b"# kubelet\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\n"
    b"search default.svc.cluster.local svc.cluster.local\ndomain example.com\n"
    b"options ndots:5 timeout:2 attempts:3 rotate edns0 use-vc no-aaaa\n"
)
Seeds = Iterator[bytes]


def mux(to_server: bool) -> bytes:
    """A session in which streams are opened, carry bytes, half-close and are reset."""
    link = MemoryLink(on_server_stream=lambda stream: join(stream, MemoryEnd()))
    said = bytearray()
    ends = []
    for number in range(3):
        stream, end = link.client.open(first=b"dial %d" % number), MemoryEnd()
        assert stream is not None
        join(stream, end)
        ends.append(end)
    ends[0].feed(b"x" * 300)
    ends[1].feed_eof()
    ends[2].reset()
    link.client.ping()
    link.server.ping()
    for _ in range(3):
        link.flush()
        one, other = bytes(link.client_out.sent), bytes(link.server_out.sent)
        said += one if to_server else other
        link.deliver(to_server=True)
        link.deliver(to_server=False)
    link.client.go_away()
    link.server.go_away()
    link.flush()
    return bytes(said + (link.client_out if to_server else link.server_out).sent)


def http2(to_server: bool) -> bytes:
    """A connection with calls that are answered, half-closed, reset and refused."""
    pair = Http2Pair()
    said = bytearray()

    def carry() -> None:
        pair.flush()
        said.extend(pair.client_out.sent if to_server else pair.server_out.sent)
        pair.deliver(to_server=True)
        pair.deliver(to_server=False)

    streams = []
    for _ in range(3):
        stream = pair.client.open(Recorder())
        assert stream is not None
        stream.send_headers(REQUEST)
        stream.write(message_head(5), b"hello")
        streams.append(stream)
    carry()
    for stream, _ in pair.accepted:
        stream.send_headers(RESPONSE)
        stream.write(message_head(5), b"there")
    streams[0].end()
    pair.client.ping()
    carry()
    pair.accepted[0][0].end(tuple(status_headers(Status.OK)))
    pair.server.go_away()
    carry()
    return bytes(said)


def packets() -> bytes:
    """One connection from its dial to its end."""
    return b"".join(
        (
            packet.dial_request("tcp", "10.0.0.1:10250", 3),
            packet.dial_response(1, 9),
            packet.data_packet(9, b"hello"),
            packet.data_packet(7, b"y" * 200),
            packet.end_of_data(9),
            packet.dial_response(2, error="refused"),
            packet.close_request(7),
            packet.close_response(9),
            packet.close_dial(3),
            packet.drain(),
        )
    )


def payloads() -> bytes:
    """Data and their end."""
    return payload_head(5) + b"hello" + payload_head(300) + b"z" * 300 + END_OF_DATA


def client_hello(name: str, alpn: list[str]) -> bytes:
    """What OpenSSL says first."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(alpn)
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def blocks() -> Seeds:
    """Header blocks, each behind its length."""
    encoder = hpack.Encoder()
    indexed = [encoder.encode(list(REQUEST)) for _ in range(2)]
    plain = encode_headers(REQUEST) + literal_header(b"x-kube-net-proxy", b"CgVhOjQ0Mw==")
    yield b"".join(bytes([len(block)]) + block for block in (*indexed, plain))
    yield b"".join(bytes([len(block)]) + block for block in (b"\x88", b"\x88", indexed[0], b"\x88"))
    yield b"\x06\x3f\xe1\x1f\x40\x01a\x01b" + b"\x03\xbe\xbe\xbe"


def dns_answers() -> Seeds:
    """An address, a chain, and no such name."""
    asked = dns.message.make_query("kubelet.example.test", "A")
    for records in (
        [("kubelet.example.test.", "A", "10.0.0.1")],
        [
            ("kubelet.example.test.", "CNAME", "other.example.test."),
            ("other.example.test.", "A", "10.0.0.2"),
        ],
        [],
    ):
        answer = dns.message.make_response(asked)
        answer.answer = [dns.rrset.from_text(name, 60, "IN", *rest) for name, *rest in records]
        yield answer.to_wire()


def socks() -> Seeds:
    """Each message of a conversation, behind the knob that says which it is."""
    said = (
        socks5.Greeting(b"\0\x02").to_bytes(),
        socks5.Login(b"user", b"password").to_bytes(),
        socks5.Request(socks5.Command.CONNECT, "example.test", 443).to_bytes(),
        socks5.Choice(0).to_bytes(),
        socks5.LoginAnswer(True).to_bytes(),
        socks5.Reply(socks5.Code(0), "127.0.0.1", 1080).to_bytes(),
    )
    for number, message in enumerate(said):
        yield bytes([number]) + b"\0\x02\x10" + message


def requests() -> Seeds:
    """CONNECT as several clients say it."""
    plain = ConnectAsking(HostPort("10.0.0.1", 10250)).request
    more = b"Isthmus-Network: one\r\ntraceparent: 00-%032x-%016x" % (7, 9)
    yield PIECES + plain
    yield WHOLE + b"CONNECT [::1]:443 HTTP/1.1\r\nHost: x\r\n" + more + b"-01\r\n\r\nearly"
    yield WHOLE + b"GET / HTTP/1.1\nHost: x\n\n"


def answers() -> Seeds:
    """What proxies say to CONNECT."""
    yield PIECES + b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\nearly"
    yield PIECES + b"HTTP/1.1 503 no\r\nContent-Length: 5\r\n\r\nsorry"
    yield PIECES + b"HTTP/1.0 407 Who\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


def forwarded() -> Seeds:
    """Plain requests to a proxy."""
    yield WHOLE + b"GET http://a.test:81/x?y HTTP/1.1\r\nHost: a.test\r\nTE: x\r\n\r\n"
    head = b"POST http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: x, upgrade\r\nX: 1\r\n"
    yield WHOLE + head + b"Upgrade: ws\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield WHOLE + head + b"Proxy-Authorization: Basic YTpi\r\nContent-Length: 3\r\n\r\nabc"


def proxied() -> Seeds:
    """PROXY headers of both versions."""
    signature = b"\r\n\r\n\0\r\nQUIT\n"
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 1, 0xBB])
    yield b"\0\0\x06\x40" + signature + b"\x21\x11\0\x11" + addresses + b"\xea\0\x02ab"
    yield b"\0\0\xff\xff" + signature + b"\x20\0\0\0"
    yield b"\x01\0\xff\xff" + b"PROXY TCP6 ::1 2001:db8::1 1000 443\r\n"
    yield b"\x02\0\x03\x03" + b"PROXY UNKNOWN\r\n"


def link_messages() -> Seeds:
    """A link's messages, each kind behind its knob."""
    greeting = Hello(agent_id="agent-1", version="0.1.0", token="t", network="one")
    controls = (Control(hello=greeting), Control(welcome=Welcome(server_id="s", server_count=2)))
    yield b"\0\0\x06\x40" + b"".join(map(to_bytes, controls))
    yield b"\x01\0\x06\x40" + to_bytes(Dial(host="10.0.0.1", port=443, dial_id=1))
    yield b"\x02\0\x06\x40" + to_bytes(DialResult(failure=DialResult.REFUSED, detail="no"))


def grpc() -> Seeds:
    """Heads, statuses and timeouts."""
    yield message_head(5) + b"hello"
    yield b"14\0%E2%82%AC gone"
    yield b"application/grpc+proto\x00100m"


def asking() -> Seeds:
    """Everything that may be said."""
    yield b"\n".join(
        bytes([number]) + value
        for number, value in enumerate(
            (b"group%20a", b"net", b"object", b"tenant", b"user", b"00-%032x-%016x-01" % (7, 9),
             b"a=1,b@c=2")
        )
    )  # fmt: skip
    yield b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def services() -> Seeds:
    """Objects of the API as JSON."""
    meta = b'"metadata":{"namespace":"a","name":"b","labels":{"kubernetes.io/service-name":"b"}}'
    yield (
        b'\0{"kind":"Service",%b,"spec":{"clusterIP":"10.0.0.1","ports":[{"name":"x","port":80,'
        b'"targetPort":8080,"nodePort":30000,"protocol":"TCP"}],"externalIPs":["1.2.3.4"],'
        b'"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":32000,'
        b'"loadBalancerSourceRanges":["10.0.0.0/8"],"sessionAffinity":"ClientIP"}}' % meta
    )
    yield (
        b'\1{"kind":"EndpointSlice",%b,"addressType":"IPv4","ports":[{"port":8080}],'
        b'"endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true},"zone":"z"}]}' % meta
    )
    yield (
        b'\0{"metadata":{"name":"n"},"spec":{"podCIDRs":["10.2.0.0/24"],"cidrs":["10.0.0.0/16"]},'
        b'"status":{"addresses":[{"type":"InternalIP","address":"10.3.0.1"}]}}'
    )


def documents(*patterns: str, most: int = 4) -> Callable[[], Seeds]:
    """Files of the repository, the smallest first."""

    def found() -> Seeds:
        paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
        for path in sorted(paths, key=lambda each: (each.stat().st_size, each.name))[-most:]:
            yield path.read_bytes()[:4000]

    return found


def shown(page: str, kind: str) -> Callable[[], Seeds]:
    """The documents of a kind that a page of the documentation shows."""

    def found() -> Seeds:
        text = (ROOT / "docs" / page).read_text()
        for block in re.findall(r"```yaml[^\n]*\n(.*?)```", text, re.S):
            if f"kind: {kind}" in block:
                yield block.encode()

    return found


KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: a
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443", tls-server-name: x}}]
contexts: [{name: a, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: s3cr3t-t0ken-of-somebody}}]
"""
KUBE_PROXY = b"""apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.1.0.0/16
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 1h}
iptables: {masqueradeBit: 14, syncPeriod: 30s}
detectLocal: {bridgeInterface: br0}
"""


def calls(make: Callable[[], bytes], *roles: int) -> Callable[[], Seeds]:
    """One conversation behind several knobs."""
    return lambda: iter([bytes([role, role % 12, 0x06, 0x40]) + make() for role in roles])


SEEDS: dict[str, Callable[[], Seeds]] = {
    "apiserver_proxy_plan": documents("examples/apiserver-proxy/*.yaml"),
    "asking_headers": asking,
    "client_calls": lambda: iter(
        [bytes([0, 0, 6, 64]) + packets().replace(b"\x10\x01", b"\x10\x07"),
         bytes([9, 2, 6, 64]) + payloads(), bytes([27, 1, 6, 64]) + payloads()]
    ),
    "client_hellos": lambda: iter(
        [WHOLE + client_hello("a.example.test", ["isthmus/1@server-1", "isthmus/1", "h2"]),
         WHOLE + client_hello("b.example.test", ["h2"])[:200]]
    ),
    "connect_answers": answers,
    "connect_heads": requests,
    "connectivity_configuration": documents("tests/golden/config/egress-[gnuw]*.yaml",
                                            "tests/golden/config/service-[ct]*.yaml", most=6),
    "dns_answers": dns_answers,
    "entitlements_document": shown("how-to/bind-agents.md", "AgentIdentityBinding"),
    "forward_heads": forwarded,
    "grpc_messages": grpc,
    "haproxy_cfg": documents("tests/golden/haproxy/*.cfg"),
    "hosts_file": lambda: iter([HOSTS]),
    "hosted_cluster": documents(
        "examples/publishing/*.yaml", "examples/publishing/v1alpha1/private.yaml"
    ),
    "hpack_blocks": blocks,
    "http2_client": lambda: iter([WHOLE + http2(False), b"\x01\x05\x06\x40" + http2(False)]),
    "http2_frames": lambda: iter([b"\0" + settings((3, 100), (4, 70000))[9:],
                                  b"\x08" + goaway(7, 2, "why")[9:], b"\x08\x03abcdef"]),  # type: ignore[arg-type]  # a plain code
    "http2_server": lambda: iter([WHOLE + http2(True)[24:], b"\x01\x05\x06\x40" + http2(True)[24:],
                                  b"\0\x04\x10\x80" + http2(True)[24:]]),
    "kube_proxy_configuration": lambda: iter([KUBE_PROXY]),
    "kubeconfig": lambda: iter([KUBECONFIG]),
    "link_messages": link_messages,
    "mux_session": lambda: iter([WHOLE + mux(True), b"\x07\x02\x06\x40" + mux(False),
                                 b"\x08\x01\x20\x80" + mux(True)]),
    "nsswitch_conf": lambda: iter([NSSWITCH]),
    "packet_link": calls(packets, 0, 1, 2, 3),
    "packets": lambda: iter([WHOLE + packets(), PIECES + packets()]),
    "payload_end": calls(payloads, 0, 0x42, 0xC0),
    "payloads": lambda: iter([WHOLE + payloads(), b"\1\0\x06\x40" + payloads(),
                              WHOLE + connect_options(HostPort("a.test", 443))]),
    "policy_document": shown("reference/policy.md", "ConnectivityPolicy"),
    "proxy_end": calls(packets, 0, 1, 0x80),
    "proxy_headers": proxied,
    "resolv_conf": lambda: iter([RESOLV_CONF]),
    "service_objects": services,
    "sni_routes": documents("examples/sni-router/*.yaml"),
    "socks5_messages": socks,
    "yamux_headers": lambda: iter([PIECES + pack(0, 1, SYN, 1, 0) + pack(0, 0, 0, 1, 5) + b"x"]),
}  # fmt: skip


def main() -> None:
    """Write every seed."""
    for target, seeds in SEEDS.items():
        directory = HERE / "corpus" / target
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("seed-*"):
            old.unlink()
        count = 0
        for count, seed in enumerate(seeds(), 1):
            (directory / f"seed-{count}").write_bytes(seed)
        assert count, f"{target}: no seed"


if __name__ == "__main__":
    main()
