"""Patterns of names: ``edge-*`` and ``{node}``, matched in linear time.

What the names mean, and what a match allows, is in settings/rules_entitlements.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

PLACEHOLDERS = ("commonName", "organization", "san", "serviceAccountName", "pod", "node")

_TOKENS = re.compile(r"(\*|\{[^{}]*\})")
_FOREIGN = frozenset("?[]\\")  # wildcards elsewhere; a literal meaning would surprise
_MAX_CHARS = 512

Proved = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """``*`` stands for any characters or none; ``{node}`` and other placeholders for proven values.

    The value of a placeholder is literal: a ``*`` in a certificate's name is a star. With ``fold``,
    case and the final dot of a host name do not matter.

    Raises:
        ValueError: the text is not a pattern; the message says why.
    """

    text: str
    fold: bool = False
    placeholders: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _tokens: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _fixed: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.text or len(self.text) > _MAX_CHARS:
            raise ValueError(f"is longer than {_MAX_CHARS} characters" if self.text else "is empty")
        if not self.text.isprintable():
            raise ValueError("has characters that cannot be printed")
        tokens = tuple(filter(None, _TOKENS.split(self.text)))
        names = tuple(dict.fromkeys(token[1:-1] for token in tokens if _TOKENS.match(token)))
        names = tuple(name for name in names if name)  # a star has nothing inside
        _check(tokens, names)
        object.__setattr__(self, "_tokens", tokens)
        object.__setattr__(self, "placeholders", names)
        object.__setattr__(self, "_fixed", () if names else self._pieces({}))

    def covers(self, value: str, proved: Proved) -> bool:
        """Whether the value matches the pattern."""
        value = self._plain(value)
        if self._fixed:
            return _fits(self._fixed, value)
        # If nothing is proved for one of the names, there are no choices and nothing matches.
        choices = product(*(proved.get(name, ()) for name in self.placeholders))
        return any(
            _fits(self._pieces(dict(zip(self.placeholders, chosen, strict=True))), value)
            for chosen in choices
        )

    def _plain(self, text: str) -> str:
        return text.lower().removesuffix(".") if self.fold else text

    def _pieces(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The literal texts between the stars: one more than there are stars."""
        pieces = [""]
        for token in self._tokens:
            if token == "*":
                pieces.append("")
            else:
                pieces[-1] += values[token[1:-1]] if token[0] == "{" else token
        last = self._plain(pieces.pop())
        return (*(piece.lower() if self.fold else piece for piece in pieces), last)


def _check(tokens: Sequence[str], names: Sequence[str]) -> None:
    for token in tokens:
        known = token in {f"{{{name}}}" for name in PLACEHOLDERS}
        if not known and ("{" in token or "}" in token):
            every = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"has {token!r}, which is none of {every}")
        if _FOREIGN & set(token):
            raise ValueError("has one of ? [ ] \\, but only * is a wildcard")
    if {"organization", "san"} <= set(names):
        raise ValueError("has both {organization} and {san}, use one: there may be several of each")


def _fits(pieces: Sequence[str], text: str) -> bool:
    """Find the pieces in order, the first and the last at their ends; linear, unlike a regex."""
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
