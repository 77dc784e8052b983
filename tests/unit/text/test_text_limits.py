"""The maxima of peers' texts, and the cutting."""

from __future__ import annotations

from isthmus.text import text_limits
from isthmus.text.text_limits import MAX_SHOWN_CHARS, cut, first_too_long, plain, shown


def test_every_maximum_is_in_the_table() -> None:
    names = {name for name in dir(text_limits) if name.startswith("MAX_")}
    assert names == text_limits.LIMITS.keys()
    assert all(0 < most <= 64 * 1024 for most in text_limits.LIMITS.values())


def test_cutting() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"


def test_quoting_a_peer() -> None:
    assert plain(b"/a\xff") == "/a\\xff"
    assert shown(b"it's") == '"it\'s"'
    assert len(plain(b"\xff" * 10_000)) == MAX_SHOWN_CHARS


def test_the_first_that_is_too_long() -> None:
    assert first_too_long([("a", "x", 1), ("b", "", 0)]) == ""
    assert first_too_long([("a", "x", 1), ("b", "xx", 1), ("c", "xx", 1)]) == (
        "b has 2 characters, at most 1 are allowed"
    )
