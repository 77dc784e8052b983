"""Whether a reader has stopped or is slow, and the sentence for it."""

from __future__ import annotations

import pytest

from isthmus.frame.tunnels import Held, ReaderPace, why_slow, why_stalled


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({}, ""),
        ({"to_client": Held(bytes=100, for_s=4.9)}, ""),
        ({"to_client": Held(bytes=0, for_s=99.0)}, ""),
        (
            {"to_client": Held(bytes=262144, for_s=12.3)},
            "client stopped reading; 256KiB held for 12s",
        ),
        (
            {"to_target": Held(bytes=5, for_s=7.0, no_credit=True)},
            "target stopped reading (no credit on the link); 5B held for 7s",
        ),
        (
            {"to_client": Held(bytes=1, for_s=6.0), "to_target": Held(bytes=2, for_s=8.0)},
            "client stopped reading; 1B held for 6s and target stopped reading; 2B held for 8s",
        ),
        (
            {"to_client": Held(bytes=1, for_s=6.0), "link_stuck_s": 9.0},
            "link makes no progress; 1B held for 9s",
        ),
    ],
)
def test_why_a_tunnel_is_stalled(numbers: dict[str, object], sentence: str) -> None:
    assert why_stalled(**numbers) == sentence  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (Held(), ""),
        (Held(bytes=9, full_s=4.9, rate=300_000), ""),
        (Held(bytes=9, full_s=60.0, rate=None), ""),
        (Held(bytes=9, full_s=60.0, for_s=5.0, rate=300_000), ""),  # that one has stopped
        (Held(bytes=9, full_s=60.0, rate=50_000_000), ""),
        (
            Held(bytes=9, full_s=60.0, for_s=1.0, rate=304_000),
            "client reads slowly, 293KiB/s; 9B held",
        ),
        (
            Held(bytes=9, full_s=60.0, for_s=9.0, rate=12.0, patience_s=10.0, no_credit=True),
            "client reads slowly (no credit on the link), 12B/s; 9B held",
        ),
    ],
)
def test_who_reads_slowly(held: Held, sentence: str) -> None:
    assert why_slow(to_client=held) == sentence
    assert not (sentence and why_stalled(to_client=held))
    assert why_slow(to_target=held) == sentence.replace("client", "target")


def test_a_steady_reader_is_slow_and_has_not_stopped() -> None:
    pace = ReaderPace(now=0.0)
    for second in range(0, 40, 2):
        # Nothing new fits into the kernel, whose queue gets shorter.
        pace.look(passed=5_000_000, queued=4_000_000 - 100_000 * second, now=float(second))
    held = pace.held(70_000, now=40.0)
    assert why_stalled(to_client=held) == ""
    assert why_slow(to_client=held) == "client reads slowly, 98KiB/s; 68KiB held"


def test_a_reader_that_takes_nothing_has_stopped_at_the_second_look() -> None:
    pace = ReaderPace(now=0.0)
    pace.look(passed=5_000, queued=4_000, now=0.0)
    assert why_stalled(to_client=pace.held(70_000, now=0.0)) == ""  # unknown yet
    pace.look(passed=5_000, queued=4_000, now=6.0)
    said = "client stopped reading; 68KiB held for 6s"
    assert why_stalled(to_client=pace.held(70_000, now=6.0)) == said
    assert why_slow(to_client=pace.held(70_000, now=6.0)) == ""


def test_credit_that_comes_in_pieces_is_no_stall_until_it_does_not_come() -> None:
    pace = ReaderPace(now=0.0)
    for piece in range(4):
        pace.look(passed=piece * 1_000_000, queued=0, now=piece * 8.0)
    pace.look(passed=3_000_000, queued=0, now=30.0)
    assert why_stalled(to_target=pace.held(5, now=30.0, no_credit=True)) == ""
    said = "target stopped reading (no credit on the link); 5B held for 16s"
    assert why_stalled(to_target=pace.held(5, now=40.0, no_credit=True)) == said


def test_a_pause_without_anything_to_read_does_not_count() -> None:
    pace = ReaderPace(now=0.0)
    pace.look(passed=1, queued=0, now=0.0)
    assert not pace.rest(now=10.0)
    assert not pace.rest(now=50.0)
    pace.look(passed=2, queued=0, now=60.0)
    held = pace.held(5, now=61.0)
    assert (held.for_s, held.full_s, held.patience_s, held.rate) == (11.0, 11.0, 0.0, None)
    assert not pace.rest(now=62.0)
    assert pace.rest(now=122.0)
