"""Asks a DNS server that is reached by one of our dialers, and remembers what it says.

Every question goes by TCP: a tunnel carries nothing else. A connection is used for as many
questions as its server likes; the addresses of both families are asked for at once. Whatever a
server does, asking ends within its deadline with addresses, with none, or with a DnsError.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from isthmus.errors import DialError
from isthmus.net.dns_messages import LEAST_TTL_S, Answer, DnsError, question
from isthmus.net.dns_stream import DnsStream, StreamOverError
from isthmus.net.reaching import AnyDialer, reach_by
from isthmus.values import HostPort

LOOKUP_S = 5.0
IDLE_S = 10.0
OTHER_FAMILY_S = 1.0
#: A lookup that is younger is not given up for another one.
YOUNG_S = 1.0
TOO_MANY = "too many lookups are waiting for answers"
_MOST_NAMES = 4096
_MOST_PENDING = 512
_MOST_ALIASES = 8
_MOST_STREAMS = 3
_KINDS = ("A", "AAAA")

_Key = tuple[HostPort, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The addresses of a name, none where it has none; ``remembered``: nobody was asked for it."""

    addresses: tuple[str, ...]
    ttl_s: int
    remembered: bool = False


class _Pending:
    """One lookup under way, for everybody who wants it."""

    __slots__ = ("began_at", "given_up", "task", "waiters")

    def __init__(self, task: asyncio.Task[Found], began_at: float) -> None:
        self.task = task
        self.waiters = 0
        self.began_at = began_at
        self.given_up = False


class TunnelDns:
    """Looks names up at the servers that it is told of."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dialer: AnyDialer,
        *,
        timeout_s: float = LOOKUP_S,
        idle_s: float = IDLE_S,
        most_names: int = _MOST_NAMES,
        most_pending: int = _MOST_PENDING,
    ) -> None:
        self._loop = loop
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._most_names = most_names
        self._most_pending = most_pending
        self._stream: tuple[HostPort, DnsStream] | None = None
        self._opening = asyncio.Lock()
        self._kept: OrderedDict[_Key, tuple[float, Found]] = OrderedDict()
        self._pending: dict[_Key, _Pending] = {}

    def __repr__(self) -> str:
        return f"<TunnelDns {len(self._kept)} names, {len(self._pending)} under way>"

    def known(self, server: HostPort, name: str) -> Found | None:
        """What is remembered of a name, for as long as its server said."""
        key = (server, name)
        until, found = self._kept.get(key, (0.0, None))
        if found is None:
            return None
        if until <= self._loop.time():
            del self._kept[key]
            return None
        return replace(found, remembered=True)

    def forget(self, name: str) -> None:
        """Ask again next time: its addresses were of no use."""
        for key in [key for key in self._kept if key[1] == name]:
            del self._kept[key]

    async def lookup(self, server: HostPort, name: str, *, fresh: bool = False) -> Found:
        """Ask a server for the addresses of a complete name, IPv4 and IPv6 in turns.

        ``fresh`` asks even for what is remembered. When whoever waits is cancelled, so is the
        asking, unless others wait for it too.

        Raises:
            DnsError: there was no answer that can be used.
        """
        found = None if fresh else self.known(server, name)
        if found is not None:
            return found
        key = (server, name)
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= self._most_pending and not self._make_room():
                raise DnsError(TOO_MANY)
            task = self._loop.create_task(self._ask(server, name), name=f"dns:{name}")
            pending = self._pending[key] = _Pending(task, self._loop.time())
            task.add_done_callback(lambda done: self._done(key, done))
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if pending.given_up and waiter is not None and not waiter.cancelling():
                raise DnsError(TOO_MANY) from None
            raise
        finally:
            pending.waiters -= 1
            if not pending.waiters and self._pending.get(key) is pending:
                # Before it has ended: whoever comes now must not wait for what is cancelled.
                del self._pending[key]
                pending.task.cancel()

    def _make_room(self) -> bool:
        """Give up the oldest lookup, the likeliest to never be answered, unless it is young."""
        key = next(iter(self._pending), None)
        if key is None or self._loop.time() - self._pending[key].began_at < YOUNG_S:
            return False
        oldest = self._pending.pop(key)
        oldest.given_up = True
        oldest.task.cancel()
        return True

    def _done(self, key: _Key, task: asyncio.Task[Found]) -> None:
        pending = self._pending.get(key)
        if pending is not None and pending.task is task:
            del self._pending[key]
        if task.cancelled() or task.exception() is not None:
            return
        found = task.result()
        self._kept.pop(key, None)
        self._kept[key] = (self._loop.time() + found.ttl_s, found)
        while len(self._kept) > self._most_names:
            self._kept.popitem(last=False)

    async def close(self) -> None:
        """Give up every lookup, and the connection."""
        tasks = [pending.task for pending in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream[1].cut()
            self._stream = None

    # Asking.

    async def _ask(self, server: HostPort, name: str) -> Found:
        asking = [
            self._loop.create_task(self._follow(server, name, kind), name=f"dns:{name}:{kind}")
            for kind in _KINDS
        ]
        try:
            done, late = await asyncio.wait(
                asking, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if late:
                # RFC 8305 §3: with addresses of one family there is no long wait for the other.
                useful = any(not task.exception() and task.result().addresses for task in done)
                left_s = OTHER_FAMILY_S if useful else self._timeout_s
                done, late = await asyncio.wait(asking, timeout=left_s if done else 0)
            if late and self._stream is not None and self._stream[0] == server:
                self._stream[1].tired = True  # nobody has to wait behind what does not answer
            silent = DnsError(f"{server}: no answer within {self._timeout_s:g} s")
            return _merged([silent if task in late else _outcome(task) for task in asking])
        finally:
            for task in asking:
                task.cancel()

    async def _follow(self, server: HostPort, name: str, kind: str) -> Answer:
        """Ask for one kind of address, and for those of the CNAMEs that the server leaves open."""
        ttl_s: int | None = None
        for _ in range(_MOST_ALIASES):
            answer = await self._ask_once(server, name, kind)
            ttl_s = answer.ttl_s if ttl_s is None else min(ttl_s, answer.ttl_s)
            if not answer.ask_also:
                return replace(answer, ttl_s=ttl_s)
            name = answer.ask_also
        raise DnsError(f"{server}: more than {_MOST_ALIASES} CNAMEs", answered=True)

    async def _ask_once(self, server: HostPort, name: str, kind: str) -> Answer:
        for left in reversed(range(_MOST_STREAMS)):
            stream, reused = await self._stream_to(server)
            asked = question(name, kind)
            while stream.has(asked.id):
                asked = question(name, kind)
            try:
                return await stream.ask(asked)
            except StreamOverError as exc:
                # RFC 7766 §6.2.4: a server closes when it likes, often just as we ask again.
                if left and (reused or exc.again):
                    continue
                raise DnsError(f"{server}: {exc}") from exc
            except DnsError as exc:
                raise DnsError(f"{server}: {exc}", answered=exc.answered) from exc
        raise AssertionError("the last attempt returns or raises")

    async def _stream_to(self, server: HostPort) -> tuple[DnsStream, bool]:
        """The connection to a server, and whether it was there before."""
        async with self._opening:
            if self._stream is not None:
                at, stream = self._stream
                if at == server and stream.usable:
                    return stream, True
                stream.tired = True
                stream.rest()
                self._stream = None
            try:
                end = await reach_by(self._dialer, server, self._timeout_s)
            except DialError as exc:
                why = f"{exc.reason.value}: {exc.detail}" if exc.detail else exc.reason.value
                raise DnsError(f"{server}: {why}") from exc
            stream = DnsStream(self._loop, idle_s=self._idle_s)
            self._stream = (server, stream)
            stream.attach(end)
            return stream, False


def _outcome(task: asyncio.Task[Answer]) -> Answer | BaseException:
    return task.exception() or task.result()


def _merged(answers: list[Answer | BaseException]) -> Found:
    """Put what was said of both families together; one may fail where the other has addresses."""
    good = [each for each in answers if isinstance(each, Answer)]
    bad = [each for each in answers if isinstance(each, BaseException)]
    for each in bad:
        if not isinstance(each, DnsError):
            raise each
    useful = [each for each in good if each.addresses]
    if bad and not useful:
        raise bad[0]
    ttl_s = min(each.ttl_s for each in useful or good)
    families = [each.addresses for each in useful]
    addresses = tuple(each for each in chain(*zip_longest(*families)) if each is not None)
    return Found(addresses=addresses, ttl_s=LEAST_TTL_S if bad else ttl_s)
