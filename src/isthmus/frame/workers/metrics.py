"""The metrics of a parent of workers: which workers run, what each was handed and has used.

Everything else at its ``/metrics`` is the sum of what its workers count (isthmus.frame.workers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import Family, Samples, by_enum, counter, gauge
from isthmus.frame.observe.program import ProgramMetrics


class NotHanded(Enum):
    """Why a connection was not handed to a worker."""

    NO_WORKER = "no worker is running"
    NOT_RUNNING = "the worker that the agent asked for is not running"
    TOO_MANY = "too many connections are waiting for a worker"
    CROWD = "too many agents have not sent their ClientHello yet"
    NO_HELLO = "the agent left or was too slow to send its ClientHello"
    REFUSED = "it came by a port that is not served"


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The counts of one worker, over all its lives."""

    index: int
    up: bool
    restarts: int
    handed: int
    open: int
    cpu_s: float


class WorkersMetrics(ProgramMetrics):
    """The parent's own counts."""

    program = "workers"
    has_links = False
    carries = False

    def __init__(self) -> None:
        self.not_handed = dict.fromkeys(NotHanded, 0)
        self.workers: Callable[[], Iterable[WorkerCounts]] = tuple
        #: Records written, records dropped, failed writes of the audit log, which the parent writes
        #: for its workers; replaced if there is an audit log.
        self.audit_counts: Callable[[], tuple[int, int, int]] | None = None
        super().__init__((1.0,))

    def _each(self, number: Callable[[WorkerCounts], float]) -> Callable[[], Samples]:
        return lambda: [((str(it.index),), number(it)) for it in self.workers()]

    def _audit(self, at: int) -> Callable[[], Samples]:
        # Left out without an audit log: the program may not be a server.
        return lambda: () if self.audit_counts is None else (((), self.audit_counts()[at]),)

    def _audit_families(self) -> list[Family]:
        # Names and help of ServerMetrics: records that a worker loses are added to these.
        ours = "isthmus_server_audit_"
        return [
            counter(
                f"{ours}records_dropped_total",
                "Audit records dropped because too many were waiting to be written.",
                self._audit(1),
            ),
            counter(
                f"{ours}write_errors_total",
                "Failed attempts to write the audit log.",
                self._audit(2),
            ),
        ]

    def _own_families(self) -> list[Family]:
        ours, labels = "isthmus_workers_", ("worker",)
        return [
            gauge(
                f"{ours}up",
                "1 while the worker is running and serving, else 0.",
                self._each(_up),
                labels,
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}restarts_total",
                "Restarts of the worker.",
                self._each(lambda it: it.restarts),
                labels,
            ),
            counter(
                f"{ours}connections_handed_total",
                "Connections handed to the worker.",
                self._each(lambda it: it.handed),
                labels,
            ),
            gauge(
                f"{ours}load",
                "Open sockets and gRPC calls of the worker; new clients go to the least loaded"
                " one.",
                self._each(lambda it: it.open),
                labels,
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}cpu_seconds_total",
                "CPU time used by the worker.",
                self._each(lambda it: it.cpu_s),
                labels,
            ),
            counter(
                f"{ours}connections_refused_total",
                "Connections refused before a worker got them, by reason.",
                by_enum(self.not_handed),
                ("reason",),
            ),
            *self._audit_families(),
        ]


def _up(counts: WorkerCounts) -> float:
    return int(counts.up)
