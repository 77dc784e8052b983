"""A token bucket that is asked one by one."""

from __future__ import annotations

from isthmus.text.pacing import TokenBucket


def test_a_burst_then_the_rate_then_a_burst_again() -> None:
    bucket = TokenBucket(rate=2.0, burst=3, now=10.0)
    assert [bucket.allows(now=10.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.allows(now=10.25)
    assert bucket.allows(now=10.5) and not bucket.allows(now=10.5)
    assert [bucket.allows(now=99.0) for _ in range(4)] == [True, True, True, False]


def test_whoever_asks_all_the_time_gets_the_rate() -> None:
    bucket = TokenBucket(rate=100.0, burst=10, now=0.0)
    done = sum(bucket.allows(now=step / 1024) for step in range(1, 10 * 1024 + 1))
    assert 1009 <= done <= 1010


def test_debts_are_paid_one_after_the_other() -> None:
    bucket = TokenBucket(rate=2, burst=3, now=0)

    def wait_s(now: float) -> float:
        bucket.spend(1, now=now)
        return bucket.wait_s(now=now)

    assert [wait_s(0) for _ in range(5)] == [0, 0, 0, 0.5, 1]
    assert wait_s(1) == 0.5
    assert [wait_s(1000) for _ in range(4)] == [0, 0, 0, 0.5]
