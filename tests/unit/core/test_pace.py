"""A steady rate, and more at once after a pause."""

from __future__ import annotations

from isthmus.core.pace import Pace


def test_a_burst_then_the_rate_then_a_burst_again() -> None:
    pace = Pace(per_s=2.0, burst=3, now=10.0)
    assert [pace.allows(now=10.0) for _ in range(4)] == [True, True, True, False]
    assert not pace.allows(now=10.25)
    assert pace.allows(now=10.5) and not pace.allows(now=10.5)
    assert [pace.allows(now=99.0) for _ in range(4)] == [True, True, True, False]


def test_whoever_asks_all_the_time_gets_the_rate() -> None:
    pace = Pace(per_s=100.0, burst=10, now=0.0)
    done = sum(pace.allows(now=step / 1024) for step in range(1, 10 * 1024 + 1))
    assert 1009 <= done <= 1010
