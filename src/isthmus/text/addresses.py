"""What an address means: one reading of every spelling, for all code that compares addresses.

``plain_address`` is the address as a socket reports it. ``reached`` says where a connection to it
ends: the kernel takes "any address" for the loopback address, a NAT64 gateway translates IPv6 to
IPv4, and a tunnel carries IPv6 to the IPv4 address inside. ``weigh`` checks rules against all of
these: none may be denied. Spellings that only some resolvers read (127.1, 0x7f.1, zones) are not
addresses for HostPort, and therefore never come here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Generic, TypeVar

from isthmus.text.short_cache import short_cache

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
V = TypeVar("V")

#: The IPv6 prefix of mapped IPv4 addresses (RFC 4291 §2.5.5.2).
MAPPED = IPv6Network("::ffff:0:0/96")
#: Connecting to "any address" connects to the loopback address, on Linux as on BSD.
_ANY: dict[IpAddress, IpAddress] = {
    IPv4Address("0.0.0.0"): IPv4Address("127.0.0.1"),
    IPv6Address("::"): IPv6Address("::1"),
}
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052 §2.1
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # RFC 8215; its operator chooses how to divide it
_COMPATIBLE = IPv6Network("::/96")  # RFC 4291 §2.5.5.1, deprecated
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")  # RFC 2765 §2.1, "IPv4-translated"
_ISATAP = (0x00005EFE, 0x02005EFE)  # the interface identifiers of RFC 5214 §6.1
_MAX_ADDRESS_CHARS = 45  # of an IPv6 address that ends as IPv4


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a connection to an address ends.

    ``address`` is what the kernel connects to. ``translated`` are the IPv4 addresses that a
    translator would connect to instead: it is one of them, but which one may be unknown.
    ``besides`` are addresses that matter only if they are denied: the destination of a tunnel, and
    "any address" as it was spelled.
    """

    address: IpAddress
    translated: tuple[IPv4Address, ...] = ()
    besides: tuple[IpAddress, ...] = ()

    def __iter__(self) -> Iterator[IpAddress]:
        yield self.address
        yield from self.translated
        yield from self.besides


# Every accepted connection needs two: parsing one takes 3 µs, a hit 0.2 (timeit).
@short_cache(4096, 256)
def plain_address(host: str) -> IpAddress:
    """Read an address without its zone; ``::ffff:10.0.0.1`` is 10.0.0.1, as on IPv4 sockets.

    Raises:
        ValueError: it is invalid.
    """
    text = host.partition("%")[0] if ":" in host else host
    if len(text) > _MAX_ADDRESS_CHARS:
        raise ValueError("too long for an address")
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


# A zone may be of any length: only short spellings are kept.
@short_cache(4096, 256)
def reached(host: str) -> Reached:
    """Say where a connection to an address ends, however the address is spelled.

    Raises:
        ValueError: it is invalid.
    """
    written = plain_address(host)
    address = _ANY.get(written, written)
    if isinstance(address, IPv4Address):
        return Reached(address, besides=() if address == written else (written,))
    any_address = () if address == written else (written,)
    besides = (*any_address, *map(_plain_v4, _tunnelled(address)))
    translated = tuple(dict.fromkeys(map(_plain_v4, _translated(address))))
    return Reached(address, translated=translated, besides=besides)


def reached_address(host: str) -> IpAddress:
    """The address that the kernel connects to.

    Raises:
        ValueError: it is invalid.
    """
    return reached(host).address


def is_loopback(host: str) -> bool:
    """Whether this is a name or an address of the machine's loopback, and nothing else.

    "Any address" is not: a listener there can be reached from everywhere.
    """
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return plain_address(host).is_loopback
    except ValueError:
        return False


def is_ipv4_range(network: IpNetwork) -> bool:
    """Whether an IPv6 network has only mapped IPv4 addresses, so that no plain address is in it."""
    return isinstance(network, IPv6Network) and network.subnet_of(MAPPED)


def plain_network(text: str) -> IpNetwork:
    """Read a network or an address; mapped IPv4 addresses become plain IPv4.

    Raises:
        ValueError: it is invalid.
    """
    network = ip_network(text)
    return as_ipv4(network) if isinstance(network, IPv6Network) else network


def as_ipv4(network: IPv6Network) -> IpNetwork:
    """The IPv4 network for a network of mapped addresses; any other network unchanged."""
    if not network.subnet_of(MAPPED):
        return network
    return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))


def _plain_v4(address: IPv4Address) -> IPv4Address:
    return IPv4Address("127.0.0.1") if address.is_unspecified else address


def _translated(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that a translator would reach (RFC 6052 §2.2)."""
    octets = address.packed
    if address in _NAT64:
        yield IPv4Address(octets[12:])
    elif address in _LOCAL_NAT64:
        # Prefixes of 48, 56, 64 and 96 bits; octet 8 is always empty.
        forms = (octets[6:8] + octets[9:11], octets[7:8] + octets[9:12], octets[9:13], octets[12:])
        # If one form has an address, the others may be empty.
        yield from map(IPv4Address, list(filter(any, forms)) or forms[:1])


def _tunnelled(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that tunnelled packets for this address would be sent to."""
    if address.sixtofour is not None:  # 2002::/16, RFC 3056 §2
        yield address.sixtofour
    elif address.teredo is not None:  # 2001::/32, RFC 4380 §4: the server, and the client
        yield from address.teredo
    elif (
        address in _TRANSLATED
        or (address in _COMPATIBLE and address.packed[12])
        or int.from_bytes(address.packed[8:12]) in _ISATAP
    ):
        yield IPv4Address(address.packed[12:])


class AddressVerdict(Enum):
    """The verdict of the rules on one address; UNLISTED if none of them is about addresses."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNLISTED = "in neither list"


@dataclass(frozen=True, slots=True)
class Weighed(Generic[V]):
    """A verdict and its reason."""

    verdict: AddressVerdict
    by: V


def weigh(where: Reached, judge: Callable[[IpAddress], Weighed[V]]) -> Weighed[V]:
    """The verdict on every reading of an address.

    An address that is denied in any reading is denied. Otherwise the rule for the address itself
    applies; without one, the rule that holds for every address a translator could make of it.
    """
    own = judge(where.address)
    if own.verdict is AddressVerdict.DENIED or not (where.translated or where.besides):
        return own
    others = [judge(each) for each in where.translated]
    for each in (*others, *map(judge, where.besides)):
        if each.verdict is AddressVerdict.DENIED:
            return each
    if own.verdict is AddressVerdict.UNLISTED and others:
        # It is unknown which of them a translator uses: all have to be allowed.
        return min(others, key=lambda it: it.verdict is AddressVerdict.ALLOWED)
    return own


_PREFIX = re.compile(r"[^/%]+(/[0-9]{1,3})?", re.ASCII)


def cidr(text: str, *, host_bits: bool = False) -> IPv4Network | IPv6Network:
    """Read a network or an address; ipaddress would accept netmasks and zones, too.

    ``host_bits`` accepts 10.0.0.7/8 for 10.0.0.0/8.

    Raises:
        ValueError: it is invalid; the message is a clause that follows the text.
    """
    try:
        if not _PREFIX.fullmatch(text):
            raise ValueError
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError("is not a network such as 10.0.0.0/8, nor an address") from None
    if not host_bits and network.network_address != ip_address(text.partition("/")[0]):
        raise ValueError(f"has bits below its prefix, did you mean {network}?")
    return network
