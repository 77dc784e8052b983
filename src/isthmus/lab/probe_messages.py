"""What a probe and its prober say to each other: values, and the JSON of them.

The requests are listed in probe.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.lab.topology import AttemptFailure, FrontendProtocol, LabAttempt, LabFrontend, Verb

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTlsFiles:
    """What a probe shows and trusts: at a way by TCP, and at https targets."""

    ca_cert: str
    client_cert: str
    client_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """One attempt: ``failing`` is None when it worked, ``said`` is what was seen, in one line.

    ``said`` is the page's first line, or the error in the system's words; ``bytes`` are those that
    were moved, ``took_s`` is the time of the attempt.
    """

    failing: AttemptFailure | None
    said: str
    took_s: float
    bytes: int = 0

    @property
    def worked(self) -> bool:
        return self.failing is None

    @property
    def mbit(self) -> float:
        """The rate, in megabits per second."""
        return self.bytes * 8 / 1e6 / self.took_s if self.took_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCount:
    """What became of background traffic; ``failed`` is counted by what was seen."""

    worked: int
    failed: Mapping[str, int]
    slowest_s: float

    @property
    def failures(self) -> int:
        return sum(self.failed.values())


def as_object(value: object) -> Json:
    """Check that it is a JSON object.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_attempt(value: object) -> LabAttempt:
    """Read what write_attempt wrote.

    Raises:
        ValueError, TypeError: it is no attempt.
    """
    fields = as_object(value)
    made = LabAttempt(**{**fields, "verb": Verb(fields.get("verb"))})
    for number in (made.timeout_s, made.seconds, made.bytes):
        if not isinstance(number, int | float) or not 0 <= number < 1e12:
            raise ValueError(f"not a size or a time: {number!r}")
    return made


def write_attempt(attempt: LabAttempt) -> Json:
    return {**asdict(attempt), "verb": attempt.verb.value}


def read_way(value: object) -> LabFrontend:
    """Read what write_way wrote.

    Raises:
        ValueError, TypeError: it is no way.
    """
    fields = as_object(value)
    return LabFrontend(
        **{"name": "", **fields, "protocol": FrontendProtocol(fields.get("protocol"))}
    )


def write_way(way: LabFrontend | None) -> Json | None:
    return None if way is None else {**asdict(way), "protocol": way.protocol.value}


def read_outcome(value: object) -> AttemptOutcome:
    fields = as_object(value)
    failing = fields["failing"]
    return AttemptOutcome(
        **{**fields, "failing": None if failing is None else AttemptFailure(failing)}
    )


def write_outcome(outcome: AttemptOutcome) -> Json:
    failing = outcome.failing
    return {**asdict(outcome), "failing": None if failing is None else failing.value}
