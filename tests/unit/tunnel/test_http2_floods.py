"""Floods: a bucket for each kind, refilled by time."""

from __future__ import annotations

from isthmus.testing import ManualClock
from isthmus.tunnel.limits import BURST, PER_SECOND, Floods


def test_a_burst_and_then_the_pace() -> None:
    clock = ManualClock()
    floods = Floods(clock)
    assert all(floods.allow("pings") for _ in range(BURST))
    assert not floods.allow("pings")
    clock.advance(3.5 / PER_SECOND)  # one for the refused, and two and a half
    assert floods.allow("pings")
    assert floods.allow("pings")
    assert not floods.allow("pings")


def test_kinds_are_apart_and_cost_differs() -> None:
    floods = Floods(ManualClock())
    assert floods.allow("one", BURST)
    assert not floods.allow("one")
    assert floods.allow("two", BURST - 1)
    assert floods.allow("two")
    assert not floods.allow("two")


def test_rest_does_not_save_up_for_more_than_a_burst() -> None:
    clock = ManualClock()
    floods = Floods(clock)
    floods.allow("pings")
    clock.advance(1e6)
    assert floods.allow("pings", BURST)
    assert not floods.allow("pings")
