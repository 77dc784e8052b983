"""Queries DNS servers for the addresses of one complete name, by UDP and for long answers by TCP.

Both families are queried at once, from one socket per lookup and server: cancelling a lookup
closes it, and nothing remains. After a server that is silent, refuses or returns an error, the
next one is asked (resolv.conf(5)); messages that do not answer the question are skipped, because
the answer may follow. resolver.py chooses the names. Imports
dnspython, which takes 80 ms: import this module only where it is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from itertools import count

from isthmus.net.descriptors import as_it_is, for_a_peer
from isthmus.net.dns_messages import (
    DnsAnswer,
    DnsError,
    DnsQuestion,
    is_format_error,
    is_truncated,
    question,
    read_answer,
    wire_id,
)
from isthmus.net.rules_names import ResolvConf

#: RFC 8305 §3: with addresses of one family there is no long wait for the other.
OTHER_FAMILY_S = 1.0
_MOST_ALIASES = 8
#: A UDP answer has at most EDNS_BYTES; anything longer is not an answer.
_MOST_BYTES = 4096
#: Unrelated datagrams per round; after more of them the next server is asked.
_MOST_JUNK = 256
_KINDS = ("A", "AAAA")


class DnsClient:
    """Queries the servers of a resolv.conf, which is passed with each lookup."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, port: int, *, for_peers: bool = True
    ) -> None:
        """``for_peers`` False: its sockets may use the reserved descriptors."""
        self._loop = loop
        self._port = port
        self._opened = for_a_peer if for_peers else as_it_is
        self._turns = count()

    async def addresses(self, conf: ResolvConf, name: str) -> tuple[str, ...]:
        """All addresses of a complete name; empty if the name or its addresses do not exist.

        Raises:
            DnsError: no server gave a usable answer.
        """
        kinds: Sequence[str] = _KINDS if conf.ask_ipv6 else _KINDS[:1]
        for _ in range(_MOST_ALIASES + 1):
            inquiry = _Inquiry(self._loop, conf, self._port, name, kinds, self._opened)
            await inquiry.run(self._servers(conf))
            if inquiry.addresses or not inquiry.elsewhere:
                return inquiry.result()
            name = next(iter(inquiry.elsewhere.values()))
            kinds = list(inquiry.elsewhere)
        raise DnsError(f"more than {_MOST_ALIASES} CNAMEs", answered=True)

    def _servers(self, conf: ResolvConf) -> list[str]:
        first = next(self._turns) % len(conf.servers) if conf.rotate else 0
        return [*conf.servers[first:], *conf.servers[:first]]


class _Inquiry:
    """The lookup of one name at one server after the other, until both families are answered."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        conf: ResolvConf,
        port: int,
        name: str,
        kinds: Sequence[str],
        opened: Callable[[socket.socket], socket.socket],
    ) -> None:
        self._loop = loop
        self._conf = conf
        self._port = port
        self._name = name
        self._kinds = kinds
        self._opened = opened
        self._edns = conf.edns
        self._answers: dict[str, DnsAnswer] = {}
        self._failure: DnsError | None = None

    @property
    def addresses(self) -> list[str]:
        """The addresses found, of both families."""
        return [address for answer in self._answers.values() for address in answer.addresses]

    @property
    def elsewhere(self) -> dict[str, str]:
        """The last CNAME of each family whose addresses were left out."""
        return {kind: it.ask_also for kind, it in self._answers.items() if it.ask_also}

    def result(self) -> tuple[str, ...]:
        """The addresses; one family may fail if the other has addresses.

        Raises:
            DnsError: no addresses, and not every family was answered.
        """
        if not self.addresses and self._unanswered:
            raise self._failure or DnsError("no DNS server was asked")
        return tuple(self.addresses)

    @property
    def _unanswered(self) -> list[str]:
        return [kind for kind in self._kinds if kind not in self._answers]

    async def run(self, servers: Sequence[str]) -> None:
        """Ask until both are answered, or one has addresses and the other is late."""
        for _ in range(self._conf.attempts):
            for server in servers:
                try:
                    await self._round(server)
                except OSError as exc:  # includes TimeoutError, whose text is ours
                    why = exc.strerror or str(exc) or type(exc).__name__
                    self._failure = DnsError(f"DNS server {server}: {why}")
                if not self._unanswered or self.addresses:
                    return

    async def _round(self, server: str) -> None:
        long = self._unanswered
        if not self._conf.use_tcp:
            long = await self._by_udp(server)
        for kind in long:
            await self._by_tcp(server, question(self._name, kind, edns=self._edns))

    async def _by_udp(self, server: str) -> list[str]:
        """Query the missing families; returns those whose answers are too long for UDP."""
        truncated: list[str] = []
        waiting: dict[int, DnsQuestion] = {}
        due = self._loop.time() + self._conf.timeout_s
        with self._open(server, socket.SOCK_DGRAM) as sock:
            sock.connect((server, self._port))
            for kind in self._unanswered:
                self._send(sock, kind, waiting)
            junk = 0
            try:
                async with asyncio.timeout_at(due) as timer:
                    while waiting and junk < _MOST_JUNK:
                        wire = await self._receive(sock)
                        asked = waiting.get(wire_id(wire)) if len(wire) >= 2 else None
                        if asked is None or not self._take(server, asked, wire, truncated):
                            junk += 1
                            continue
                        del waiting[asked.id]
                        if self._edns and is_format_error(wire):
                            self._edns = False
                            self._send(sock, asked.kind, waiting)
                        if waiting and self.addresses:
                            timer.reschedule(min(due, self._loop.time() + OTHER_FAMILY_S))
            except TimeoutError:
                text = f"DNS server {server}: no answer within {self._conf.timeout_s} s"
                self._failure = DnsError(text)
            if junk >= _MOST_JUNK:
                self._failure = DnsError(f"DNS server {server}: {junk} unrelated messages")
        return truncated

    async def _receive(self, sock: socket.socket) -> bytes:
        try:
            return sock.recv(_MOST_BYTES)  # the other family's answer has usually arrived
        except BlockingIOError:
            return await self._loop.sock_recv(sock, _MOST_BYTES)

    def _send(self, sock: socket.socket, kind: str, waiting: dict[int, DnsQuestion]) -> None:
        asked = question(self._name, kind, edns=self._edns)
        while asked.id in waiting:
            asked = question(self._name, kind, edns=self._edns)
        waiting[asked.id] = asked
        sock.send(asked.wire)

    def _take(self, server: str, asked: DnsQuestion, wire: bytes, truncated: list[str]) -> bool:
        """Read a message with the right id; False if it does not answer the question."""
        if is_truncated(wire):
            truncated.append(asked.kind)
            return True
        try:
            self._answers[asked.kind] = read_answer(asked, wire)
        except DnsError as exc:
            if not exc.answered:
                return False  # spoofed or damaged: the right answer may follow
            self._failure = DnsError(f"DNS server {server}: {exc}", answered=True)
        return True

    async def _by_tcp(self, server: str, asked: DnsQuestion) -> None:
        """Query one family.

        Raises:
            OSError: the server cannot be reached, closes, or does not answer in time.
        """
        timeout_s = float(self._conf.timeout_s)
        if self.addresses:
            timeout_s = min(timeout_s, OTHER_FAMILY_S)
        try:
            async with asyncio.timeout(timeout_s):
                wire = await self._exchange(server, asked.wire)
        except TimeoutError:
            text = f"DNS server {server}: no answer by TCP within {timeout_s:g} s"
            self._failure = DnsError(text)
            return
        try:
            self._answers[asked.kind] = read_answer(asked, wire)
        except DnsError as exc:
            self._failure = DnsError(f"DNS server {server}: {exc}", answered=exc.answered)

    async def _exchange(self, server: str, wire: bytes) -> bytes:
        with self._open(server, socket.SOCK_STREAM) as sock:
            await self._loop.sock_connect(sock, (server, self._port))
            await self._loop.sock_sendall(sock, len(wire).to_bytes(2, "big") + wire)
            size = int.from_bytes(await self._read(sock, 2), "big")
            return await self._read(sock, size)

    async def _read(self, sock: socket.socket, size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = await self._loop.sock_recv(sock, size - len(got))
            if not more:
                raise ConnectionResetError("closed the connection before it answered")
            got += more
        return got

    def _open(self, server: str, kind: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        return self._opened(socket.socket(family, kind | socket.SOCK_NONBLOCK))
