"""A DNS server over TCP that does what a test says, right or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from isthmus.values import HostPort

#: Takes a query; gives the messages to send, with their lengths in front, and None closes.
Reply = Callable[[dns.message.Message], Awaitable[list[bytes | None]]]


def framed(message: dns.message.Message | bytes) -> bytes:
    wire = message if isinstance(message, bytes) else message.to_wire()
    return len(wire).to_bytes(2, "big") + wire


def answer(query: dns.message.Message, *records: str, soa: int | None = None) -> bytes:
    """An answer with records such as ``www 60 IN A 192.0.2.1``."""
    response = dns.message.make_response(query)
    for record in records:
        name, ttl, _, kind, *data = record.split()
        response.answer.append(dns.rrset.from_text(f"{name}.", int(ttl), "IN", kind, *data))
    if soa is not None:
        text = f"ns.example. root.example. 1 2 3 4 {soa}"
        response.authority.append(dns.rrset.from_text(".", 3600, "IN", "SOA", text))
    return framed(response)


def refusal(query: dns.message.Message, rcode: str, soa: int | None = None) -> bytes:
    response = dns.message.from_wire(answer(query, soa=soa)[2:])
    response.set_rcode(dns.rcode.from_text(rcode))
    return framed(response)


def asked(query: dns.message.Message) -> tuple[str, str]:
    question = query.question[0]
    return question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)


class Zone:
    """Answers as a server would that has these names: kind and name to records' data."""

    def __init__(self, ttl_s: int = 60, soa: int | None = 30) -> None:
        self.ttl_s = ttl_s
        self.soa = soa
        self.names: dict[str, dict[str, list[str]]] = {}

    def put(self, name: str, kind: str, *data: str) -> None:
        self.names.setdefault(name.lower(), {})[kind] = list(data)

    async def reply(self, query: dns.message.Message) -> list[bytes | None]:
        name, kind = asked(query)
        records = self.names.get(name.lower())
        if records is None:
            return [refusal(query, "NXDOMAIN", self.soa)]
        made = []
        if "CNAME" in records:
            target = records["CNAME"][0]
            made = [f"{name} {self.ttl_s} IN CNAME {target}."]
            beyond = self.names.get(target.lower(), {})
            if kind in beyond:
                made.append(f"{target} {self.ttl_s} IN {kind} {' '.join(beyond[kind])}")
        if kind in records:
            made.append(f"{name} {self.ttl_s} IN {kind} {' '.join(records[kind])}")
        soa = self.soa if not made else None
        return [answer(query, *made, soa=soa)]


class StubDns:
    """The server; ``seen`` has every question, ``connections`` how often somebody connected."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.seen: list[tuple[str, str]] = []
        self.connections = 0
        self.open = 0
        self.at = HostPort("127.0.0.1", 1)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.at = HostPort("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Go away, and cut whoever is connected."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                query = dns.message.from_wire(await reader.readexactly(size))
                self.seen.append(asked(query))
                for each in await self.reply(query):
                    if each is None:
                        return
                    writer.write(each)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()
