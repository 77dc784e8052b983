"""SRV names, asked of a real DNS server on loopback."""

from __future__ import annotations

import asyncio

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
import uvloop

from isthmus.net.resolver import srv_targets
from isthmus.values import HostPort

ZONE = [
    "20 5 8091 late.example.com.",
    "10 1 8091 light.example.com.",
    "10 9 9091 heavy.example.com.",
]
UNUSABLE = ["0 0 8091 .", "0 0 0 zero.example.com.", "0 0 8091 bad-.example.com."]
RECORDS = {
    "_link._tcp.example.com.": ZONE,
    "_mixed._tcp.example.com.": [*UNUSABLE, "1 1 8091 good.example.com."],
    "_none._tcp.example.com.": UNUSABLE,
}


class NameServer(asyncio.DatagramProtocol):
    """Knows some SRV names; everything else does not exist."""

    transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        question = query.question[0]
        records = RECORDS.get(str(question.name))
        if records is not None:
            assert question.rdtype == dns.rdatatype.SRV
            answer.answer.append(dns.rrset.from_text_list(question.name, 60, "IN", "SRV", records))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)


async def ask(name: str, monkeypatch: pytest.MonkeyPatch) -> list[HostPort]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
    try:
        return await srv_targets(name)
    finally:
        transport.close()


def test_targets_come_by_priority_then_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uvloop.run(ask("_link._tcp.example.com", monkeypatch)) == [
        HostPort("heavy.example.com", 9091),
        HostPort("light.example.com", 8091),
        HostPort("late.example.com", 8091),
    ]


def test_a_name_that_does_not_exist_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"SRV _other\._tcp\.example\.com"):
        uvloop.run(ask("_other._tcp.example.com", monkeypatch))


def test_records_that_cannot_be_used_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = uvloop.run(ask("_mixed._tcp.example.com", monkeypatch))
    assert found == [HostPort("good.example.com", 8091)]


def test_no_record_that_can_be_used_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="no record names a host and a port"):
        uvloop.run(ask("_none._tcp.example.com", monkeypatch))
