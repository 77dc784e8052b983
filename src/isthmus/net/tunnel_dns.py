"""Queries a DNS server through one of our dialers, and caches its answers.

Every query uses TCP, because a tunnel carries nothing else. A connection is used for as many
queries as its server allows; the addresses of both families are queried at once. Whatever a
server does, a query ends within its deadline with addresses, without any, or with a DnsError.

A DnsStream is DNS over one byte stream (RFC 1035 §4.2.2, RFC 7766): several queries at once, in
any order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from isthmus.errors import DialError
from isthmus.net.connect import AnyDialer, reach_by
from isthmus.net.dns_messages import (
    LEAST_TTL_S,
    DnsAnswer,
    DnsError,
    DnsQuestion,
    question,
    read_answer,
    wire_id,
)
from isthmus.tunnel.end import GONE, Early, End, Ending, join
from isthmus.values import HostPort

LOOKUP_S = 5.0
IDLE_S = 10.0
OTHER_FAMILY_S = 1.0
#: A younger lookup is not dropped for another one.
YOUNG_S = 1.0
TOO_MANY = "too many lookups are waiting for answers"
_MOST_NAMES = 4096
_MOST_PENDING = 512
_MOST_ALIASES = 8
_MOST_STREAMS = 3
_KINDS = ("A", "AAAA")
_HEADER_BYTES = 12
_LENGTH_BYTES = 2
#: The number of unexpected answers that are skipped before a server counts as broken.
_MOST_UNASKED = 16
_GOODBYE_S = 2.0

_Key = tuple[HostPort, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAddresses:
    """The addresses of a name, possibly none; ``remembered``: from the cache."""

    addresses: tuple[str, ...]
    ttl_s: int
    remembered: bool = False


class _Pending:
    """One pending lookup, for all its waiters."""

    __slots__ = ("began_at", "given_up", "task", "waiters")

    def __init__(self, task: asyncio.Task[FoundAddresses], began_at: float) -> None:
        self.task = task
        self.waiters = 0
        self.began_at = began_at
        self.given_up = False


class TunnelDns:
    """Looks up names at given servers."""

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
        self._kept: OrderedDict[_Key, tuple[float, FoundAddresses]] = OrderedDict()
        self._pending: dict[_Key, _Pending] = {}

    def __repr__(self) -> str:
        return f"<TunnelDns {len(self._kept)} names, {len(self._pending)} pending>"

    def known(self, server: HostPort, name: str) -> FoundAddresses | None:
        """The cached answer for a name, within its TTL."""
        key = (server, name)
        until, found = self._kept.get(key, (0.0, None))
        if found is None:
            return None
        if until <= self._loop.time():
            del self._kept[key]
            return None
        return replace(found, remembered=True)

    def forget(self, name: str) -> None:
        """Drop a cached answer, because its addresses did not work."""
        for key in [key for key in self._kept if key[1] == name]:
            del self._kept[key]

    async def lookup(self, server: HostPort, name: str, *, fresh: bool = False) -> FoundAddresses:
        """Query a server for the addresses of a complete name, IPv4 and IPv6 alternating.

        ``fresh`` bypasses the cache. Cancelling a waiter cancels the query, unless others wait
        for it too.

        Raises:
            DnsError: no usable answer.
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
                # Before it has ended: a new lookup must not wait for a cancelled one.
                del self._pending[key]
                pending.task.cancel()

    def _make_room(self) -> bool:
        """Drop the oldest lookup, the least likely to be answered, unless it is young."""
        key = next(iter(self._pending), None)
        if key is None or self._loop.time() - self._pending[key].began_at < YOUNG_S:
            return False
        oldest = self._pending.pop(key)
        oldest.given_up = True
        oldest.task.cancel()
        return True

    def _done(self, key: _Key, task: asyncio.Task[FoundAddresses]) -> None:
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
        """Cancel every lookup, and close the connection."""
        tasks = [pending.task for pending in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream[1].cut()
            self._stream = None

    # Queries.

    async def _ask(self, server: HostPort, name: str) -> FoundAddresses:
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
                self._stream[
                    1
                ].tired = True  # later queries must not wait for a server that does not answer
            silent = DnsError(f"{server}: no answer within {self._timeout_s:g} s")
            return _merged([silent if task in late else _outcome(task) for task in asking])
        finally:
            for task in asking:
                task.cancel()

    async def _follow(self, server: HostPort, name: str, kind: str) -> DnsAnswer:
        """Query one kind of address, and follow CNAMEs that the server left unresolved."""
        ttl_s: int | None = None
        for _ in range(_MOST_ALIASES):
            answer = await self._ask_once(server, name, kind)
            ttl_s = answer.ttl_s if ttl_s is None else min(ttl_s, answer.ttl_s)
            if not answer.ask_also:
                return replace(answer, ttl_s=ttl_s)
            name = answer.ask_also
        raise DnsError(f"{server}: more than {_MOST_ALIASES} CNAMEs", answered=True)

    async def _ask_once(self, server: HostPort, name: str, kind: str) -> DnsAnswer:
        for left in reversed(range(_MOST_STREAMS)):
            stream, reused = await self._stream_to(server)
            asked = question(name, kind)
            while stream.has(asked.id):
                asked = question(name, kind)
            try:
                return await stream.ask(asked)
            except StreamOverError as exc:
                # RFC 7766 §6.2.4: a server may close at any time, often just when we query again.
                if left and (reused or exc.again):
                    continue
                raise DnsError(f"{server}: {exc}") from exc
            except DnsError as exc:
                raise DnsError(f"{server}: {exc}", answered=exc.answered) from exc
        raise AssertionError("the last attempt returns or raises")

    async def _stream_to(self, server: HostPort) -> tuple[DnsStream, bool]:
        """The connection to a server, and whether it already existed."""
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


def _outcome(task: asyncio.Task[DnsAnswer]) -> DnsAnswer | BaseException:
    return task.exception() or task.result()


def _merged(answers: list[DnsAnswer | BaseException]) -> FoundAddresses:
    """Merge the answers of both families; one may fail if the other has addresses."""
    good = [each for each in answers if isinstance(each, DnsAnswer)]
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
    return FoundAddresses(addresses=addresses, ttl_s=LEAST_TTL_S if bad else ttl_s)


class StreamOverError(DnsError):
    """The stream ended before this answer; ``again`` says whether a retry may succeed."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class DnsStream(Early):
    """The peer of an end that is connected to a DNS server."""

    __slots__ = ("_answered", "_idle", "_idle_s", "_loop", "_unasked", "_waiting", "over", "tired")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, idle_s: float) -> None:
        super().__init__(limit=_LENGTH_BYTES + 65535)
        self._loop = loop
        self._idle_s = idle_s
        self._waiting: dict[int, tuple[DnsQuestion, asyncio.Future[DnsAnswer]]] = {}
        self._answered = 0
        self._unasked = 0
        self._idle: asyncio.TimerHandle | None = None
        self.over = False
        #: No new queries: the stream ends with its last one.
        self.tired = False

    @property
    def usable(self) -> bool:
        """Whether a new query may be sent here."""
        return not (self.over or self.tired)

    def attach(self, end: End) -> None:
        """Attach the end that is connected to the server."""
        join(end, self)
        self.rest()

    def has(self, number: int) -> bool:
        """Whether a query with this id is pending."""
        return number in self._waiting

    def ask(self, asked: DnsQuestion) -> asyncio.Future[DnsAnswer]:
        """Send a query whose id is not in use; the future may be cancelled.

        It gets StreamOverError if the stream ends first, and DnsError for an invalid answer.
        """
        future: asyncio.Future[DnsAnswer] = self._loop.create_future()
        if self.over:
            future.set_exception(StreamOverError("the connection is over", again=True))
            return future
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._waiting[asked.id] = (asked, future)
        future.add_done_callback(lambda _: self._forget(asked.id))
        self.peer.write(len(asked.wire).to_bytes(_LENGTH_BYTES, "big") + asked.wire)
        return future

    def _forget(self, number: int) -> None:
        found = self._waiting.get(number)
        if found is not None and found[1].done():
            del self._waiting[number]
            self.rest()

    def rest(self) -> None:
        """Close when idle for a while; at once if no more queries will follow."""
        if self._waiting or self.over:
            return
        if self.tired:
            self.close()
        elif self._idle is None:
            self._idle = self._loop.call_later(self._idle_s, self.close)

    def close(self) -> None:
        """Half-close; pending queries fail."""
        end = self.peer
        self._finish("the connection was closed here", again=True)
        end.write_eof()
        end.let_go()
        # Some ends close only when the other side does; this has no effect on others.
        self._loop.call_later(_GOODBYE_S, end.abort, Ending.CANCELLED)

    def cut(self) -> None:
        """Abort the stream."""
        end = self.peer
        self._finish("the connection was closed here", again=False)
        end.abort(Ending.CANCELLED)

    # Called by the end.

    def write(self, data: bytes) -> bool:
        """Parse what the server sent: a length, a message, and so on."""
        if self.over:
            return True
        self.buffer += data
        while len(self.buffer) >= _LENGTH_BYTES and not self.over:
            size = int.from_bytes(self.buffer[:_LENGTH_BYTES], "big")
            if size < _HEADER_BYTES:
                self._broken(f"sent a message of {size} bytes, shorter than any")
                break
            if len(self.buffer) < _LENGTH_BYTES + size:
                break
            wire = bytes(self.buffer[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self.buffer[: _LENGTH_BYTES + size]
            self._take(wire)
        return True  # a message never exceeds the limit

    def write_eof(self) -> None:
        """The server closed, which it may do at any time (RFC 7766 §6.2.4)."""
        end = self.peer
        self._finish("closed the connection before it answered", again=self._answered > 0)
        end.write_eof()
        end.let_go()

    def abort(self, reason: Ending) -> None:
        """The tunnel failed."""
        self._finish(f"the connection broke: {reason.value}", again=self._answered > 0)

    def _take(self, wire: bytes) -> None:
        found = self._waiting.get(wire_id(wire))
        if found is None:
            self._unasked += 1
            if self._unasked > _MOST_UNASKED:
                self._broken("sends unrelated answers")
            return
        asked, future = found
        try:
            answer = read_answer(asked, wire)
        except DnsError as exc:
            if not future.done():
                future.set_exception(exc)
            if not exc.answered:
                # A server that answered invalidly is not queried again at once.
                self._broken(str(exc))
            return
        self._answered += 1
        self._unasked = 0
        if not future.done():
            future.set_result(answer)

    def _broken(self, why: str) -> None:
        end = self.peer
        self._finish(why, again=False)
        end.abort(Ending.PROTOCOL)

    def _finish(self, why: str, *, again: bool) -> None:
        self.over = True
        self.peer = GONE
        self.buffer.clear()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(StreamOverError(why, again=again))
