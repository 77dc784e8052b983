"""What the library raises besides DialError, ConfigError and OSError."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.errors import IsthmusError


class UnknownNetworkError(IsthmusError):
    """The configuration has no such network; ``name`` is what was asked for."""

    def __init__(self, name: str, known: Iterable[str], *, destination: str = "") -> None:
        there = ", ".join(sorted(known)) or "none"
        if destination:
            text = f"Unknown network of {destination}: no network of the configuration names it"
        else:
            text = f"Unknown network {name!r}: the configuration has {there}"
        super().__init__(text)
        self.name = name
