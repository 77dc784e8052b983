"""Follows resolv.conf, hosts and nsswitch.conf: each lookup uses the current files.

A file is read again when its stat(2) has changed, which every lookup checks (2 µs a file).
A missing file counts as empty. A file that is unreadable, not regular or too long keeps
its last contents; without any, the C library interprets it.

SystemLookups is the C library's getaddrinfo() in threads, for name sources that only it
knows. A lookup in a thread cannot be cancelled: its thread is busy until the C library gives up.
There are therefore few threads, and no client gets as many as are left for others; lookups
without a free thread wait, and waiting clients take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.net.files import read_bytes
from isthmus.net.rules_names import (
    NameSource,
    ResolvConf,
    parse_hosts,
    parse_nsswitch,
    parse_resolv_conf,
)

DNS_PORT = 53
#: A hosts file of 8 MiB is read in 0.4 s, once; the others are a few lines.
MOST_HOSTS_BYTES = 8 * 1024 * 1024
MOST_CONF_BYTES = 64 * 1024
#: Leave it to the C library: a source that only it knows.
_UNKNOWN: tuple[NameSource, ...] = (NameSource("unreadable"),)
_TICK_NS = 100_000_000
MOST_THREADS = 32
MOST_THREADS_PER_CLIENT = 8
_log = logging.getLogger("isthmus.names")

T = TypeVar("T")
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePaths:
    """The paths of the files, and the port of the DNS servers."""

    resolv_conf: str = "/etc/resolv.conf"
    hosts: str = "/etc/hosts"
    nsswitch: str = "/etc/nsswitch.conf"
    dns_port: int = DNS_PORT


#: The default paths of resolvers.
SYSTEM = NamePaths()


class _Followed(Generic[T]):
    """One file as a value."""

    def __init__(self, path: str, read: Callable[[str], T], most_bytes: int, unread: T) -> None:
        self._path = path
        self._read = read
        self._most_bytes = most_bytes
        self._stamp: _Stamp | None = None
        self._trouble = ""
        self._value = unread

    @property
    def value(self) -> T:
        """The last value read, without checking the file."""
        return self._value

    def current(self) -> T:
        try:
            at = os.stat(self._path)
            stamp = (at.st_mtime_ns, at.st_size, at.st_ino, at.st_dev)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                return self._keep(exc.strerror or str(exc))
            stamp = (0, 0, 0, 0)
        if stamp != self._stamp:
            try:
                self._value = self._read(self._text() if any(stamp) else "")
            except OSError as exc:
                return self._keep(exc.strerror or str(exc))
            # A file that was just written may be written again in the same tick of its clock; one
            # from the future (a clock was set back) is not read for every lookup until then.
            fresh = 0 <= time.time_ns() - stamp[0] < _TICK_NS
            self._stamp, self._trouble = None if fresh else stamp, ""
        return self._value

    def _text(self) -> str:
        return read_bytes(self._path, most_bytes=self._most_bytes).decode("utf-8", "replace")

    def _keep(self, trouble: str) -> T:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("cannot read %s: %s; using its previous contents", self._path, trouble)
        return self._value


class NameService:
    """The contents of the files."""

    def __init__(self, paths: NamePaths | None = None) -> None:
        paths = paths if paths is not None else SYSTEM
        self.dns_port = paths.dns_port
        self._conf: _Followed[ResolvConf | None] = _Followed(
            paths.resolv_conf, _resolv_conf, MOST_CONF_BYTES, None
        )
        self._hosts: _Followed[Mapping[str, tuple[str, ...]] | None] = _Followed(
            paths.hosts, parse_hosts, MOST_HOSTS_BYTES, None
        )
        self._order = _Followed(paths.nsswitch, parse_nsswitch, MOST_CONF_BYTES, _UNKNOWN)

    def order(self) -> tuple[NameSource, ...]:
        """Check the files, and return the sources of names, in order.

        If a file is unreadable, this is left to the C library.
        """
        if self._conf.current() is None or self._hosts.current() is None:
            return _UNKNOWN
        return self._order.current()

    def in_hosts(self, name: str) -> tuple[str, ...]:
        """The addresses of a name in the hosts file, as of the last ``order``."""
        return (self._hosts.value or {}).get(name.lower().removesuffix("."), ())

    def conf(self) -> ResolvConf:
        """The DNS configuration, as of the last ``order``."""
        return self._conf.value or ResolvConf()


def _resolv_conf(text: str) -> ResolvConf:
    return parse_resolv_conf(text, socket.gethostname())


class SystemLookups:
    """Uses the C library, for several clients at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        most: int = MOST_THREADS,
        most_per_client: int = MOST_THREADS_PER_CLIENT,
    ) -> None:
        self._loop = loop
        self._most = most
        self._most_per_client = most_per_client
        self._running: dict[Hashable, int] = {}
        self._busy = 0
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def find(self, host: str, client: Hashable) -> list[str]:
        """The addresses of a name, in the C library's order.

        Raises:
            OSError: the name does not resolve, or there can be no thread now.
        """
        if client in self._queues or not self._has_room(client):
            await self._turn(client)
        else:
            self._begin(client)
        answer: asyncio.Future[list[str]] = self._loop.create_future()
        thread = threading.Thread(
            target=self._ask, args=(host, client, answer), name=f"resolve:{host}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:  # no thread can be started
            self._end(client)
            raise OSError(str(exc)) from exc
        return await answer

    def _has_room(self, client: Hashable) -> bool:
        """Whether the client may use one more thread: at least as many are free as it uses."""
        has, free = self._running.get(client, 0), self._most - self._busy
        return has < min(self._most_per_client, free)

    def _begin(self, client: Hashable) -> None:
        self._busy += 1
        self._running[client] = self._running.get(client, 0) + 1

    def _end(self, client: Hashable) -> None:
        self._busy -= 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._next_turns()

    async def _turn(self, client: Hashable) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queues.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(client)  # it had just got its turn
            else:
                self._leave(client, turn)
            raise

    def _leave(self, client: Hashable, turn: asyncio.Future[None]) -> None:
        waiting = self._queues.get(client, deque())
        with contextlib.suppress(ValueError):
            waiting.remove(turn)
        if not waiting:
            self._queues.pop(client, None)

    def _next_turns(self) -> None:
        for client in list(self._queues):
            waiting = self._queues[client]
            while waiting and waiting[0].done():  # cancelled, but not notified yet
                waiting.popleft()
            if waiting and self._has_room(client):
                self._begin(client)
                waiting.popleft().set_result(None)
                self._queues.move_to_end(client)
            if not waiting:
                del self._queues[client]

    def _ask(self, host: str, client: Hashable, answer: asyncio.Future[list[str]]) -> None:
        found: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, 1, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as exc:
            found = exc
        except Exception as exc:  # UnicodeError: not a valid name
            found = OSError(str(exc))
        try:
            self._loop.call_soon_threadsafe(self._tell, client, answer, found)
        except RuntimeError:  # the loop has ended in the meantime
            return

    def _tell(
        self, client: Hashable, answer: asyncio.Future[list[str]], found: list[str] | OSError
    ) -> None:
        self._end(client)
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)
