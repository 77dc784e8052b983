"""Suggestions for an unknown word."""

from __future__ import annotations

from difflib import get_close_matches


def nearest(word: str, known: list[str]) -> str:
    """A clause that suggests the known word nearest to an unknown one; empty if none is near."""
    # Known words may come from the same file: leave out what a terminal would interpret.
    shown = [each for each in known if each.isprintable()]
    close = get_close_matches(word, shown, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else ""
