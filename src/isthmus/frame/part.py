"""Parts: the features of a program, and the ground that they stand on.

A program is a tuple of parts, foundations first. A part overrides what it has and nothing else;
who calls what, and in which order, is lifecycle.py. It is told what it may use in its constructor
(the poller, a dialer, its own settings), never a whole program.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from isthmus.frame.admin.answers import Check, Routes
from isthmus.frame.admin.watched import EndTunnel, RecentRecords
from isthmus.frame.handed import Handed
from isthmus.frame.health import ListenerHealth
from isthmus.frame.memory import open_budget
from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext
from isthmus.net.http_site import Refused
from isthmus.net.poller import Poller
from isthmus.values import NOTHING

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


class Part:
    """A feature of a program; each method has a default that does nothing.

    On the way up every part is prepared, then opened, then started, foundations first. On the way
    down every part is drained, then closed, then waited for, listeners first. ``close`` may come
    at any time and more than once, also before ``open``.
    """

    #: Requests that share sockets with others: they are load, and no connections.
    calls: int = 0
    #: It knows of other programs that agents may go to.
    has_peers: bool = False
    #: Ends one of its tunnels for an operator; None for a part that has none.
    end_tunnel: EndTunnel | None = None
    #: The last records of its audit log; None for a part that has none.
    records: RecentRecords | None = None

    # The way up.

    async def prepare(self) -> None:
        """Read and check everything; open nothing.

        Raises:
            ConfigError: a setting or a file is wrong.
        """

    async def open(self) -> None:
        """Open what others stand on, and bind; accept nothing yet.

        Raises:
            ConfigError: it cannot be opened.
        """

    def start(self) -> None:
        """Begin: everything is open."""

    def tasks(self) -> Iterable[LongTask]:
        """Give the tasks that live as long as the program; called once, after ``start``."""
        return ()

    # The way down.

    def drain(self) -> None:
        """Take nothing new; what is open goes on."""

    def busy(self) -> bool:
        """Whether a drain has to wait for something here."""
        return False

    def drained(self) -> None:
        """Let nothing more begin: nobody is busy, or time is over; no turn of the loop between."""

    def close(self) -> None:
        """End everything that is open."""

    async def wait_closed(self) -> None:
        """Wait until everything is gone; every part is closed."""

    # What others see.

    def listeners(self) -> Iterable[ListenerHealth]:
        """Where peers come in, for the liveness of the program."""
        return ()

    def contexts(self) -> Iterable[HotContext]:
        """Certificates that it reads again by itself; others are in ``Ground.contexts``."""
        return ()

    def ready(self) -> Iterable[Check]:
        """Checks of whether the program can serve now."""
        return ()

    def status(self) -> str:
        """A few words on how it is doing, for systemd; empty for nothing."""
        return ""

    def serving(self) -> Mapping[str, Any]:
        """Fields of the log line that says that the program serves."""
        return {}

    def snapshot(self, limit: int) -> Mapping[str, Any]:
        """Its fields of the program's snapshot, with at most ``limit`` tunnels."""
        return {}

    def routes(self) -> Routes:
        """Its own paths of the admin port."""
        return {}

    def reload(self) -> None:
        """Read files again: somebody sent SIGHUP. Without a part that has this, SIGHUP kills."""


class Ground(Generic[S, M]):
    """What the parts of one process stand on: settings, loop, poller, sums.

    ``handed`` is where connections come from in a worker, and None in any other process.
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
        #: Certificates in use, which the program reads again when their files change.
        self.contexts: list[HotContext] = []
        #: Where spans go; set before any part is prepared.
        self.tracing: Tracing | None = None
        #: Hears of TLS handshakes that failed at the admin port; set by a part's constructor.
        self.admin_refused: Refused | None = None

    @cached_property
    def poller(self) -> Poller:
        """What watches the sockets of the data path; closed after every part."""
        return Poller(self.loop)

    @cached_property
    def budget(self) -> Budget:
        """What may be kept on behalf of peers."""
        settings: Any = self.settings  # of a program that carries connections
        return open_budget(settings.memory, settings.workers)

    def span(self, target: HostPort) -> Span | None:
        """A span for a dial whose client told nothing of itself; None where nobody traces."""
        if self.tracing is None:
            return None
        return self.tracing.connect(NOTHING, connection_id="", target=target)

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()
