"""What our rules say of packets: values as bytes, and the fields that are compared with them.

The statements around them are in compiling_rules.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network

from isthmus.errors import IsthmusError
from isthmus.net.rules_nft_encoding import (
    conntrack,
    element,
    fib,
    meta,
    payload,
    user_data,
    verdict,
)

# An address or a range, if a wrong one perhaps; nft has other words for them, too.
_PLAIN = re.compile(r"[0-9a-fA-F.:/]+")
PROTOCOLS: Mapping[str, bytes] = {"tcp": b"\6", "udp": b"\x11", "sctp": b"\x84"}
_VERDICTS = {"drop": 0, "accept": 1, "return": -5}
_GOING = {"jump": -3, "goto": -4}
# linux/netfilter/nf_tables.h and its neighbours
NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_META_PROTOCOL, _META_IIFNAME, _META_L4PROTO = 1, 6, 16
_CT_STATE, _CT_STATUS = 0, 2
_FIB_SADDR, _FIB_DADDR, _FIB_ADDRTYPE = 1, 2, 3
_INTERVAL_END = 0x1
_NAME_BYTES = 16
# What nft keeps with an element: that nothing follows its range.
_OPEN_END = user_data((1, b"\1\0\0\0"))


class _RuleError(IsthmusError):
    """``rule`` is the line that it is about; whoever knows it fills it in."""

    def __init__(self, what: str, *, rule: str = "") -> None:
        super().__init__(what)
        self.rule = rule


class ForeignRuleError(_RuleError):
    """A rule uses an expression that the renderer never writes."""


class RuleValueError(_RuleError):
    """A value of a rule is not what it has to be; a clause that says so."""


def host_order(number_of: int) -> bytes:
    """A number of 32 bits as this machine keeps it."""
    return number_of.to_bytes(4, sys.byteorder)


@lru_cache(maxsize=4096)
def address_bytes(text: str) -> bytes:
    """Read an address.

    Raises:
        RuleValueError: it is none.
    """
    try:
        return ip_address(text).packed
    except ValueError:
        if not _PLAIN.fullmatch(text):
            raise ForeignRuleError(text) from None
        raise RuleValueError(f"{text} is not an IP address") from None


@lru_cache(maxsize=4096)
def port_bytes(text: str) -> bytes:
    """Read a port.

    Raises:
        RuleValueError: it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise RuleValueError(f"{text} is not a port")
    return int(text).to_bytes(2, "big")


def concatenated(parts: Sequence[bytes]) -> bytes:
    """Join values to one key, each filled up to four bytes."""
    return b"".join(part + bytes(-len(part) % 4) for part in parts)


def verdict_of(words: Sequence[str]) -> bytes:
    """The verdict that words say."""
    match words:
        case [word] if word in _VERDICTS:
            return verdict(_VERDICTS[word])
        case [word, chain] if word in _GOING:
            return verdict(_GOING[word], chain)
        case _:
            raise ForeignRuleError(" ".join(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketField:
    """Something of a packet: how it is loaded into a register, and what it is compared with."""

    load: Callable[[int], bytes]
    size: int
    read: Callable[[str], bytes] | None = None
    #: Where it is in the network header, for an address: part of one may be loaded.
    offset: int = 0


def _word_of(known: Mapping[str, bytes]) -> Callable[[str], bytes]:
    def read(word: str) -> bytes:
        if word not in known:
            raise ForeignRuleError(word)
        return known[word]

    return read


def _interface(text: str) -> bytes:
    """Read a quoted name; one that ends with a star is compared as far as that."""
    given = text.strip('"').encode()
    if not text.startswith('"') or given in (b"", b"*") or b"\\" in given:
        raise ForeignRuleError(text)
    if len(given) >= _NAME_BYTES:
        raise RuleValueError(f"{text} is not the name of an interface")
    return given[:-1] if given.endswith(b"*") else given.ljust(_NAME_BYTES, b"\0")


def _address(offset: int, size: int) -> PacketField:
    return PacketField(
        load=lambda register: payload(register, NETWORK_HEADER, offset, size),
        size=size, read=address_bytes, offset=offset,
    )  # fmt: skip


def _iifname(register: int) -> bytes:
    return meta(_META_IIFNAME, register)


def _fib(flags: int) -> PacketField:
    return PacketField(
        load=lambda register: fib(flags, _FIB_ADDRTYPE, register),
        size=4, read=_word_of({"local": host_order(2)}),
    )  # fmt: skip


_IIFNAME = PacketField(load=_iifname, size=_NAME_BYTES, read=_interface)
FIELDS: Mapping[tuple[str, ...], PacketField] = {
    ("ip", "saddr"): _address(12, 4),
    ("ip", "daddr"): _address(16, 4),
    ("ip6", "saddr"): _address(8, 16),
    ("ip6", "daddr"): _address(24, 16),
    ("meta", "l4proto"): PacketField(
        load=lambda register: meta(_META_L4PROTO, register), size=1, read=_word_of(PROTOCOLS)
    ),
    ("meta", "protocol"): PacketField(
        load=lambda register: meta(_META_PROTOCOL, register), size=2,
        read=_word_of({"ip": b"\x08\0", "ip6": b"\x86\xdd"}),
    ),
    ("th", "dport"): PacketField(
        load=lambda register: payload(register, _TRANSPORT_HEADER, 2, 2), size=2
    ),
    ("meta", "iifname"): _IIFNAME,
    ("iifname",): _IIFNAME,
    ("fib", "saddr", "type"): _fib(_FIB_SADDR),
    ("fib", "daddr", "type"): _fib(_FIB_DADDR),
}  # fmt: skip
#: Fields of bits, of which any has to be set.
BITS: Mapping[tuple[str, ...], tuple[bytes, bytes]] = {
    ("ct", "state", "new"): (conntrack(_CT_STATE, 1), host_order(8)),
    ("ct", "status", "dnat"): (conntrack(_CT_STATUS, 1), host_order(32)),
}


def address_port(words: Sequence[str]) -> bytes:
    """An address and a port, as ``10.0.0.1 . 80``, joined to one value."""
    match words:
        case [address, ".", port]:
            return concatenated((address_bytes(address), port_bytes(port)))
        case _:
            raise ForeignRuleError(" ".join(words))


def single(field: PacketField, word: str) -> bytes:
    """An element with one address."""
    found = address_bytes(word)
    if len(found) != field.size:
        raise RuleValueError(f"{word} is an address of the other family")
    return element(found)


def range_of(field: PacketField, word: str) -> tuple[bytes, int]:
    """Read a range: its first address, and how many bits it shares with all of them."""
    try:
        found = ip_network(word, strict=False)
    except ValueError:
        if not _PLAIN.fullmatch(word):
            raise ForeignRuleError(word) from None
        raise RuleValueError(f"{word} is not a range of addresses") from None
    if not field.offset or found.max_prefixlen != field.size * 8:
        raise RuleValueError(f"{word} is not a range of addresses of this family")
    return found.network_address.packed, found.prefixlen


def intervals(field: PacketField, words: Sequence[str]) -> list[bytes]:
    """Elements where ranges begin and end, without overlaps, as trees of intervals want them."""
    whole = field.size * 8
    merged: list[list[int]] = []
    for start, bits in sorted(range_of(field, word) for word in words):
        first = int.from_bytes(start, "big")
        after = first + (1 << whole - bits)
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], after)
        else:
            merged.append([first, after])
    top = 1 << whole
    found = []
    if merged[0][0]:
        found.append(element(bytes(field.size), flags=_INTERVAL_END))
    for first, after in merged:
        key = first.to_bytes(field.size, "big")
        if after == top:
            found.append(element(key, user=_OPEN_END))
        else:
            found.append(element(key))
            found.append(element(after.to_bytes(field.size, "big"), flags=_INTERVAL_END))
    return found
