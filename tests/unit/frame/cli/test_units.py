"""Numbers as people read them, and tables that a line of awk can cut."""

from __future__ import annotations

import pytest

from isthmus.frame.cli.tables import age, bars, counted, milliseconds, rate, size, table_lines


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (None, "-"),
        (-1, "0s"),
        (0.9, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (312, "5m12s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 61, "3h1m"),
        (8 * 3600 + 61, "8h"),
        (2 * 86_400 - 1, "47h"),
        (2 * 86_400 + 3600, "2d1h"),
        (400 * 86_400, "400d"),
    ],
)  # as kubectl's HumanDuration, up to two years
def test_age(seconds: float | None, written: str) -> None:
    assert age(seconds) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (1536, "1.5KiB"),
        (10 * 1024, "10KiB"),
        (23 << 20, "23MiB"),
        (5 << 60, "5120PiB"),
    ],
)
def test_size(count: float | None, written: str) -> None:
    assert size(count) == written


def test_rates_round_trips_and_counts() -> None:
    assert rate(None) == "-" and rate(2048) == "2.0KiB/s"
    assert milliseconds(None) == "-"
    assert milliseconds(0.0005) == "0.5ms" and milliseconds(0.0421) == "42ms"
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
