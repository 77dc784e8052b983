"""What a probe and its prober say to each other, as JSON has it; the requests are in probe.py."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from isthmus.lab.outcome import Outcome
from isthmus.lab.topology import Attempt, Failing, Protocol, Verb, Way

Json = dict[str, Any]


def as_object(value: object) -> Json:
    """Check that it is a JSON object.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_attempt(value: object) -> Attempt:
    """Read what write_attempt wrote.

    Raises:
        ValueError, TypeError: it is no attempt.
    """
    fields = as_object(value)
    made = Attempt(**{**fields, "verb": Verb(fields.get("verb"))})
    for number in (made.timeout_s, made.seconds, made.bytes):
        if not isinstance(number, int | float) or not 0 <= number < 1e12:
            raise ValueError(f"not a size or a time: {number!r}")
    return made


def write_attempt(attempt: Attempt) -> Json:
    """Write an attempt."""
    return {**asdict(attempt), "verb": attempt.verb.value}


def read_way(value: object) -> Way:
    """Read what write_way wrote.

    Raises:
        ValueError, TypeError: it is no way.
    """
    fields = as_object(value)
    return Way(**{"name": "", **fields, "protocol": Protocol(fields.get("protocol"))})


def write_way(way: Way | None) -> Json | None:
    """Write a way; None is directly."""
    return None if way is None else {**asdict(way), "protocol": way.protocol.value}


def read_outcome(value: object) -> Outcome:
    """Read what write_outcome wrote."""
    fields = as_object(value)
    failing = fields["failing"]
    return Outcome(**{**fields, "failing": None if failing is None else Failing(failing)})


def write_outcome(outcome: Outcome) -> Json:
    """Write an outcome."""
    failing = outcome.failing
    return {**asdict(outcome), "failing": None if failing is None else failing.value}
