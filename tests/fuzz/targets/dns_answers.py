"""DNS messages: an answer to what was asked, or DnsError; never more addresses than allowed."""

from contextlib import suppress
from ipaddress import ip_address

from isthmus.net.dns_messages import LEAST_TTL_S, MOST_TTL_S, DnsError, question, read_answer

_ASKED = question("kubelet.example.test", "A")


def check(data: bytes) -> None:
    """Read the bytes as the answer, once with the right id."""
    for wire in (data, _ASKED.wire[:2] + data[2:]):
        with suppress(DnsError):
            answer = read_answer(_ASKED, wire)
            assert LEAST_TTL_S <= answer.ttl_s <= MOST_TTL_S and len(answer.addresses) <= 64
            for address in answer.addresses:
                ip_address(address)
    with suppress(DnsError):
        question(data.decode("latin-1"), "AAAA")
