"""The last hour of a program in steps of ten seconds: dials, failures, bytes, open tunnels.

A caller with a clock passes the totals since the start to ``take``; the history keeps the
difference from one step to the next. It is bounded: the oldest step is dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from isthmus.frame.model.snapshot import to_json

STEP_S = 10.0
STEPS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The counts of a program since its start, and its open tunnels now.

    ``dial_times`` counts dials that succeeded, by the upper bound of their histogram bucket in
    seconds; every bucket is in it.
    """

    dials: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    dial_times: Mapping[float, int] = field(default_factory=dict)
    bytes_to_target: int = 0
    bytes_to_client: int = 0
    tunnels: int = 0
    agents: int = 0
    links: int = 0


#: A number of dials whose time is above the first bound and at most the second; None: no limit.
DialTimes = tuple[float, float | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStep:
    """One step: the counts in it, and the open tunnels at its end."""

    number: int
    time: datetime
    dials: int
    failures: Mapping[str, int]
    bytes_to_target: int
    bytes_to_client: int
    tunnels: int
    agents: int
    links: int
    dial_times: tuple[DialTimes, ...] = ()


class History:
    """The last steps, oldest first, numbered from 1, so that readers know which are new."""

    __slots__ = ("_before", "_steps", "taken")

    def __init__(self, steps: int = STEPS) -> None:
        self._steps: deque[HistoryStep] = deque(maxlen=steps)
        self._before = Tally()
        #: The number of the newest step.
        self.taken = 0

    def take(self, tally: Tally, *, at: datetime) -> None:
        """Close a step: the differences between this tally and the one before."""
        before, self._before = self._before, tally
        self.taken += 1
        failures = {
            reason: count - before.failures.get(reason, 0)
            for reason, count in tally.failures.items()
            if count != before.failures.get(reason, 0)
        }
        self._steps.append(
            HistoryStep(
                number=self.taken,
                time=at,
                dials=tally.dials - before.dials,
                failures=failures,
                bytes_to_target=tally.bytes_to_target - before.bytes_to_target,
                bytes_to_client=tally.bytes_to_client - before.bytes_to_client,
                tunnels=tally.tunnels,
                agents=tally.agents,
                links=tally.links,
                dial_times=_new_dials(before.dial_times, tally.dial_times),
            )
        )

    def steps(self, after: int = 0) -> tuple[HistoryStep, ...]:
        """The kept steps after this number, oldest first."""
        return tuple(step for step in self._steps if step.number > after)


def _new_dials(before: Mapping[float, int], after: Mapping[float, int]) -> tuple[DialTimes, ...]:
    """The buckets that grew, each with its bounds: readers need no table of buckets."""
    found: list[DialTimes] = []
    above = 0.0
    for bound, count in sorted(after.items()):
        if new := count - before.get(bound, 0):
            found.append((above, None if bound == math.inf else bound, new))
        above = bound
    return tuple(found)


def step_json(step: HistoryStep) -> dict[str, Any]:
    """A step as the admin port shows it."""
    return {
        "number": step.number,
        "time": to_json(step.time),
        "dials": step.dials,
        "failures": dict(step.failures),
        "dialTimes": [list(times) for times in step.dial_times],
        "bytesToTarget": step.bytes_to_target,
        "bytesToClient": step.bytes_to_client,
        "tunnels": step.tunnels,
        "agents": step.agents,
        "links": step.links,
    }
