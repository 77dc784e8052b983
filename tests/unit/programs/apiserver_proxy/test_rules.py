"""Upstreams: when one goes down and comes back, and who is tried first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.apiserver_proxy.rules import FAILED_FOR_S, Bounds, UpstreamHealth, Upstreams
from isthmus.values import HostPort

A, B, C = (HostPort(name, 6443) for name in "abc")


def after(results: Sequence[bool], bounds: Bounds | None = None) -> tuple[bool, int]:
    """Whether it is up after these checks, and how often that changed."""
    health, changes = UpstreamHealth(), 0
    for ok in results:
        changes += health.checked(ok, "", bounds or Bounds())
    return health.is_up, changes


@pytest.mark.parametrize(
    ("results", "up", "changes"),
    [
        ("", True, 0),
        ("--", True, 0),
        ("---", False, 1),
        ("--+--", True, 0),
        ("---++", False, 1),
        ("---+++", True, 2),
        ("---++-+++", True, 2),
        ("---++-++", False, 1),
        ("+++++---", False, 1),
    ],
)
def test_three_in_a_row_change_it(results: str, up: bool, changes: int) -> None:
    assert after([it == "+" for it in results]) == (up, changes)


def test_the_bounds_are_two() -> None:
    bounds = Bounds(fall=1, rise=2)
    assert after([False], bounds) == (False, 1)
    assert after([False, True], bounds) == (False, 1)
    assert after([False, True, True], bounds) == (True, 2)


@given(
    results=st.lists(st.booleans(), max_size=60),
    fall=st.integers(1, 5),
    rise=st.integers(1, 5),
)
def test_as_a_window_would_say(results: list[bool], fall: int, rise: int) -> None:
    """The state is that of the last run of equal results that was long enough to change it."""
    up, run, last = True, 0, None
    for ok in results:
        run = run + 1 if ok is last else 1
        last = ok
        if ok is not up and run >= (rise if ok else fall):
            up = ok
    assert after(results, Bounds(fall=fall, rise=rise))[0] is up


def down(upstreams: Upstreams, at: HostPort) -> None:
    found = upstreams.find(at)
    assert found is not None
    assert found.health.checked(False, "", Bounds(fall=1))


def test_the_fewest_connections_first() -> None:
    upstreams = Upstreams([A, B, C])
    for at, count in ((A, 2), (B, 0), (C, 1)):
        for _ in range(count):
            upstreams.took(at)
    for _ in range(4):
        assert upstreams.in_order(now=0, most=4) == [B, C, A]
    upstreams.let_go(A)
    upstreams.let_go(A)
    upstreams.took(B)
    assert upstreams.in_order(now=0, most=1) == [A]


def test_those_that_are_alike_take_turns() -> None:
    upstreams = Upstreams([A, B, C])
    assert {upstreams.in_order(now=0, most=1)[0] for _ in range(3)} == {A, B, C}


def test_one_that_is_down_comes_last_and_is_not_left_out() -> None:
    upstreams = Upstreams([A, B])
    upstreams.took(B)
    down(upstreams, A)
    assert upstreams.in_order(now=0, most=9) == [B, A]
    assert upstreams.any_up
    down(upstreams, B)
    assert [it.at for it in upstreams if it.health.is_up] == []
    assert upstreams.in_order(now=0, most=9) == [A, B]


def test_one_that_failed_comes_later_for_a_moment() -> None:
    upstreams = Upstreams([A, B])
    upstreams.took(A)
    upstreams.failed(A, now=10.0)
    upstreams.took(B)
    assert upstreams.in_order(now=10.0 + FAILED_FOR_S - 0.1, most=2) == [B, A]
    assert upstreams.in_order(now=10.0 + FAILED_FOR_S, most=2) == [A, B]
    upstreams.took(A)
    upstreams.failed(A, now=20.0)
    upstreams.reached(A)
    assert upstreams.in_order(now=20.0, most=2) == [A, B]


def test_a_new_plan_keeps_what_stays() -> None:
    upstreams = Upstreams([A, B])
    upstreams.took(A)
    upstreams.took(B)
    down(upstreams, B)
    upstreams.replace([B, C, C])
    assert [it.at for it in upstreams] == [B, C]
    assert upstreams.find(A) is None
    kept = upstreams.find(B)
    assert kept is not None and not kept.health.is_up and kept.connections == 1
    upstreams.let_go(A)  # the last connection of one that is gone
    upstreams.replace([A])
    fresh = upstreams.find(A)
    assert fresh is not None and fresh.connections == 0


def test_one_that_comes_back_still_has_its_connections() -> None:
    upstreams = Upstreams([A])
    upstreams.took(A)
    upstreams.replace([B])
    upstreams.replace([A])
    found = upstreams.find(A)
    assert found is not None and found.connections == 1
