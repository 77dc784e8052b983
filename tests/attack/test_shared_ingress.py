"""Attacks on an SNI router that many tenants share: borrowed sources, borrowed and broken TLVs.

Whatever a client claims, no backend of another tenant may hear of the connection.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from sni_bed import Bed, Tenant, hello_bytes
from stack import http_get, metric

from isthmus.frame.listening import Listening
from isthmus.programs.sni_router.metrics import SniRefusal
from isthmus.wire.proxy_protocol import MAX_HEADER_BYTES, SIGNATURE, IpPort, ProxyHeader, Tlv

ACCESS_DENIED = bytes.fromhex("15 03 03 0002 02 31")
UNRECOGNIZED_NAME = bytes.fromhex("15 03 03 0002 02 70")
#: What every pod asks for, whatever its cluster.
SAME = "kubernetes.default.svc"
OFFICE = IpPort(ip_address("203.0.113.7"), 4711)
ROUTER = IpPort(ip_address("192.0.2.1"), 6443)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tenant]]:
    directory = tmp_path_factory.mktemp("tenants")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Tenant(name, directory)) for name in ("a", "b")}


@pytest.fixture
def bed(tmp_path: Path, tenants: dict[str, Tenant]) -> Iterator[Bed]:
    for each in tenants.values():
        each.accepted = 0
    with Bed(tmp_path, tenants) as made:
        yield made


def write(bed: Bed, *allowed: str) -> None:
    """A route by TLV and one by name for each tenant; allowedCIDRs are those of tenant a."""
    cidrs = f"  allowedCIDRs: [{', '.join(map(repr, allowed))}]\n" if allowed else ""
    bed.write(
        "".join(
            f"- name: {name}-{how}\n  {what}\n  backends: ['{bed.tenants[name].address}']\n"
            + (cidrs if name == "a" else "")
            for name in ("a", "b")
            for how, what in (
                ("pods", f"tlv: [id-{name}]"),
                ("names", f"hosts: [api.{name}.example]"),
            )
        )
    )


def header(*tlvs: bytes, source: IpPort = OFFICE, type_: int = 0x20) -> bytes:
    told = tuple(Tlv(type_, value) for value in tlvs)
    return ProxyHeader(source=source, destination=ROUTER, tlvs=told).to_bytes()


def proxy_port(bed: Bed) -> int:
    return bed.router.part(Listening).open_ones[1].port


def said(bed: Bed, data: bytes, *, port: int = 0) -> bytes:
    """What a connection that begins with this is answered, until its end."""
    found = bytearray()
    with contextlib.suppress(ConnectionError), bed.connect(port or proxy_port(bed)) as sock:
        sock.sendall(data)
        while more := sock.recv(65536):
            found += more
    return bytes(found)


def greeting(bed: Bed, tenant: str, data: bytes = b"", *, name: str = SAME, port: int = 0) -> str:
    """What the backend says, whose certificate has to be this tenant's."""
    context = ssl.create_default_context(cafile=str(bed.tenants[tenant].files.ca_cert))
    context.check_hostname = False
    sock = bed.connect(port or proxy_port(bed))
    sock.sendall(data)
    with context.wrap_socket(sock, server_hostname=name) as tls, tls.makefile() as lines:
        return lines.readline().strip()


def heard(bed: Bed) -> int:
    """How many connections backends had."""
    return sum(it.accepted for it in bed.tenants.values())


def test_a_header_of_a_stranger_borrows_no_source(bed: Bed) -> None:
    """An allowed source in a header counts only when a proxy of --proxy-from says it."""
    write(bed, "203.0.113.0/24")
    router = bed.start(listen_proxy=("127.0.0.1:0",), proxy_from=("127.0.0.9",))
    hello = hello_bytes(SAME)
    v1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 6443\r\n"
    assert said(bed, header(b"id-a") + hello) == ACCESS_DENIED
    assert said(bed, v1 + hello_bytes("api.a.example")) == ACCESS_DENIED
    assert said(bed, hello_bytes("api.a.example"), port=bed.port) == ACCESS_DENIED
    assert heard(bed) == 0
    bed.wait_refused(SniRefusal.SOURCE_NOT_ALLOWED, 3)
    text = http_get(router.admin_port, "/metrics")[1]
    ours = "isthmus_sni_router_"
    assert metric(text, f'{ours}connections_refused_total{{reason="source_not_allowed"}}') == 3
    assert metric(text, f'{ours}sources_refused_total{{route="a-pods"}}') == 1
    assert metric(text, f'{ours}sources_refused_total{{route="a-names"}}') == 2
    # The other tenant allows everybody, and the TLV alone decides who it is.
    assert greeting(bed, "b", header(b"id-b")) == f"b {SAME} -"
    (seen,) = {it.requester for it in bed.do(lambda: bed.connections.tunnels.views(10))} or {""}
    assert "203.0.113" not in seen


def test_a_proxy_tells_the_source(bed: Bed) -> None:
    """The proxy's own address is not the source: neither to let in nor to keep out."""
    write(bed, "203.0.113.0/24")
    bed.start(listen_proxy=("127.0.0.1:0",), proxy_from=("127.0.0.0/8",))
    assert greeting(bed, "a", header(b"id-a")) == f"a {SAME} -"
    before = heard(bed)
    elsewhere = IpPort(ip_address("198.51.100.7"), 1)
    assert said(bed, header(b"id-a", source=elsewhere) + hello_bytes(SAME)) == ACCESS_DENIED
    write(bed, "127.0.0.0/8")
    bed.wait(lambda: bed.router.metrics.reloads == 1, "it is read")
    assert said(bed, header(b"id-a") + hello_bytes(SAME)) == ACCESS_DENIED
    assert heard(bed) == before


@pytest.mark.parametrize(
    ("source", "allowed", "answered"),
    [
        ("::ffff:203.0.113.7", "203.0.113.0/24", True),
        ("::ffff:203.0.113.7", "::ffff:203.0.113.0/120", True),
        ("::ffff:203.0.113.7", "::/0", False),
        ("2001:db8::7", "2001:db8::/32", True),
        ("2001:db8::7", "0.0.0.0/0", False),
    ],
)
def test_a_mapped_source_is_ipv4(bed: Bed, source: str, allowed: str, answered: bool) -> None:
    """A header can have any IPv4 address as IPv6: the ranges of IPv4 hold, those of IPv6 do not."""
    write(bed, allowed)
    bed.start(listen_proxy=("127.0.0.1:0",), proxy_from=("127.0.0.1",))
    told = header(b"id-a", source=IpPort(ip_address(source), 1))
    if answered:
        assert greeting(bed, "a", told) == f"a {SAME} -"
    else:
        assert said(bed, told + hello_bytes(SAME)) == ACCESS_DENIED


def test_ipv4_at_a_socket_of_both_families(bed: Bed) -> None:
    """The kernel has IPv4 peers as mapped addresses there."""
    write(bed, "127.0.0.0/8")
    bed.start(listen=(":0",))
    assert greeting(bed, "a", name="api.a.example", port=bed.port) == "a api.a.example -"
    write(bed, "::/0")
    bed.wait(lambda: bed.router.metrics.reloads == 1, "it is read")
    assert said(bed, hello_bytes("api.a.example"), port=bed.port) == ACCESS_DENIED


CUT_SHORT = SIGNATURE + bytes.fromhex("21 11 0010") + bytes(12) + bytes.fromhex("20 00ff 41")


NOWHERE = [
    (header(), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_NAME),
    (header(b"id-a", type_=0x21), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_NAME),
    (ProxyHeader(is_local=True).to_bytes(), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_NAME),
    (b"PROXY UNKNOWN id-a\r\n", UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_NAME),
    (header(b""), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"id-c"), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"ID-A"), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"id-a\0"), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"id-a" * 1000), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"id-c", b"id-a"), UNRECOGNIZED_NAME, SniRefusal.UNKNOWN_TLV),
    (header(b"id-a" * (MAX_HEADER_BYTES // 4)), b"", SniRefusal.NO_PROXY_HEADER),
    (CUT_SHORT, b"", SniRefusal.NO_PROXY_HEADER),
    (b"", b"", SniRefusal.NO_PROXY_HEADER),
]


def test_a_tlv_that_is_none_leads_nowhere(bed: Bed) -> None:
    write(bed)
    bed.start(listen_proxy=("127.0.0.1:0",))
    for data, answer, why in NOWHERE:
        before = bed.refusals().get(why, 0)
        assert said(bed, data + hello_bytes(SAME)) == answer, data[:100]
        assert bed.refusals().get(why, 0) == before + 1, data[:100]
    assert heard(bed) == 0


def test_a_name_does_not_beat_the_tlv(bed: Bed) -> None:
    """With the id of b and the name of a it is b; a's name alone is a, as at the other port."""
    write(bed)
    bed.start(listen_proxy=("127.0.0.1:0",))
    assert greeting(bed, "b", header(b"id-b"), name="api.a.example") == "b api.a.example -"
    assert greeting(bed, "a", header(), name="api.a.example") == "a api.a.example -"


def test_without_a_port_for_them_routes_by_tlv_are_told_of(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    """A header at a port that expects none is no TLS: it leads nowhere."""
    write(bed)
    bed.start()
    assert said(bed, header(b"id-a") + hello_bytes(SAME), port=bed.port) == b""
    bed.wait_refused(SniRefusal.NOT_TLS)
    assert any("routes with tlv get no connections" in it.getMessage() for it in caplog.records)


def test_without_routes_for_it_a_tlv_says_nothing(bed: Bed) -> None:
    """A balancer's own TLVs, of TLS for example, are not taken for ids."""
    bed.start(listen_proxy=("127.0.0.1:0",))
    assert greeting(bed, "a", header(b"\1\0\0\0\0"), name="api.a.example") == "a api.a.example -"


def test_the_snapshot_says_who_was_refused(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    write(bed, "203.0.113.0/24")
    bed.start(listen_proxy=("127.0.0.1:0",))
    said(bed, header(b"id-a") + hello_bytes(SAME))
    bed.wait_refused(SniRefusal.SOURCE_NOT_ALLOWED)
    routes = {it.name: it for it in bed.do(lambda: bed.connections.snapshot(10))["routes"]}
    assert routes["a-pods"].sources_refused == 1 and routes["b-pods"].sources_refused == 0
    assert routes["a-pods"].allowed_cidrs == ("203.0.113.0/24",)
    assert routes["a-pods"].tlv == ("'id-a'",)
    (line,) = [it for it in caplog.records if it.getMessage() == "connection refused"]
    fields = vars(line)["fields"]
    assert "allowedCIDRs" in fields["reason"] and fields["detail"] == "the TLV is 'id-a'"
    assert fields["source"].startswith("127.0.0.1:") and fields["server_name"] == SAME
