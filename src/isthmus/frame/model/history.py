"""The last hour of a program in steps of ten seconds: dials, failures, bytes, what is open.

Whoever has a clock calls ``take`` with the totals since the start; what is kept is the difference
from one step to the next. Bounded: the oldest step makes room.
"""

from __future__ import annotations

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
    """What a program has counted since its start, and what it has open now."""

    dials: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    bytes_to_target: int = 0
    bytes_to_client: int = 0
    tunnels: int = 0
    agents: int = 0
    links: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStep:
    """One step: what was counted in it, and what was open at its end."""

    number: int
    time: datetime
    dials: int
    failures: Mapping[str, int]
    bytes_to_target: int
    bytes_to_client: int
    tunnels: int
    agents: int
    links: int


class History:
    """The last steps, oldest first, numbered from 1: a reader finds what is new."""

    __slots__ = ("_before", "_steps", "taken")

    def __init__(self, steps: int = STEPS) -> None:
        self._steps: deque[HistoryStep] = deque(maxlen=steps)
        self._before = Tally()
        #: The number of the newest step.
        self.taken = 0

    def take(self, tally: Tally, *, at: datetime) -> None:
        """Close a step: what the tally has more than the one before."""
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
            )
        )

    def steps(self, after: int = 0) -> tuple[HistoryStep, ...]:
        """The steps kept, oldest first, that come after this number."""
        return tuple(step for step in self._steps if step.number > after)


def step_json(step: HistoryStep) -> dict[str, Any]:
    """Write a step as the admin port shows it."""
    return {
        "number": step.number,
        "time": to_json(step.time),
        "dials": step.dials,
        "failures": dict(step.failures),
        "bytesToTarget": step.bytes_to_target,
        "bytesToClient": step.bytes_to_client,
        "tunnels": step.tunnels,
        "agents": step.agents,
        "links": step.links,
    }
