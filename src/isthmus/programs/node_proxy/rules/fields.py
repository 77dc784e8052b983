"""What reading.py reads fields with: decoding, names, addresses, networks, ports and times.

Nothing here raises: what cannot be used is left out, and said.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.addresses import canonical_address, canonical_network
from isthmus.programs.node_proxy.rules.shapes import Named

#: What objects come as: JSON, or mappings.
Given = bytes | msgspec.Raw | Mapping[str, Any]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# RFC 3339 §5.6; fromisoformat() alone takes much more.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_MOST_CHARS = 80
_MOST_NOTES = 20  # of one object

T = TypeVar("T")


class ObjectNotes:
    """Says what is wrong with one object, and not without end."""

    def __init__(self, notes: list[str], what: str) -> None:
        self._notes = notes
        self._what = what
        self._left = _MOST_NOTES

    def __call__(self, sentence: str) -> None:
        """Say one thing."""
        self._left -= 1
        if self._left > 0:
            say(self._notes, self._what, sentence)
        elif self._left == 0:
            say(self._notes, self._what, "and more")


def say(notes: list[str], what: str, sentence: str) -> None:
    """Say one thing of an object."""
    notes.append(f"{what}: {sentence}")


def decoded(given: Given, shape: type[T], notes: list[str], kind: str) -> T | None:
    """Read the parts of an object that a shape names; None, and said, if they are not so."""
    try:
        if isinstance(given, Mapping):
            return msgspec.convert(given, shape)
        return msgspec.json.decode(given, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        if shape is not Named:
            named = decoded(given, Named, [], kind)
            meta = named.metadata if named else None
            who = "/".join(filter(None, (meta.namespace, meta.name))) if meta else "without a name"
            say(notes, f"{kind} {cut(who)}", cut(str(exc)))
        return None


def is_label(text: str) -> bool:
    """A DNS label, as Kubernetes has it."""
    return _LABEL.fullmatch(text) is not None


def service_name(namespace: str, name: str) -> ServiceName | None:
    """A Service's name, if both are what the API lets them be: rules have them in comments."""
    if not (is_label(namespace) and is_label(name)):
        return None
    return ServiceName(sys.intern(namespace), sys.intern(name))


def addresses(given: Iterable[str], what: str, said: ObjectNotes) -> tuple[str, ...]:
    """Those that are addresses, in order."""
    found = []
    for text in given:
        address = canonical_address(text)
        if address:
            found.append(address)
        elif text.strip():  # the API lets empty ones through
            said(f"not an address, as {what}: {cut(repr(text))}")
    return tuple(found)


def networks(given: Iterable[str], said: ObjectNotes) -> tuple[str, ...]:
    """Those that are networks, in order."""
    found = []
    for text in given:
        network = canonical_network(text)
        if network:
            found.append(network)
        elif text.strip():
            said(f"not a network: {cut(repr(text))}")
    return tuple(found)


def port_number(number: int | None) -> int:
    """A port, or 0."""
    return number if number is not None and 0 < number < 65536 else 0


def timestamp(text: str | None) -> float:
    """Seconds since 1970, or 0."""
    if not text or not _TIME.fullmatch(text):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def cut(text: str) -> str:
    """No more of a text than a log line bears, and nothing that a terminal would obey."""
    text = text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"
    return text if text.isprintable() else repr(text)[1:-1]
