"""Dial failures in the words of Go's programs, in both directions.

Konnectivity's DIAL_RSP carries only a text. Its server looks for ``timeout`` and
``too many open files`` in it to choose an HTTP status, so we use the texts of Go's net package.
Failures that Go has no text for use ours, and Isthmus programs read them back.
"""

from __future__ import annotations

from isthmus.errors import DialFailure
from isthmus.values import HostPort

# The first match decides.
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
_OWN = tuple(f for f in DialFailure if f not in _TEXTS and f is not DialFailure.UNRESOLVED)


def failure_in(text: str, target: HostPort | None = None) -> DialFailure:
    """The failure that a dial's error text means; ``target`` if known."""
    # The name and the detail must not be mistaken for the failure.
    said = text.removeprefix(f"dial tcp {target}: ")
    for own in _OWN:
        if said.startswith(own.value):
            return own
    lower = said.lower()
    return next((failure for word, failure in _WORDS if word in lower), DialFailure.INTERNAL)


def detail_in(text: str, target: HostPort) -> str:
    """The detail that ``go_text`` wrote; any other text unchanged."""
    said = text.removeprefix(f"dial tcp {target}: ")
    return next(
        (said[len(own.value) + 2 :] for own in _OWN if said.startswith(f"{own.value}: ")), text
    )


def go_text(failure: DialFailure, target: HostPort | str, detail: str) -> str:
    """A failure in the words of Go's agent, if it has any; a text stands for an invalid target."""
    if failure is DialFailure.UNRESOLVED:
        host = target.host if isinstance(target, HostPort) else target
        return f"dial tcp: lookup {host}: no such host"
    text = _TEXTS.get(failure)
    return f"dial tcp {target}: {text}" if text else f"dial tcp {target}: {failure.value}: {detail}"
