"""Plain DNS messages that are read and written here: as dnspython has them, byte by byte."""

from __future__ import annotations

import contextlib

import dns.message
import dns.rcode
import dns.rrset
from hypothesis import given
from hypothesis import strategies as st

from isthmus.net import dns_messages
from isthmus.net.dns_messages import DnsAnswer, DnsError, DnsQuestion, question, read_answer

names = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True), min_size=1, max_size=5).map(
    ".".join
)
kinds = st.sampled_from(["A", "AAAA"])


def slowly(asked: DnsQuestion, wire: bytes) -> DnsAnswer | str:
    """What dnspython alone makes of it."""
    plain = DnsQuestion(name=asked.name, kind=asked.kind, id=asked.id, wire=asked.wire)
    try:
        return read_answer(plain, wire)
    except DnsError as exc:
        return str(exc)


def quickly(asked: DnsQuestion, wire: bytes) -> DnsAnswer | str:
    try:
        return read_answer(asked, wire)
    except DnsError as exc:
        return str(exc)


@given(names, kinds, st.booleans())
def test_a_question_is_what_dnspython_writes(name: str, kind: str, edns: bool) -> None:
    asked = question(name, kind, edns=edns)
    meant = dns.message.make_query(name + ".", kind, id=asked.id)
    if edns:
        meant.use_edns(0, payload=dns_messages.EDNS_BYTES)
    assert asked.plain_bytes and asked.wire == meant.to_wire()


@given(st.data(), names, kinds, st.booleans())
def test_an_answer_is_what_dnspython_reads(
    data: st.DataObject, name: str, kind: str, edns: bool
) -> None:
    asked = question(name, kind, edns=edns)
    addresses = st.ip_addresses(v=4 if kind == "A" else 6).map(str)
    found = data.draw(st.lists(addresses, max_size=70))
    answer = dns.message.make_response(asked.message)
    if found:
        ttl = data.draw(st.integers(0, 2**31 - 1))
        answer.answer.append(dns.rrset.from_text(name + ".", ttl, "IN", kind, *found))
    wire = bytearray(answer.to_wire())
    assert quickly(asked, bytes(wire)) == slowly(asked, bytes(wire))
    # And however it is damaged.
    for _ in range(data.draw(st.integers(0, 3))):
        wire[data.draw(st.integers(2, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire[: data.draw(st.integers(0, len(wire)))])
    for one in (bytes(wire), cut, bytes(wire) + b"\0"):
        assert quickly(asked, one) == slowly(asked, one)


def uncompressed(asked: DnsQuestion, wire: bytes) -> bytes:
    """The same answer as CoreDNS writes it: each record has the whole name again."""
    end = asked.plain_bytes
    return wire[:end] + wire[end:].replace(b"\xc0\x0c", asked.wire[12 : end - 4])


@given(st.data(), names, kinds, st.booleans())
def test_an_answer_without_pointers_is_what_dnspython_reads(
    data: st.DataObject, name: str, kind: str, edns: bool
) -> None:
    asked = question(name, kind, edns=edns)
    address = "192.0.2.1" if kind == "A" else "2001:db8::1"
    answer = dns.message.make_response(asked.message)
    answer.answer.append(dns.rrset.from_text(name + ".", 60, "IN", kind, address))
    wire = bytearray(uncompressed(asked, answer.to_wire()))
    assert quickly(asked, bytes(wire)) == slowly(asked, bytes(wire))
    wire[data.draw(st.integers(2, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire[: data.draw(st.integers(0, len(wire)))])
    for one in (bytes(wire), cut, bytes(wire) + b"\0"):
        assert quickly(asked, one) == slowly(asked, one)


@given(st.data(), names, kinds, st.booleans(), st.sampled_from(["NOERROR", "NXDOMAIN"]))
def test_a_denial_is_what_dnspython_reads(
    data: st.DataObject, name: str, kind: str, edns: bool, rcode: str
) -> None:
    asked = question(name, kind, edns=edns)
    answer = dns.message.make_response(asked.message)
    answer.set_rcode(dns.rcode.from_text(rcode))
    zone = name.partition(".")[2] + "."
    text = f"ns.{zone} root.{zone} 1 2 3 4 {data.draw(st.integers(0, 2**32 - 1))}"
    ttl = data.draw(st.integers(0, 2**31 - 1))
    answer.authority.append(dns.rrset.from_text(zone, ttl, "IN", "SOA", text.replace("..", ".")))
    wire = bytearray(answer.to_wire())
    assert quickly(asked, bytes(wire)) == slowly(asked, bytes(wire))
    # However it is damaged: nothing but a denial is made of it, unless dnspython makes more.
    for _ in range(data.draw(st.integers(0, 3))):
        wire[data.draw(st.integers(2, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire[: data.draw(st.integers(0, len(wire)))])
    for one in (bytes(wire), cut, bytes(wire) + b"\0"):
        quick, slow = quickly(asked, one), slowly(asked, one)
        if isinstance(slow, DnsAnswer):
            assert isinstance(quick, DnsAnswer)
            assert (quick.addresses, quick.exists) == (slow.addresses, slow.exists)
        else:
            assert quick == slow or (isinstance(quick, DnsAnswer) and not quick.addresses)


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_no_other(wire: bytes) -> None:
    asked = question("a.example", "A")
    with contextlib.suppress(DnsError):
        read_answer(asked, asked.wire[:2] + wire)
