"""The messages between a probe and its prober: values, and their JSON.

probe.py lists the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.lab.topology import AttemptFailure, FrontendProtocol, LabAttempt, LabFrontend, Verb

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTlsFiles:
    """The certificates of a probe: for frontends by TCP, and for https targets."""

    ca_cert: str
    client_cert: str
    client_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """The outcome of one attempt: ``failing`` is None on success, ``said`` is one line.

    ``said`` is the page's first line, or the error in the system's words; ``bytes`` is the number
    of bytes moved, ``took_s`` the duration.
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
    """The result of background traffic; ``failed`` counts failures by their text."""

    worked: int
    failed: Mapping[str, int]
    slowest_s: float

    @property
    def failures(self) -> int:
        return sum(self.failed.values())


def as_object(value: object) -> Json:
    """Check that a value is a JSON object.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_attempt(value: object) -> LabAttempt:
    """Read the result of write_attempt.

    Raises:
        ValueError, TypeError: the value is not an attempt.
    """
    fields = as_object(value)
    made = LabAttempt(**{**fields, "verb": Verb(fields.get("verb"))})
    for number in (made.timeout_s, made.seconds, made.bytes):
        if not isinstance(number, int | float) or not 0 <= number < 1e12:
            raise ValueError(f"invalid size or time: {number!r}")
    return made


def write_attempt(attempt: LabAttempt) -> Json:
    return {**asdict(attempt), "verb": attempt.verb.value}


def read_way(value: object) -> LabFrontend:
    """Read the result of write_way.

    Raises:
        ValueError, TypeError: the value is not a frontend.
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
