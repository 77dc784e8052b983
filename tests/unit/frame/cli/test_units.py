"""Bars and counts, and tables that a line of awk can cut."""

from __future__ import annotations

from isthmus.frame.cli.tables import bars, counted, table_lines


def test_counts_have_their_word() -> None:
    assert counted(1, "agent") == "1 agent" and counted(0, "agent") == "0 agents"


def test_bars() -> None:
    assert bars([]) == ""
    assert bars([0, 0]) == "▁▁"
    assert bars([0, 7, 14]) == "▁▅█"
    assert bars([1, 10_000]) == "▂█", "what is more than nothing is seen to be"
    assert bars([9, 0, 0, 0, 9], width=3) == "█▁█", "groups are counted from the newest"


def test_a_table_has_aligned_columns_and_nothing_that_writes_to_the_terminal() -> None:
    lines = table_lines(("ID", "TARGET", "AGE"), [("1", "a\x1b[2Jb", "5s"), ("200", "", "7s")])
    assert lines == [
        "ID    TARGET      AGE",
        "1     a\\x1b[2Jb   5s",
        "200   -           7s",
    ]


def test_a_table_that_is_printed_bit_by_bit_only_grows() -> None:
    widths: list[int] = []
    table_lines(("ID", "X"), [("long-one", "1")], widths)
    assert table_lines(("ID", "X"), [("a", "1")], widths)[1] == "a          1"
