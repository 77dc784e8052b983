"""Many waits on one timer: each item expires once, in order, unless it was removed."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import cast

import pytest

from isthmus.net.deadlines import Deadlines


class Timer:
    """A call that waits for its time."""

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """The clock and the timers of a loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + delay, call))
        return self.timers[-1]

    @property
    def armed(self) -> int:
        return sum(not timer.cancelled for timer in self.timers)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if t.when <= end and not t.cancelled]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now = first.when
            first.call()
        self.now = end


class Bed:
    """Waits of sixteen seconds, so that the grain is half a second."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.expired: list[str] = []
        self.waits: Deadlines[str] = Deadlines(
            cast(AbstractEventLoop, self.loop), 16.0, self.expired.append
        )


def test_items_expire_in_the_order_they_were_added_and_never_early() -> None:
    bed = Bed()
    for name in "abc":
        bed.waits.add(name)
        bed.loop.advance(2.0)
    assert (len(bed.waits), bed.loop.armed) == (3, 1)
    bed.loop.advance(9.9)  # a has waited 15.9 seconds
    assert bed.expired == []
    bed.loop.advance(0.7)
    assert bed.expired == ["a"]
    bed.loop.advance(1.3)  # b has waited 15.9
    assert bed.expired == ["a"]
    bed.loop.advance(10.0)
    assert bed.expired == ["a", "b", "c"]
    assert (len(bed.waits), bed.loop.armed) == (0, 0)
    bed.waits.add("again")  # the timer starts anew
    bed.loop.advance(17.0)
    assert bed.expired[-1] == "again"


def test_a_removed_item_does_not_expire() -> None:
    bed = Bed()
    bed.waits.add("gone")
    bed.waits.add("stays")
    bed.waits.remove("gone")
    bed.waits.remove("never was")
    bed.loop.advance(60.0)
    assert bed.expired == ["stays"]


def test_an_item_added_again_starts_over() -> None:
    bed = Bed()
    bed.waits.add("first")
    bed.waits.add("second")
    bed.loop.advance(10.0)
    bed.waits.add("first")
    bed.loop.advance(10.0)
    assert bed.expired == ["second"]
    bed.loop.advance(10.0)
    assert bed.expired == ["second", "first"]


def test_expiring_may_add_and_remove_others() -> None:
    bed = Bed()

    def on_expired(name: str) -> None:
        bed.expired.append(name)
        waits.remove("b")
        if name == "a":
            waits.add("c")

    waits: Deadlines[str] = Deadlines(cast(AbstractEventLoop, bed.loop), 16.0, on_expired)
    waits.add("a")
    waits.add("b")
    bed.loop.advance(60.0)
    assert bed.expired == ["a", "c"]


def test_all_of_them_can_be_taken() -> None:
    bed = Bed()
    waits: Deadlines[str] = Deadlines(
        cast(AbstractEventLoop, bed.loop), 16.0, lambda name: pytest.fail(name)
    )
    waits.add("a")
    waits.add("b")
    assert waits.take_all() == ["a", "b"]
    assert (len(waits), bed.loop.armed) == (0, 0)
    bed.loop.advance(60.0)


def test_short_waits_have_a_short_grain() -> None:
    bed = Bed()
    waits: Deadlines[str] = Deadlines(cast(AbstractEventLoop, bed.loop), 0.16, bed.expired.append)
    waits.add("a")
    bed.loop.advance(0.18)
    assert bed.expired == ["a"]
