"""Dial failures as Go's programs say them, in both directions.

Konnectivity's DIAL_RSP carries a text and nothing else. Its server looks for ``timeout`` and
``too many open files`` in it to choose an HTTP status, so ours say what Go's net package says.
"""

from __future__ import annotations

from isthmus.errors import DialFailure
from isthmus.values import HostPort

# The first that is found decides.
_WORDS = (
    ("connection refused", DialFailure.REFUSED),
    ("no such host", DialFailure.UNRESOLVED),
    ("server misbehaving", DialFailure.UNRESOLVED),
    ("timeout", DialFailure.TIMED_OUT),
    ("timed out", DialFailure.TIMED_OUT),
    ("deadline exceeded", DialFailure.TIMED_OUT),
    ("no route to host", DialFailure.UNREACHABLE),
    ("unreachable", DialFailure.UNREACHABLE),
    ("too many open files", DialFailure.TOO_MANY),
    ("denied", DialFailure.DENIED),
)
_TEXTS = {
    DialFailure.REFUSED: "connect: connection refused",
    DialFailure.TIMED_OUT: "i/o timeout",
    DialFailure.UNREACHABLE: "connect: no route to host",
    DialFailure.TOO_MANY: "socket: too many open files",
}


def failure_in(text: str) -> DialFailure:
    """Tell what an agent's error text means."""
    lower = text.lower()
    return next((failure for word, failure in _WORDS if word in lower), DialFailure.INTERNAL)


def go_text(failure: DialFailure, target: HostPort, detail: str) -> str:
    """Say a failure as Go's agent would."""
    if failure is DialFailure.UNRESOLVED:
        return f"dial tcp: lookup {target.host}: no such host"
    text = _TEXTS.get(failure)
    return f"dial tcp {target}: {text}" if text else f"dial tcp {target}: {failure.value}: {detail}"
