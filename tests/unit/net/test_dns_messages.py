"""Reading answers of DNS servers: right ones, wrong ones, and those to somebody else."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.rrset
import pytest
from dns_stub import answer, framed, refusal

from isthmus.net.dns_messages import (
    MOST_TTL_S,
    DnsAnswer,
    DnsError,
    DnsQuestion,
    question,
    read_answer,
)


def made(name: str = "www.example.com", kind: str = "A") -> DnsQuestion:
    return question(name, kind)


def query(asked: DnsQuestion) -> dns.message.Message:
    return dns.message.from_wire(asked.wire)


def read(asked: DnsQuestion, sent: bytes) -> DnsAnswer:
    assert int.from_bytes(sent[:2], "big") == len(sent) - 2
    return read_answer(asked, sent[2:])


def test_a_question_is_a_recursive_query_for_one_complete_name() -> None:
    asked = made("WWW.example.com", "AAAA")
    wire = asked.wire
    assert wire[:2] == asked.id.to_bytes(2, "big")
    # RFC 1035 §4.1.1 and §4.1.2: RD alone, one question; the name's labels, AAAA, IN.
    assert wire[2:12] == bytes.fromhex("0100 0001 0000 0000 0000")
    assert wire[12:] == b"\x03WWW\x07example\x03com\x00" + bytes.fromhex("001c 0001")


def test_addresses_come_with_the_least_ttl_of_the_chain() -> None:
    asked = made("www")
    chain = ("www 60 IN CNAME a.", "a 20 IN CNAME b.", "b 40 IN A 192.0.2.1 192.0.2.2")
    got = read(asked, answer(query(asked), *chain))
    # The order is the server's, which shuffles.
    assert sorted(got.addresses) == ["192.0.2.1", "192.0.2.2"]
    assert (got.exists, got.ttl_s, got.ask_also) == (True, 20, "")


def test_a_chain_whose_end_is_left_out_is_to_be_asked_for() -> None:
    asked = made("www")
    got = read(asked, answer(query(asked), "www 60 IN CNAME far.example.org."))
    assert (got.addresses, got.ask_also) == ((), "far.example.org")


def test_a_chain_to_a_name_without_such_addresses_is_no_address() -> None:
    asked = made("www")
    got = read(asked, answer(query(asked), "www 60 IN CNAME far.", soa=30))
    assert (got.addresses, got.exists, got.ask_also) == ((), True, "")


def test_a_name_that_does_not_exist_is_remembered_as_the_soa_says() -> None:
    asked = made()
    got = read(asked, refusal(query(asked), "NXDOMAIN", soa=17))
    assert got == DnsAnswer(addresses=(), exists=False, ttl_s=17)


def test_no_ttl_is_believed_for_ever_nor_none_at_all() -> None:
    asked = made("www")
    assert read(asked, answer(query(asked), "www 9999999 IN A 192.0.2.1")).ttl_s == MOST_TTL_S
    assert read(asked, answer(query(asked), "www 0 IN A 192.0.2.1")).ttl_s == 1


@pytest.mark.parametrize("rcode", ["SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"])
def test_an_error_is_an_answer_nevertheless(rcode: str) -> None:
    asked = made()
    with pytest.raises(DnsError, match=rcode) as caught:
        read(asked, refusal(query(asked), rcode))
    assert caught.value.answered


def wrong_id(asked: DnsQuestion) -> bytes:
    other = query(asked)
    other.id = (asked.id + 1) % 65536
    return answer(other, "www.example.com 60 IN A 192.0.2.1")


def wrong_name(asked: DnsQuestion) -> bytes:
    other = dns.message.make_query("evil.example.com", "A", id=asked.id)
    return answer(other, "evil.example.com 60 IN A 192.0.2.1")


def wrong_kind(asked: DnsQuestion) -> bytes:
    return answer(dns.message.make_query("www.example.com", "AAAA", id=asked.id))


def no_response(asked: DnsQuestion) -> bytes:
    return framed(asked.wire)


def truncated(asked: DnsQuestion) -> bytes:
    response = dns.message.make_response(query(asked))
    response.flags |= dns.flags.TC
    return framed(response)


def cut(asked: DnsQuestion) -> bytes:
    return framed(answer(query(asked), "www.example.com 60 IN A 192.0.2.1")[2:-3])


def junk_behind(asked: DnsQuestion) -> bytes:
    return framed(answer(query(asked), "www.example.com 60 IN A 192.0.2.1")[2:] + b"junk")


def circle(asked: DnsQuestion) -> bytes:
    return answer(query(asked), "www.example.com 9 IN CNAME a.", "a 9 IN CNAME www.example.com.")


def answer_for_nobody(asked: DnsQuestion) -> bytes:
    response = dns.message.from_wire(answer(query(asked), "www.example.com 60 IN A 192.0.2.1")[2:])
    response.set_rcode(dns.rcode.NXDOMAIN)
    return framed(response)


def header_only(asked: DnsQuestion) -> bytes:
    return framed(asked.id.to_bytes(2, "big") + bytes(10))


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_id,
        wrong_name,
        wrong_kind,
        no_response,
        truncated,
        cut,
        junk_behind,
        answer_for_nobody,
        header_only,
    ],
)
def test_what_is_no_answer_is_an_error_and_no_crash(wrong: object) -> None:
    asked = made()
    with pytest.raises(DnsError) as caught:
        read(asked, wrong(asked))  # type: ignore[operator]
    assert not caught.value.answered


def test_names_in_a_circle_are_a_wrong_answer_and_an_answer() -> None:
    asked = made()
    with pytest.raises(DnsError, match="loop") as caught:
        read(asked, circle(asked))
    assert caught.value.answered  # whoever owns a name must not make the way there look broken


@pytest.mark.parametrize("name", ["a" * 64 + ".example", ".".join(["abcdefgh"] * 40), "a..b"])
def test_what_dns_cannot_have_is_not_asked_for(name: str) -> None:
    with pytest.raises(DnsError, match="not a valid DNS name"):
        question(name, "A")


#: RFC 1035 §3.3.13: two names, four numbers, and 30 as the minimum.
SOA = b"\x02ns\0\x04root\0" + bytes.fromhex("00000001 00000002 00000003 00000004 0000001e")
DENIAL = b"\x03com\0" + bytes.fromhex("0006 0001 0000003c") + len(SOA).to_bytes(2, "big") + SOA
FOUND = bytes.fromhex("0001 0001 0000003c 0004 c0000201")
NAME = b"\x03www\x07example\x03com\0"


@pytest.mark.parametrize(
    ("flags_and_counts", "rest", "meant"),
    [
        ("8583 0001 0000 0001 0000", DENIAL, DnsAnswer(addresses=(), exists=False, ttl_s=30)),
        ("8180 0001 0000 0001 0000", DENIAL, DnsAnswer(addresses=(), exists=True, ttl_s=30)),
        ("8183 0001 0000 0000 0000", b"", DnsAnswer(addresses=(), exists=False, ttl_s=MOST_TTL_S)),
        (
            "8580 0001 0001 0000 0000",
            NAME + FOUND,  # CoreDNS uses no pointers
            DnsAnswer(addresses=("192.0.2.1",), exists=True, ttl_s=60),
        ),
    ],
)
def test_the_usual_answers_of_a_search_list_cost_no_dnspython(
    monkeypatch: pytest.MonkeyPatch, flags_and_counts: str, rest: bytes, meant: DnsAnswer
) -> None:
    asked = made()
    wire = asked.wire[:2] + bytes.fromhex(flags_and_counts) + asked.wire[12:] + rest

    def refuse(*_: object) -> None:
        raise AssertionError("dnspython was asked")

    monkeypatch.setattr(dns.message, "from_wire", refuse)
    assert read_answer(asked, wire) == meant
