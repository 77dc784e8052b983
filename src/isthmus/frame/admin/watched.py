"""What an admin port can show of its program, and change: plain callables, given by the program.

routes.py makes paths of it, and isthmus.frame.dashboard a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from isthmus.frame.admin.answers import Checks, Metrics, Snapshot
from isthmus.frame.model.history import History
from isthmus.values import TunnelId

#: The last records of the audit log as lines of JSON, oldest first, and the number of the newest:
#: those after a number, at most so many.
RecentRecords = Callable[[int, int], tuple[list[bytes], int]]
#: Ends a tunnel for an operator, who is named; gives its connection id, or None if there is none.
EndTunnel = Callable[[TunnelId, str], str | Awaitable[str | None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A program as its admin port sees it.

    ``program`` is its name on the command line, ``instance`` its id. ``settings`` are those that it
    runs with, a dataclass of declared options. ``records`` is None where nothing is audited, and
    ``end_tunnel`` where there is nothing to end.
    """

    program: str
    instance: str
    settings: object
    live: Checks
    ready: Checks
    metrics: Metrics
    open_metrics: Metrics
    snapshot: Snapshot
    history: History
    records: RecentRecords | None = None
    end_tunnel: EndTunnel | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
