"""DNS messages as questions and answers about addresses; dnspython reads and writes them.

Whatever a server sends is an Answer or a DnsError, never another exception. Carrying them is
dns_stream.py, asking and remembering tunnel_dns.py. Imports dnspython, so programs that resolve
nothing should not import this.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from isthmus.errors import IsthmusError

#: A server may say what it likes; nothing is believed for longer than this, and nothing shorter.
MOST_TTL_S = 300
LEAST_TTL_S = 1
_MOST_ADDRESSES = 64
_KINDS = {"A": dns.rdatatype.A, "AAAA": dns.rdatatype.AAAA}


class DnsError(IsthmusError):
    """A name could not be asked for.

    ``answered`` tells an answer that is an error (SERVFAIL) from no answer, or one that makes no
    sense: with an answer, the way to the server works.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One kind of address of one name, and the id that its answer has to have."""

    name: str
    kind: str
    id: int
    wire: bytes
    message: dns.message.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says: addresses, or none; ``ttl_s`` is how long that is worth keeping.

    ``ask_also`` is a name whose addresses the server left out: the last one of its CNAMEs.
    """

    addresses: tuple[str, ...]
    exists: bool
    ttl_s: int
    ask_also: str = ""


def question(name: str, kind: str) -> Question:
    """Ask for addresses of a complete name: kind ``A`` or ``AAAA``.

    Raises:
        DnsError: it is no name that DNS can have.
    """
    # Not to be guessed, though TCP is hard to answer for somebody else (RFC 5452 §9.2).
    number = secrets.randbelow(65536)
    try:
        complete = dns.name.from_text(name)
        asked = dns.message.make_query(complete, _KINDS[kind], id=number)
        wire = asked.to_wire()
    except (dns.exception.DNSException, UnicodeError) as exc:
        raise DnsError(f"{name!r} is no name that DNS can have", answered=True) from exc
    return Question(name=name, kind=kind, id=number, wire=wire, message=asked)


def wire_id(wire: bytes) -> int:
    """The id of a message, which has at least two bytes."""
    return int.from_bytes(wire[:2], "big")


def read_answer(asked: Question, wire: bytes) -> Answer:
    """Hold a message against the question and read it.

    Raises:
        DnsError: it is no answer to this question, makes no sense, or is an error.
    """
    try:
        got = dns.message.from_wire(wire)
        if not asked.message.is_response(got):
            raise DnsError("the answer is not to what was asked")
        return _read(asked, got)
    except DnsError:
        raise
    except dns.message.ChainTooLong as exc:
        # Of the name's owner, not of the way there: the tunnel must not be judged by it.
        raise DnsError("its CNAMEs go in a circle, or are too many", answered=True) from exc
    except dns.exception.DNSException as exc:
        raise DnsError(f"the answer makes no sense: {type(exc).__name__}") from exc
    except Exception as exc:  # whatever bytes can do to a parser
        raise DnsError("the answer makes no sense") from exc


def _read(asked: Question, got: dns.message.Message) -> Answer:
    if got.flags & dns.flags.TC:
        # RFC 7766 §5: TCP is where one goes when UDP is too short; there is nowhere else to go.
        raise DnsError("the answer is truncated, by TCP")
    rcode = got.rcode()
    if rcode not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise DnsError(f"answered {dns.rcode.to_text(rcode)}", answered=True)
    # is_response has seen that it is to our query, so it is a message of that kind.
    found = cast(dns.message.QueryMessage, got).resolve_chaining()
    ttl_s = max(LEAST_TTL_S, min(found.minimum_ttl, MOST_TTL_S))
    if found.answer is not None:
        addresses = tuple(rdata.to_text() for rdata in list(found.answer)[:_MOST_ADDRESSES])
        return Answer(addresses=addresses, exists=True, ttl_s=ttl_s)
    exists = rcode == dns.rcode.NOERROR
    # A CNAME to a name of another zone, whose addresses this server does not add.
    chained = exists and bool(found.cnames) and not _denied(got)
    last = found.canonical_name.to_text(omit_final_dot=True) if chained else ""
    return Answer(addresses=(), exists=exists, ttl_s=ttl_s, ask_also=last)


def _denied(got: dns.message.Message) -> bool:
    """The server says that the last name has no such addresses (RFC 2308 §2.2: an SOA)."""
    return any(rrset.rdtype == dns.rdatatype.SOA for rrset in got.authority)
