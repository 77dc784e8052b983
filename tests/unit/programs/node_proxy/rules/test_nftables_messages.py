"""Our rules as messages for the kernel, beside those that nft made of the same text.

``nft-1.0.6.hex`` has what nft handed to sendmsg for ``rules.nft``, a message to a line.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.net.rules_nft_encoding import SUBSYSTEM, NftMessage
from isthmus.programs.node_proxy.rules.nftables.compiling import (
    ForeignRuleError,
    RuleValueError,
    compiled,
)

GOLDEN = Path(__file__).parents[4] / "golden" / "nftables_messages"
NESTED = 0x8000
HEADER = struct.Struct("=IHHIIBBH")
ACK = 0x4
TABLE = "add table ip t\nadd chain ip t c\n"


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, family and attributes of each message between the batch's ends."""
    while data:
        size, kind, flags, _, _, family, *_ = HEADER.unpack_from(data)
        if kind >= SUBSYSTEM:
            yield kind - SUBSYSTEM, flags & ~ACK, family, data[HEADER.size : size]
        data = data[(size + 3) & ~3 :]


def tree(data: bytes) -> list[tuple[int, Any]]:
    """Attributes by kind; those of one kind in their order."""
    found: list[tuple[int, Any]] = []
    while data:
        size, kind = struct.unpack_from("=HH", data)
        value = data[4:size]
        found.append((kind & ~NESTED, tree(value) if kind & NESTED else value))
        data = data[(size + 3) & ~3 :]
    return sorted(found, key=lambda each: each[0])


def comparable(kind: int, flags: int, family: int, data: bytes) -> Any:
    """A message without what is free: numbers and sizes of sets, and what nft notes of them."""
    attributes = tree(data)
    if kind == NftMessage.NEW_SET:
        attributes = [each for each in attributes if each[0] not in (9, 10, 13)]
    if kind in (NftMessage.NEW_ELEMENTS, NftMessage.DELETE_ELEMENTS):
        attributes = [each for each in attributes if each[0] != 4]
    if kind == NftMessage.NEW_RULE:
        attributes = [_without_set_ids(each) for each in attributes]
    return kind, flags, family, attributes


def _without_set_ids(attribute: tuple[int, Any]) -> tuple[int, Any]:
    kind, value = attribute
    if kind != 4:
        return attribute
    expressions = []
    for _, ((_, name), (_, details)) in value:
        number = {b"lookup\0": 4, b"dynset\0": 2}.get(name)
        expressions.append((name, [each for each in details if each[0] != number]))
    return kind, expressions


@pytest.mark.skipif(sys.byteorder != "little", reason="the messages are of a little endian machine")
def test_messages_are_those_of_nft() -> None:
    lines = (GOLDEN / "nft-1.0.6.hex").read_text().splitlines()
    wanted = [comparable(*each) for each in messages(b"".join(map(bytes.fromhex, lines)))]
    batch = compiled((GOLDEN / "rules.nft").read_text())
    found = [comparable(*each) for each in messages(bytes(batch.finished()))]
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == theirs


def test_a_batch_has_its_ends_and_asks_for_one_answer() -> None:
    data = bytes(compiled(TABLE).finished())
    size, kind, _, sequence, _, _, _, subsystem = HEADER.unpack_from(data)
    assert (size, kind, sequence) == (20, 0x10, 0)
    assert subsystem.to_bytes(2, sys.byteorder) == b"\0\x0a"
    assert HEADER.unpack_from(data, len(data) - 20)[1] == 0x11
    flags, at = [], 0
    while at < len(data):
        flags.append(HEADER.unpack_from(data, at)[2] & ACK)
        at += HEADER.unpack_from(data, at)[0]
    assert flags == [0, 0, ACK, 0]


@pytest.mark.parametrize(
    "rule",
    [
        "ip dscp 46 accept",
        "meta skuid 0 accept",
        "ip6 saddr fd00::/8 accept",
        "tcp dport 80 accept",
        "ct state established accept",
        "iifname { a, b } accept",
        "meta mark 0x1 accept",
        "counter accept",
        "ip saddr . ip daddr { 1.1.1.1 . 2.2.2.2 } accept",
        "jump",
        "dnat to",
        "numgen inc mod 2 vmap { 0 : drop }",
        "numgen random mod x vmap { 0 : drop }",
        "reject with tcp reset",
        'log prefix "x"',
        "ip saddr 10.0.0.1-10.0.0.9 accept",
        "ip saddr localhost accept",
        "ip saddr { 10.0.0.1-10.0.0.9 , 10.1.0.0/16 } accept",
        "iifname eth0 accept",
        'iifname "eth\\*" accept',
        "th dport 80 accept",
        "ip saddr vmap { 1.1.1.1 : drop }",
        "{ } drop",
    ],
)
def test_words_of_others_are_told(rule: str) -> None:
    with pytest.raises(ForeignRuleError) as raised:
        compiled(f"{TABLE}add rule ip t c {rule}\n")
    assert raised.value.rule == f"add rule ip t c {rule}"


@pytest.mark.parametrize(
    "line",
    ["add", "add table", "add counter ip t x", "add chain ip t", "add set ip t x",
     "add set ip t x { type mark ; }", "add set ip t x { type ipv4_addr ; flags interval ; }",
     "add chain ip t x { type nat hook ingress priority 0 ; }",
     "add chain ip t x { policy drop ; }",
     "add chain ip t x { type nat hook input priority high ; }",
     "add table inet x", "reset rules", "add element ip t x {", "add rule inet t c drop",
     "garbage"],
)  # fmt: skip
def test_commands_of_others_are_told(line: str) -> None:
    with pytest.raises(ForeignRuleError):
        compiled(f"{line}\n")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("add rule ip t c ip saddr 10.0.0.256 drop\n", "10.0.0.256"),
        ("add rule ip t c ip saddr fd00::1 drop\n", "fd00::1"),
        ("add rule ip t c ip saddr 10.0.0.0/33 drop\n", "10.0.0.0/33"),
        ("add rule ip t c ip saddr { fd00::/8 , 10.0.0.0/8 } drop\n", "fd00::/8"),
        ("add rule ip t c meta l4proto tcp dnat to 10.0.0.1:65536\n", "65536"),
        ('add rule ip t c iifname "sixteencharacter" drop\n', "sixteen"),
        ("add element ip t s {\n1.2.3.4,\n1.2.3.400\n}\n", "1.2.3.400"),
        ("add element ip t s {\n1.2.3.4 . tcp . 99999\n}\n", "99999"),
    ],
)
def test_values_that_are_none_are_told(text: str, rule: str) -> None:
    with pytest.raises(RuleValueError) as raised:
        compiled(TABLE + text)
    assert rule in raised.value.rule


def test_many_elements_are_several_messages_and_a_refusal_finds_its_line() -> None:
    count = 10_000
    elements = ",\n".join(f"10.{n >> 8}.{n & 255}.1 . tcp . 80 : drop" for n in range(count))
    text = f"{TABLE}add element ip t s {{\n{elements}\n}}\n"
    batch = compiled(text)
    data = bytes(batch.finished())
    sizes = [len(body) for kind, _, _, body in messages(data) if kind == NftMessage.NEW_ELEMENTS]
    assert len(sizes) > 1
    assert max(sizes) < 65_536
    # The kernel says where in which message it met what it does not like.
    looked = text.splitlines().index("10.30.15.1 . tcp . 80 : drop,") + 1
    at, sequence = 0, 0
    while at < len(data):
        size = HEADER.unpack_from(data, at)[0]
        place = data.find(bytes((10, 30, 15, 1, 6)), at, at + size)
        if place >= 0:
            # Its key is four attributes deep: list, element, key, value.
            assert batch.line_at(sequence, place - at - 12) == looked
            return
        at, sequence = at + size, sequence + 1
    pytest.fail("the element is in no message")
