"""The PROXY protocol: the real peer of a connection that a proxy passed on.

Version 2 is written and read, with its TLVs; version 1, a line of text, is read if the
caller allows it. Sections (§) are those of haproxy's proxy-protocol.txt. A CRC32c is not checked,
and the caller interprets the TLVs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_PROXY_HEADER_BYTES

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
#: A longer header is rejected; real ones have less than 1 KiB.
MAX_HEADER_BYTES = MAX_PROXY_HEADER_BYTES

# Types of TLVs (§2.2). 0xE0 to 0xEF are for private use; HyperShift's shared ingress puts the id
# of a cluster into 0x20.
ALPN = 0x01
AUTHORITY = 0x02
CRC32C = 0x03
NOOP = 0x04
UNIQUE_ID = 0x05
SSL = 0x20
SSL_VERSION, SSL_CN, SSL_CIPHER = 0x21, 0x22, 0x23
NETNS = 0x30

_V1, _V2 = 1, 2
#: Both supported versions.
BOTH = (_V1, _V2)
_V2_HEAD = 16
_LOCAL, _PROXY = 0x20, 0x21
_UNSPEC, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESS_BYTES = {_UNSPEC: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}
_MAX_BLOCK_BYTES = 0xFFFF
_MAX_V1_BYTES = 107  # §2.1, with its CRLF
_V1_BEGINS = b"PROXY "
_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")


class IpPort(NamedTuple):
    """An address and a port; the port is 0 if unknown."""

    ip: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


class Tlv(NamedTuple):
    """An additional value about a connection."""

    type: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHeader:
    """The PROXY header of a connection.

    Without addresses the proxy could not tell them; ``is_local``: the proxy speaks for itself, as
    in a health check (§2.2, LOCAL). TLVs may occur several times.
    """

    source: IpPort | None = None
    destination: IpPort | None = None
    tlvs: tuple[Tlv, ...] = ()
    is_local: bool = False

    def __post_init__(self) -> None:
        if (self.source is None) != (self.destination is None):
            raise ValueError("one address without the other")
        if self.is_local and (self.source is not None or self.tlvs):
            raise ValueError("a local connection has neither addresses nor TLVs")
        if any(not 0 <= tlv.type <= 0xFF for tlv in self.tlvs):
            raise ValueError("a TLV's type is one byte")
        if any(not 0 <= it.port <= 0xFFFF for it in (self.source, self.destination) if it):
            raise ValueError("a port is two bytes")

    def tlv(self, type_: int) -> bytes | None:
        """The first value of this type; None if absent."""
        return next((tlv.value for tlv in self.tlvs if tlv.type == type_), None)

    def to_bytes(self) -> bytes:
        """Write version 2; an IPv4 and an IPv6 address together go as IPv6.

        Raises:
            ValueError: the TLVs are too long.
        """
        family, addresses = self._addresses()
        block = addresses + b"".join(
            bytes((tlv.type,)) + _u16(len(tlv.value)) + tlv.value for tlv in self.tlvs
        )
        if len(block) > _MAX_BLOCK_BYTES or any(len(t.value) > 0xFFFF for t in self.tlvs):
            raise ValueError(f"PROXY: more than {_MAX_BLOCK_BYTES} bytes of TLVs")
        command = _LOCAL if self.is_local else _PROXY
        return SIGNATURE + bytes((command, family)) + _u16(len(block)) + block

    def _addresses(self) -> tuple[int, bytes]:
        if self.source is None or self.destination is None:
            return _UNSPEC, b""
        ips = [self.source.ip, self.destination.ip]
        family = _TCP4 if all(isinstance(ip, IPv4Address) for ip in ips) else _TCP6
        packed = [ip.packed if family == _TCP4 else _as_v6(ip).packed for ip in ips]
        return family, b"".join(packed) + _u16(self.source.port) + _u16(self.destination.port)


def take_proxy_header(
    buffer: bytearray, *, versions: Collection[int] = (_V2,)
) -> ProxyHeader | None:
    """Take the header off the front of the buffer; None while it is incomplete.

    Each byte is checked as soon as it arrives. ``versions`` are the accepted ones.

    Raises:
        ProtocolError: no header of these versions, malformed, or too long.
    """
    head = bytes(buffer[:_V2_HEAD])
    if _V2 in versions and SIGNATURE.startswith(head[: len(SIGNATURE)]):
        return _take_v2(buffer, head)
    if _V1 in versions and _V1_BEGINS.startswith(head[: len(_V1_BEGINS)]):
        return _take_v1(buffer)
    raise ProtocolError("PROXY: the connection does not begin with a PROXY header")


def _take_v2(buffer: bytearray, head: bytes) -> ProxyHeader | None:
    at = len(SIGNATURE)
    command = head[at] if len(head) > at else _PROXY
    if command not in (_LOCAL, _PROXY):
        raise ProtocolError(f"PROXY: unknown version and command {command:#04x}")
    # For a local connection "the receiver must discard the protocol block" (§2.2).
    family = head[at + 1] if len(head) > at + 1 and command == _PROXY else _UNSPEC
    if family not in _ADDRESS_BYTES:
        raise ProtocolError(f"PROXY: not a TCP connection: address family {family:#04x}")
    if len(head) < _V2_HEAD:
        return None
    size = int.from_bytes(head[14:16], "big")
    if _V2_HEAD + size > MAX_HEADER_BYTES:
        raise ProtocolError(f"PROXY: a header of more than {MAX_HEADER_BYTES} bytes")
    if size < _ADDRESS_BYTES[family]:
        raise ProtocolError(f"PROXY: {size} bytes are too few for the addresses")
    if len(buffer) < _V2_HEAD + size:
        return None
    block = bytes(buffer[_V2_HEAD : _V2_HEAD + size])
    header = _LOCAL_HEADER if command == _LOCAL else _header(family, block)
    del buffer[: _V2_HEAD + size]
    return header


def _header(family: int, block: bytes) -> ProxyHeader:
    cut = _ADDRESS_BYTES[family]
    tlvs = tuple(tlv for tlv in _tlvs(block[cut:]) if tlv.type != NOOP)
    if family not in (_TCP4, _TCP6):
        return ProxyHeader(tlvs=tlvs)  # UNIX sockets have paths as addresses, if any
    width = 4 if family == _TCP4 else 16
    kind = IPv4Address if family == _TCP4 else IPv6Address
    ports = block[2 * width : cut]
    return ProxyHeader(
        source=IpPort(kind(block[:width]), int.from_bytes(ports[:2], "big")),
        destination=IpPort(kind(block[width : 2 * width]), int.from_bytes(ports[2:], "big")),
        tlvs=tlvs,
    )


def _tlvs(data: bytes) -> Iterator[Tlv]:
    at = 0
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
        if len(data) < max(end, at + 3):
            raise ProtocolError("PROXY: a TLV is cut short")
        yield Tlv(data[at], data[at + 3 : end])
        at = end


def _take_v1(buffer: bytearray) -> ProxyHeader | None:
    end = buffer.find(b"\r\n", 0, _MAX_V1_BYTES)
    if end < 0:
        if len(buffer) >= _MAX_V1_BYTES:
            raise ProtocolError(f"PROXY: a line of more than {_MAX_V1_BYTES} bytes")
        return None
    header = _line(bytes(buffer[:end]))
    del buffer[: end + 2]
    return header


def _line(line: bytes) -> ProxyHeader:
    words = line.split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader()  # "the receiver must ignore anything presented before the CRLF" (§2.1)
    kinds: dict[bytes, type[IPv4Address | IPv6Address]] = {
        b"TCP4": IPv4Address,
        b"TCP6": IPv6Address,
    }
    kind = kinds.get(words[1])
    if kind is None or len(words) != 6:
        raise ProtocolError("PROXY: not 'PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT'")
    try:
        ips = [kind(word.decode("ascii")) for word in words[2:4]]
    except (AddressValueError, UnicodeDecodeError):
        raise ProtocolError("PROXY: not an address") from None
    ports = [int(word) if _PORT.fullmatch(word) else 0x10000 for word in words[4:6]]
    if max(ports) > 0xFFFF or any(getattr(ip, "scope_id", None) for ip in ips):
        raise ProtocolError("PROXY: not a port, or an address with a zone")
    return ProxyHeader(source=IpPort(ips[0], ports[0]), destination=IpPort(ips[1], ports[1]))


def _as_v6(ip: IPv4Address | IPv6Address) -> IPv6Address:
    return ip if isinstance(ip, IPv6Address) else IPv6Address(b"\0" * 10 + b"\xff\xff" + ip.packed)


def _u16(number: int) -> bytes:
    # Too large a size is reported once the block is known: to_bytes() would raise its own error.
    return (number & 0xFFFF).to_bytes(2, "big")


_LOCAL_HEADER = ProxyHeader(is_local=True)
