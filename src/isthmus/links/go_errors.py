"""Dial failures as Go's programs say them, in both directions.

Konnectivity's DIAL_RSP carries a text and nothing else. Its server looks for ``timeout`` and
``too many open files`` in it to choose an HTTP status, so ours say what Go's net package says. What
Go has no words for is said in ours, and read again where both programs are.
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
_OWN = tuple(f for f in DialFailure if f not in _TEXTS and f is not DialFailure.UNRESOLVED)


def failure_in(text: str, target: HostPort | None = None) -> DialFailure:
    """Tell what the error text of a dial, to this target if it is known, means."""
    # Neither the words of a name nor those of a detail are to be taken for the failure.
    said = text.removeprefix(f"dial tcp {target}: ")
    for own in _OWN:
        if said.startswith(own.value):
            return own
    lower = said.lower()
    return next((failure for word, failure in _WORDS if word in lower), DialFailure.INTERNAL)


def detail_in(text: str, target: HostPort) -> str:
    """The detail that ``go_text`` was given; any other text as it is."""
    said = text.removeprefix(f"dial tcp {target}: ")
    return next(
        (said[len(own.value) + 2 :] for own in _OWN if said.startswith(f"{own.value}: ")), text
    )


def go_text(failure: DialFailure, target: HostPort | str, detail: str) -> str:
    """Say a failure as Go's agent would, as far as it could; a text is no target at all."""
    if failure is DialFailure.UNRESOLVED:
        host = target.host if isinstance(target, HostPort) else target
        return f"dial tcp: lookup {host}: no such host"
    text = _TEXTS.get(failure)
    return f"dial tcp {target}: {text}" if text else f"dial tcp {target}: {failure.value}: {detail}"
