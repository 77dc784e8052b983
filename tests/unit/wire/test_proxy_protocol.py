"""The PROXY protocol, by vectors typed from haproxy's proxy-protocol.txt."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from isthmus.errors import ProtocolError
from isthmus.wire.proxy_protocol import (
    AUTHORITY,
    BOTH,
    MAX_HEADER_BYTES,
    IpPort,
    ProxyHeader,
    Tlv,
    take_proxy_header,
)

SIGNATURE = bytes.fromhex("0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A")
V4 = ProxyHeader(
    source=IpPort(ip_address("192.168.0.1"), 56324),
    destination=IpPort(ip_address("192.168.0.11"), 443),
)
V4_BYTES = SIGNATURE + bytes.fromhex("21 11 000C C0A80001 C0A8000B DC04 01BB")
V6 = ProxyHeader(
    source=IpPort(ip_address("2001:db8::1"), 1),
    destination=IpPort(ip_address("::ffff:10.0.0.1"), 65535),
    tlvs=(Tlv(AUTHORITY, b"a.b"), Tlv(0xE0, b"")),
)
V6_BYTES = SIGNATURE + bytes.fromhex(
    "21 21 002D 20010DB8000000000000000000000001 00000000000000000000FFFF0A000001 0001 FFFF"
    "02 0003 612E62 E0 0000"
)
LOCAL = ProxyHeader(is_local=True)
LOCAL_BYTES = SIGNATURE + bytes.fromhex("20 00 0000")
UNSPEC = ProxyHeader(tlvs=(Tlv(5, b"id"),))
UNSPEC_BYTES = SIGNATURE + bytes.fromhex("21 00 0005 05 0002 6964")


def take(data: bytes, versions: tuple[int, ...] = BOTH) -> tuple[ProxyHeader | None, bytes]:
    buffer = bytearray(data)
    return take_proxy_header(buffer, versions=versions), bytes(buffer)


@pytest.mark.parametrize(
    ("header", "data"),
    [(V4, V4_BYTES), (V6, V6_BYTES), (LOCAL, LOCAL_BYTES), (UNSPEC, UNSPEC_BYTES)],
)
def test_version_2(header: ProxyHeader, data: bytes) -> None:
    assert header.to_bytes() == data
    assert take(data) == (header, b"")
    assert take(data + b"rest", (2,)) == (header, b"rest")
    for size in range(len(data)):
        assert take(data[:size]) == (None, data[:size])


def test_an_address_of_each_kind_goes_as_ipv6() -> None:
    mixed = ProxyHeader(
        source=IpPort(ip_address("2001:db8::1"), 1), destination=IpPort(ip_address("10.0.0.1"), 2)
    )
    (found, _) = take(mixed.to_bytes())
    assert found is not None and found.destination is not None
    assert found.destination.ip == ip_address("::ffff:10.0.0.1")


@pytest.mark.parametrize(
    "block",
    [
        "20 11 000C C0A80001 C0A8000B DC04 01BB",  # a local connection's addresses are discarded
        "20 FF 0003 FFFFFF",
    ],
)
def test_of_a_local_connection_everything_else_is_ignored(block: str) -> None:
    assert take(SIGNATURE + bytes.fromhex(block) + b"x") == (LOCAL, b"x")


def test_padding_is_dropped_and_unix_sockets_have_no_address() -> None:
    padded = SIGNATURE + bytes.fromhex("21 00 0008 04 0002 0000 05 0000")
    assert take(padded) == (ProxyHeader(tlvs=(Tlv(5, b""),)), b"")
    unix = SIGNATURE + bytes.fromhex("21 31 00D8") + bytes(216)
    assert take(unix) == (ProxyHeader(), b"")


def test_the_first_of_a_type_is_found() -> None:
    header = ProxyHeader(tlvs=(Tlv(1, b"h2"), Tlv(5, b"x"), Tlv(5, b"y")))
    assert (header.tlv(5), header.tlv(2)) == (b"x", None)


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", V4),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", None),
        (
            b"PROXY TCP6 2001:db8::1 ::ffff:10.0.0.1 1 65535\r\n",
            ProxyHeader(source=V6.source, destination=V6.destination),
        ),
        (b"PROXY UNKNOWN\r\n", ProxyHeader()),
        (b"PROXY UNKNOWN ffff:f...f:ffff what ever\r\n", ProxyHeader()),
    ],
)
def test_version_1(line: bytes, header: ProxyHeader | None) -> None:
    found, rest = take(line + b"GET")
    assert rest == b"GET"
    assert header is None or found == header
    for size in range(len(line)):
        assert take(line[:size]) == (None, line[:size])
    with pytest.raises(ProtocolError, match="does not begin"):
        take(line, (2,))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x16\x03\x01", "does not begin with a PROXY header"),
        (b"PROXX", "does not begin"),
        (b"\r\n\r\nQ", "does not begin"),
        (SIGNATURE + b"\x11", "unknown version and command 0x11"),
        (SIGNATURE + b"\x22", "unknown version and command 0x22"),
        (SIGNATURE + b"\x21\x12", "not a TCP connection: address family 0x12"),
        (SIGNATURE + bytes.fromhex("21 11 000B"), "11 bytes are too few"),
        (SIGNATURE + bytes.fromhex("21 21 000C"), "12 bytes are too few"),
        (SIGNATURE + bytes.fromhex("21 00 2000"), f"more than {MAX_HEADER_BYTES} bytes"),
        (SIGNATURE + bytes.fromhex("21 00 0002 05 00"), "a TLV is cut short"),
        (SIGNATURE + bytes.fromhex("21 00 0004 05 0002 00"), "a TLV is cut short"),
        (b"PROXY " + b"x" * 101, "more than 107 bytes"),
        (b"PROXY \r\n", "not 'PROXY TCP4"),
        (b"PROXY TCP4\r\n", "not 'PROXY TCP4"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n", "not 'PROXY TCP4"),
        (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n", "not 'PROXY TCP4"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n", "not 'PROXY TCP4"),
        (b"PROXY TCP4 1.2.3 1.2.3.4 1 1\r\n", "not an address"),
        (b"PROXY TCP4 ::1 ::1 1 1\r\n", "not an address"),
        (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n", "not an address"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", "an address with a zone"),
        (b"PROXY TCP6 \xff ::1 1 1\r\n", "not an address"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n", "not a port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "not a port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n", "not a port"),
    ],
)
def test_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        take(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": V4.source},
        {"is_local": True, "tlvs": (Tlv(1, b""),)},
        {"tlvs": (Tlv(256, b""),)},
        {"source": IpPort(ip_address("::1"), 65536), "destination": V4.source},
    ],
)
def test_a_header_cannot_be_wrong(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ProxyHeader(**fields)  # type: ignore[arg-type]  # one of several


@pytest.mark.parametrize("size", [0xFFFF - 2, 0x10000])
def test_too_long_tlvs(size: int) -> None:
    with pytest.raises(ValueError, match="more than 65535 bytes"):
        ProxyHeader(tlvs=(Tlv(1, bytes(size)),)).to_bytes()


def test_how_an_address_reads() -> None:
    assert str(V4.source) == "192.168.0.1:56324"
    assert str(V6.source) == "[2001:db8::1]:1"
