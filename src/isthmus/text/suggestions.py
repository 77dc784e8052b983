"""Suggestions for a word that is not known."""

from __future__ import annotations

from difflib import get_close_matches


def nearest(word: str, known: list[str]) -> str:
    """A clause that suggests the known word nearest to a wrong one; empty when none is near."""
    # What is known may be of the same file: nothing of it that a terminal would obey.
    shown = [each for each in known if each.isprintable()]
    close = get_close_matches(word, shown, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else ""
