"""Parts: the features of a program, and the ground that they stand on.

A program is a tuple of parts, foundations first. A part overrides only what it needs; lifecycle.py
calls the methods, in the right order. Its constructor gets what it may use (the poller, a dialer,
its own settings), never a whole program.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from isthmus.frame.admin.answers import Check, EndTunnel, RecentRecords, Routes, Watched
from isthmus.frame.health import ListenerHealth
from isthmus.frame.resources import open_budget
from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext
from isthmus.net.http_site import Refused
from isthmus.net.listen import Accepted
from isthmus.net.poller import Poller
from isthmus.settings.program import worker_id
from isthmus.values import NOTHING, ServerId

if TYPE_CHECKING:
    from isthmus.frame.observe.program import ProgramMetrics
    from isthmus.frame.observe.tracing import Span, Tracing
    from isthmus.frame.program import Program
    from isthmus.tunnel.budget import Budget
    from isthmus.values import HostPort

S = TypeVar("S")
M = TypeVar("M", bound="ProgramMetrics")
#: A task that lives as long as its program, and its name.
LongTask = tuple[str, Coroutine[Any, Any, None]]
#: The addresses and ports of TCP listeners by flag.
BoundAt = Mapping[str, Sequence[tuple[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """A worker's number, the number of workers, and the id of their program.

    ``audit`` is the path to which it writes audit records, for its parent.
    """

    index: int
    count: int
    program_id: str
    audit: str = ""

    def share(self, total: int) -> int:
        """Its share of what all workers may have, rounded up."""
        return -(-total // self.count)

    @property
    def siblings(self) -> frozenset[ServerId]:
        """The ids of the other workers."""
        others = (index for index in range(self.count) if index != self.index)
        return frozenset(ServerId(worker_id(self.program_id, index)) for index in others)

    def shared(self, settings: S, *names: str) -> S:
        """Settings in which these numbers are its share of what all workers may have."""
        parts = {name: self.share(getattr(settings, name)) for name in names}
        return replace(settings, **parts)  # type: ignore[type-var]  # a dataclass of options


class BoundSocket(NamedTuple):
    """A listening socket, its flag, and whether agents connect to it."""

    flag: str
    sock: socket.socket
    for_agents: bool = False


class Handed:
    """The source of connections in a worker; doors have the names of the flags that bind them."""

    def __init__(self, slot: WorkerSlot) -> None:
        #: The number of this worker, and of all.
        self.slot = slot
        #: The data of the program's health and admin ports.
        self.watched: Watched | None = None
        #: Called by the parent with whether audit records cannot be written.
        self.on_audit: Callable[[bool], None] | None = None
        self._doors: dict[str, Accepted] = {}
        self._told: list[tuple[str, Callable[[str, int], None]]] = []

    def open(
        self, flag: str, accept: Accepted, *, bound: Callable[[str, int], None] | None = None
    ) -> None:
        """Take the connections of a door; ``bound`` gets its addresses once they are known."""
        self._doors[flag] = accept
        if bound is not None:
            self._told.append((flag, bound))

    def take(self, flag: str, sock: socket.socket) -> None:
        """A connection arrived at a door."""
        accept = self._doors.get(flag)
        if accept is None:
            sock.close()
        else:
            accept(sock)

    def bound(self, where: BoundAt) -> None:
        """The parent has bound its ports."""
        for flag, hear in self._told:
            for host, port in where.get(flag, ()):
                hear(host, port)


class Part:
    """A feature of a program; each method has a default that does nothing.

    On the way up every part is prepared, then opened, then started, foundations first. On the way
    down every part is drained, then closed, then waited for, listeners first. ``close`` may come
    at any time and more than once, also before ``open``.
    """

    #: Requests that share sockets with others: they count as load, not as connections.
    calls: int = 0
    #: Whether it knows other programs that agents may go to.
    has_peers: bool = False
    #: Ends one of its tunnels for an operator; None for a part without tunnels.
    end_tunnel: EndTunnel | None = None
    #: The last records of its audit log; None for a part without one.
    records: RecentRecords | None = None

    # The way up.

    async def prepare(self) -> None:
        """Read and check everything; open nothing.

        Raises:
            ConfigError: a setting or a file is wrong.
        """

    async def open(self) -> None:
        """Open what other parts depend on, and bind; accept nothing yet.

        Raises:
            ConfigError: it cannot be opened.
        """

    def start(self) -> None:
        """Begin work: everything is open."""

    def tasks(self) -> Iterable[LongTask]:
        """Return the tasks that live as long as the program; called once, after ``start``."""
        return ()

    # The way down.

    def drain(self) -> None:
        """Accept nothing new; what is open continues."""

    def busy(self) -> bool:
        """Whether a drain must wait for this part."""
        return False

    def drained(self) -> None:
        """Let nothing new begin: no part is busy, or the time is up; called in that turn of the
        loop."""

    def close(self) -> None:
        """End everything that is open."""

    async def wait_closed(self) -> None:
        """Wait until everything is gone; all parts are closed by now."""

    # What observers see.

    def listeners(self) -> Iterable[ListenerHealth]:
        """The listeners for peers, for the program's liveness."""
        return ()

    def contexts(self) -> Iterable[HotContext]:
        """Certificates that this part reloads itself; others are in ``Ground.contexts``."""
        return ()

    def ready(self) -> Iterable[Check]:
        """Checks of whether the program can serve now."""
        return ()

    def status(self) -> str:
        """A short status for systemd; empty for none."""
        return ""

    def serving(self) -> Mapping[str, Any]:
        """Fields of the log line "serving"."""
        return {}

    def snapshot(self, limit: int) -> Mapping[str, Any]:
        """Fields of the program's snapshot, with at most ``limit`` tunnels."""
        return {}

    def routes(self) -> Routes:
        """Additional paths of the admin port."""
        return {}

    def reload(self) -> None:
        """Reload files on SIGHUP. If no part overrides this, SIGHUP kills the process."""


class Ground(Generic[S, M]):
    """What the parts of one process share: settings, loop, poller, sums.

    ``handed`` is the source of connections in a worker, and None in any other process.
    """

    def __init__(self, program: Program, settings: S, handed: Handed | None = None) -> None:
        self.program = program
        self.settings = settings
        self.handed = handed
        self.loop = asyncio.get_running_loop()
        self.id = program.id_of(settings) or str(uuid.uuid4())
        self.started_at = self.loop.time()
        self.draining = False
        self.metrics: M = program.found(program.metrics).of(settings)
        self.once = OncePer(self.loop.time)
        #: Certificates in use, which the program reloads when their files change.
        self.contexts: list[HotContext] = []
        #: The destination of spans; set before any part is prepared.
        self.tracing: Tracing | None = None
        #: Called for failed TLS handshakes at the admin port; set by a part's constructor.
        self.admin_refused: Refused | None = None

    @cached_property
    def poller(self) -> Poller:
        """The poller of the data path's sockets; closed after every part."""
        return Poller(self.loop)

    @cached_property
    def budget(self) -> Budget:
        """The budget for what is held on behalf of peers."""
        settings: Any = self.settings  # of a program that carries connections
        return open_budget(settings.memory, getattr(settings, "workers", 1))

    def span(self, target: HostPort) -> Span | None:
        """A span for a dial whose client sent no trace context; None without tracing."""
        if self.tracing is None:
            return None
        return self.tracing.connect(NOTHING, connection_id="", target=target)

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()


def _nobody(sock: socket.socket) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """How a program shares its work between processes.

    The parent opens ``parts``, then everything that ``bind`` returns, and hands over the
    connections accepted there, except those it ``refuses``. Each worker gets ``settings``. With
    ``reloads``, SIGHUP makes the workers reload.
    """

    bind: Callable[[], Iterable[BoundSocket]]
    settings: Callable[[WorkerSlot], Any]
    parts: tuple[Part, ...] = ()
    refuses: Callable[[socket.socket], bool] = _nobody
    reloads: bool = False
