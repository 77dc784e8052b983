"""The tunnel's health: as HyperShift's sidecars judge it, and without their races."""

from __future__ import annotations

from isthmus.programs.sidecar.rules_tunnel_health import TunnelHealth


def failing(now: float = 0.0) -> TunnelHealth:
    health = TunnelHealth(retry_s=30)
    attempt = health.begin(now=now)
    assert attempt is not None
    assert health.failed(attempt, now=now)
    return health


def test_everybody_may_try_while_it_works() -> None:
    health = TunnelHealth()
    attempts = [health.begin(now=0.0) for _ in range(3)]
    assert all(each is not None and not each.retry for each in attempts)
    assert health.works
    assert health.failing_s(now=5) == 0


def test_one_retry_in_thirty_seconds() -> None:
    health = failing()
    assert not health.works
    assert health.failing_s(now=12) == 12
    assert health.begin(now=29.9) is None
    retry = health.begin(now=30)
    assert retry is not None
    assert retry.retry
    assert health.begin(now=31) is None  # one is under way
    assert health.begin(now=90) is None
    health.failed(retry, now=91)
    assert health.begin(now=91) is not None  # 30 s after the one before began


def test_a_retry_that_works_ends_the_outage_once() -> None:
    health = failing()
    retry = health.begin(now=30)
    assert retry is not None
    assert health.worked(retry)
    assert not health.worked(retry)
    assert health.works
    assert health.begin(now=30) is not None


def test_a_retry_that_told_nothing_leaves_its_turn() -> None:
    health = failing()
    retry = health.begin(now=30)
    assert retry is not None
    health.dropped(retry)
    health.dropped(retry)
    assert health.begin(now=59) is None
    assert health.begin(now=60) is not None


def test_an_old_lookup_does_not_end_the_turn_of_a_retry() -> None:
    health = TunnelHealth(retry_s=30)
    first, old = health.begin(now=0), health.begin(now=0)
    assert first is not None
    assert old is not None
    health.failed(first, now=0)
    assert health.begin(now=30) is not None  # the retry, under way
    assert not health.failed(old, now=31)
    health.dropped(old)
    assert health.begin(now=61) is None


def test_a_failure_from_before_the_recovery_is_no_new_outage() -> None:
    health = TunnelHealth(retry_s=30)
    first, old = health.begin(now=0), health.begin(now=0)
    assert first is not None
    assert old is not None
    health.failed(first, now=1)
    retry = health.begin(now=31)
    assert retry is not None
    assert health.worked(retry)
    assert not health.failed(old, now=32)
    assert health.works


def test_an_answer_counts_whenever_it_was_asked_for() -> None:
    health = TunnelHealth(retry_s=30)
    first, old = health.begin(now=0), health.begin(now=0)
    assert first is not None
    assert old is not None
    health.failed(first, now=1)
    assert health.worked(old)
    assert health.works


def test_each_outage_begins_its_own_wait() -> None:
    health = failing(0)
    retry = health.begin(now=30)
    assert retry is not None
    health.worked(retry)
    again = health.begin(now=1000)
    assert again is not None
    assert health.failed(again, now=1000)
    assert health.begin(now=1001) is None
    assert health.begin(now=1030) is not None


def test_repr_says_it() -> None:
    assert repr(TunnelHealth()) == "<TunnelHealth works>"
    assert repr(failing()) == "<TunnelHealth does not work>"
