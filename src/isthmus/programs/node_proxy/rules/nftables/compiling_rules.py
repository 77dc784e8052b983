"""Compiles one rule into nf_tables expressions: loads, comparisons, actions.

The expressions are those that nft generates for the same text, shortcuts included; a test compares
the two. A construct that the node proxy does not write raises ``ForeignRuleError``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network

from typing_extensions import override

from isthmus.errors import IsthmusError
from isthmus.net.rules_nft_encoding import (
    APPEND,
    CREATE,
    FAMILIES,
    VERDICT,
    Compare,
    NftBatch,
    NftMessage,
    attribute,
    bitwise,
    comment,
    compare,
    conntrack,
    dnat,
    dynamic_update,
    element,
    element_lists,
    fib,
    immediate,
    lookup,
    masquerade,
    meta,
    meta_set,
    name,
    nested,
    number,
    numgen_random,
    payload,
    reject,
    user_data,
    value,
    verdict,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import RuleWords

# An address or a range, valid or not; nft has other operands too.
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
# Userdata that nft stores with an element: the range ends here.
_OPEN_END = user_data((1, b"\1\0\0\0"))


class _RuleError(IsthmusError):
    """``rule`` is the line of the error; a caller that knows it adds it."""

    def __init__(self, what: str, *, rule: str = "") -> None:
        super().__init__(what)
        self.rule = rule


class ForeignRuleError(_RuleError):
    """A rule uses an expression that the node proxy never writes."""


class RuleValueError(_RuleError):
    """A rule has an invalid value; the message says which."""


def host_order(number_of: int) -> bytes:
    """A 32-bit number in host byte order."""
    return number_of.to_bytes(4, sys.byteorder)


@lru_cache(maxsize=4096)
def address_bytes(text: str) -> bytes:
    """Read an address.

    Raises:
        RuleValueError: the text is not an address.
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
        RuleValueError: the text is not a port.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise RuleValueError(f"{text} is not a port number")
    return int(text).to_bytes(2, "big")


def concatenated(parts: Sequence[bytes]) -> bytes:
    """Concatenate values to one key, each padded to four bytes."""
    return b"".join(part + bytes(-len(part) % 4) for part in parts)


def verdict_of(words: Sequence[str]) -> bytes:
    match words:
        case [word] if word in _VERDICTS:
            return verdict(_VERDICTS[word])
        case [word, chain] if word in _GOING:
            return verdict(_GOING[word], chain)
        case _:
            raise ForeignRuleError(" ".join(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketField:
    """A packet field: how it is loaded into a register, and how its operands are encoded."""

    load: Callable[[int], bytes]
    size: int
    read: Callable[[str], bytes] | None = None
    #: The offset of an address in the network header: a part of it can be loaded.
    offset: int = 0


def _word_of(known: Mapping[str, bytes]) -> Callable[[str], bytes]:
    def read(word: str) -> bytes:
        if word not in known:
            raise ForeignRuleError(word)
        return known[word]

    return read


def _interface(text: str) -> bytes:
    """Encode a quoted interface name; a trailing star limits the comparison to the prefix."""
    given = text.strip('"').encode()
    if not text.startswith('"') or given in (b"", b"*") or b"\\" in given:
        raise ForeignRuleError(text)
    if len(given) >= _NAME_BYTES:
        raise RuleValueError(f"{text} is not an interface name")
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
#: Bit fields, which match if any of the bits is set.
BITS: Mapping[tuple[str, ...], tuple[bytes, bytes]] = {
    ("ct", "state", "new"): (conntrack(_CT_STATE, 1), host_order(8)),
    ("ct", "status", "dnat"): (conntrack(_CT_STATUS, 1), host_order(32)),
}


def address_port(words: Sequence[str]) -> bytes:
    """Encode an address and a port, as ``10.0.0.1 . 80``, as one value."""
    match words:
        case [address, ".", port]:
            return concatenated((address_bytes(address), port_bytes(port)))
        case _:
            raise ForeignRuleError(" ".join(words))


def single(field: PacketField, word: str) -> bytes:
    found = address_bytes(word)
    if len(found) != field.size:
        raise RuleValueError(f"{word} is an address of the other IP family")
    return element(found)


def range_of(field: PacketField, word: str) -> tuple[bytes, int]:
    """Encode a range: its first address, and its prefix length."""
    try:
        found = ip_network(word, strict=False)
    except ValueError:
        if not _PLAIN.fullmatch(word):
            raise ForeignRuleError(word) from None
        raise RuleValueError(f"{word} is not a address range") from None
    if not field.offset or found.max_prefixlen != field.size * 8:
        raise RuleValueError(f"{word} is not an address range of this family")
    return found.network_address.packed, found.prefixlen


def intervals(field: PacketField, words: Sequence[str]) -> list[bytes]:
    """Interval elements: the starts and ends of ranges, merged, as interval sets need them."""
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


_TOKEN = re.compile(r'"[^"]*"|[{},]|[^\s{},]+')
# linux/netfilter/nf_tables.h and its neighbours
_META_MARK = 3
_NAT_PORT_GIVEN, _FULLY_RANDOM = 0x2, 0x10
_ANONYMOUS, _CONSTANT, _INTERVAL, _MAP = 0x1, 0x2, 0x4, 0x8
_PORT_UNREACHABLE = {FAMILIES["ip"]: 3, FAMILIES["ip6"]: 4}
_INTEGER_TYPE, _VERDICT_TYPE = 4, 0xFFFFFF00
_ADDRESS_TYPE = {4: 7, 16: 8}
_ADDRESS_PORT_TYPE = {8: 7 << 6 | 13, 20: 8 << 6 | 13}
# Userdata that nft stores with a set; 1 is host byte order, 2 network.
_KEY_ORDER, _DATA_ORDER, _MERGED = 0, 1, 2
_HOST_FIRST, _NETWORK_FIRST, _YES = b"\1\0\0\0", b"\2\0\0\0", b"\1\0\0\0"
_MARKS = (("mark",), ("meta", "mark"))
_NOTHING = host_order(0)


class RuleCompiler(RuleWords):
    """Compiles rules into a batch: one message each, preceded by those of its anonymous sets."""

    def __init__(self, batch: NftBatch) -> None:
        super().__init__([])
        self._batch = batch
        self._set_id = 0
        self._family = 0
        self._word = ""
        self._table = b""
        self._line = 0
        self._made: list[bytes] = []
        self._comment = b""

    def next_set_id(self) -> int:
        """A number by which rules of the same batch refer to a set."""
        self._set_id += 1
        return self._set_id

    def add(self, family: str, table: str, chain: str, rule: str, *, line: int) -> None:
        """Compile a rule.

        Raises:
            ForeignRuleError: the rule has a construct that the node proxy does not write.
            RuleValueError: the rule has an invalid value.
        """
        if family not in FAMILIES:
            raise ForeignRuleError(family)
        self._family, self._word, self._table = FAMILIES[family], family, name(1, table)
        self._line, self._words, self._at = line, _TOKEN.findall(rule), 0
        self._made, self._comment = [], b""
        while self._at < len(self._words):
            self._statement()
        body = self._table + name(2, chain) + nested(4, *self._made) + self._comment
        self._batch.add(NftMessage.NEW_RULE, self._family, body, line=line, flags=CREATE | APPEND)

    @override
    def _unknown(self, what: str) -> ForeignRuleError:
        return ForeignRuleError(what)

    def _need(self, *words: str) -> None:
        if not self._take(*words):
            raise ForeignRuleError(" ".join(self._words[self._at : self._at + len(words)]))

    def _in_braces(self) -> list[list[str]]:
        self._need("{")
        return self._listed()

    # Statements.

    def _statement(self) -> None:
        for mark in _MARKS:
            if self._take(*mark):
                self._set_mark(mark) if self._take("set") else self._compare_mark()
                return
        for words, (load, bits) in BITS.items():
            if self._take(*words):
                self._made += (load, bitwise(bits, _NOTHING), compare(Compare.UNEQUAL, _NOTHING))
                return
        fields = self._fields()
        if fields:
            self._match(fields)
            return
        match self._next():
            case "comment":
                kept = user_data(comment(0, self._next().strip('"')))
                self._comment = attribute(7, kept)
            case "dnat":
                self._dnat()
            case "numgen":
                self._balance("vmap")
            case "update":
                self._update()
            case "masquerade":
                flags = _FULLY_RANDOM if self._take("fully-random") else 0
                self._made.append(masquerade(flags))
            case "reject" if self._family in _PORT_UNREACHABLE:
                self._made.append(reject(_PORT_UNREACHABLE[self._family]))
            case "jump" | "goto" as word:
                self._made.append(immediate(VERDICT, verdict_of((word, self._next()))))
            case word:
                self._made.append(immediate(VERDICT, verdict_of((word,))))

    def _set_mark(self, mark: tuple[str, ...]) -> None:
        self._need(*mark)
        operation, bits = self._next(), _bits(self._next())
        if operation not in ("or", "xor"):
            raise ForeignRuleError(operation)
        kept = 0xFFFFFFFF & ~bits if operation == "or" else 0xFFFFFFFF
        self._made += (
            meta(_META_MARK, 1),
            bitwise(host_order(kept), host_order(bits), operation=True),
            meta_set(_META_MARK, 1),
        )

    def _compare_mark(self) -> None:
        if not (self._take("&") or self._take("and")):
            raise ForeignRuleError("mark")
        mask = _bits(self._next())
        how = self._how()
        bits = _bits(self._next())
        self._made += (
            meta(_META_MARK, 1),
            bitwise(host_order(mask), _NOTHING, operation=True),
            compare(how, host_order(bits)),
        )

    def _how(self) -> Compare:
        if self._take("!="):
            return Compare.UNEQUAL
        self._take("==")
        return Compare.EQUAL

    # Matches.

    def _fields(self) -> list[PacketField]:
        found: list[PacketField] = []
        while True:
            for words, field in FIELDS.items():
                if self._take(*words):
                    # Other protocols would need a check of the packet's protocol first.
                    if words[0] in ("ip", "ip6") and words[0] != self._word:
                        raise ForeignRuleError(" ".join(words))
                    found.append(field)
                    break
            else:
                if found:
                    raise ForeignRuleError("the word after a dot")
                return found
            if not self._take("."):
                return found

    def _match(self, fields: list[PacketField]) -> None:
        if self._take("vmap"):
            self._load(fields)
            self._made.append(lookup(self._container(), result=VERDICT))
            return
        how = self._how()
        word = self._next()
        if word.startswith("@"):
            self._load(fields)
            self._made.append(lookup(word[1:], inverted=how is Compare.UNEQUAL))
        elif len(fields) > 1:
            raise ForeignRuleError(word)
        elif word == "{":
            self._at -= 1
            self._among(fields[0], how, [each for (each,) in self._in_braces()])
        elif "/" in word:
            self._within(fields[0], how, word)
        else:
            self._equal(fields[0], how, word)

    def _load(self, fields: list[PacketField]) -> None:
        used = 0
        for field in fields:
            # nft uses 16-byte register numbers where possible.
            register = 8 + used if used % 4 else 1 + used // 4
            self._made.append(field.load(register))
            used += (field.size + 3) // 4

    def _container(self) -> str:
        word = self._next()
        if not word.startswith("@"):
            raise ForeignRuleError(word)
        return word[1:]

    def _equal(self, field: PacketField, how: Compare, word: str) -> None:
        if field.read is None:
            raise ForeignRuleError(word)
        wanted = field.read(word)
        if field.offset and len(wanted) != field.size:
            raise RuleValueError(f"{word} is an address of the other IP family")
        self._made += (field.load(1), compare(how, wanted))

    def _within(self, field: PacketField, how: Compare, word: str) -> None:
        """Compare with a range; loads only its bytes if the prefix ends on a byte."""
        start, bits = range_of(field, word)
        if bits == field.size * 8:
            self._made += (field.load(1), compare(how, start))
        elif bits and bits % 8 == 0:
            size = bits // 8
            self._made += (
                payload(1, NETWORK_HEADER, field.offset, size), compare(how, start[:size]),
            )  # fmt: skip
        else:
            whole = field.size * 8
            mask = ((1 << bits) - 1 << whole - bits).to_bytes(field.size, "big")
            self._made += (
                field.load(1), bitwise(mask, bytes(field.size)), compare(how, start),
            )  # fmt: skip

    # Anonymous sets.

    def _among(self, field: PacketField, how: Compare, words: list[str]) -> None:
        if not field.offset:
            raise ForeignRuleError("an anonymous set of anything but addresses")
        if len(words) == 1:
            only = words[0]
            (self._within if "/" in only else self._equal)(field, how, only)
            return
        ranges = any("/" in word for word in words)
        elements = intervals(field, words) if ranges else [single(field, word) for word in words]
        kept = [(_KEY_ORDER, _NETWORK_FIRST)]
        if ranges:
            kept.append((_MERGED, _YES))
        key = number(4, _ADDRESS_TYPE[field.size]) + number(5, field.size)
        container, set_id = self._own(
            _CONSTANT | (_INTERVAL if ranges else 0), key, elements, user_data(*kept)
        )
        inverted = how is Compare.UNEQUAL
        self._made += (field.load(1), lookup(container, set_id=set_id, inverted=inverted))

    def _own(
        self, flags: int, types: bytes, elements: Sequence[bytes], kept: bytes
    ) -> tuple[str, int]:
        """Make an anonymous set or map, owned by the rule; the kernel names it."""
        container, set_id = "__map%d" if flags & _MAP else "__set%d", self.next_set_id()
        head = self._table + name(2, container)
        made = (
            head + number(3, flags | _ANONYMOUS) + types + number(10, set_id)
            + nested(9, number(1, len(elements))) + attribute(13, kept)
        )  # fmt: skip
        self._batch.add(NftMessage.NEW_SET, self._family, made, line=self._line, flags=CREATE)
        head += number(4, set_id)
        for listed, _ in element_lists(elements):
            self._batch.add(
                NftMessage.NEW_ELEMENTS, self._family, head + listed, line=self._line, flags=CREATE
            )
        return container, set_id

    # DNAT.

    def _dnat(self) -> None:
        if self._take("to"):
            address, _, port = self._next().rpartition(":")
            given = address_bytes(address.strip("[]"))
            self._made += (
                immediate(1, value(given)),
                immediate(2, value(port_bytes(port))),
                dnat(self._family, 2, flags=_NAT_PORT_GIVEN),
            )
            return
        self._need(self._word, "addr", ".", "port", "to", "numgen")
        size = self._balance("map")
        # A map's result starts at register 1; the port follows the address.
        self._made.append(dnat(self._family, 9 if size == 8 else 2))

    def _balance(self, kind: str) -> int:
        """Compile ``numgen random mod N map|vmap { … }``; returns the size of an element's data."""
        self._need("random", "mod")
        modulus = int(self._next())
        self._need(kind)
        if kind == "vmap":
            data = [verdict_of(words[2:]) for words in self._numbered()]
            types, size, result = number(6, _VERDICT_TYPE) + number(7, 0), 0, VERDICT
        else:
            values = [address_port(words[2:]) for words in self._numbered()]
            size, result = len(values[0]), 1
            types = number(6, _ADDRESS_PORT_TYPE[size]) + number(7, size)
            data = [value(each) for each in values]
        elements = [element(host_order(at), data=each) for at, each in enumerate(data)]
        key = number(4, _INTEGER_TYPE) + number(5, 4)
        kept = user_data((_KEY_ORDER, _HOST_FIRST), (_DATA_ORDER, _NOTHING))
        container, set_id = self._own(_CONSTANT | _MAP, key + types, elements, kept)
        self._made += (numgen_random(modulus), lookup(container, set_id=set_id, result=result))
        return size

    def _numbered(self) -> list[list[str]]:
        """The values in braces whose keys are the numbers from 0 on."""
        listed = self._in_braces()
        for at, words in enumerate(listed):
            if words[:2] != [str(at), ":"]:
                raise ForeignRuleError(" ".join(words))
        return listed

    def _update(self) -> None:
        container = self._container()
        self._need("{")
        self._load(self._fields())
        self._need("}")
        self._made.append(dynamic_update(container))


def _bits(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise ForeignRuleError(word) from None
