"""How many agents shake hands at once: some are read, the others wait, the newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from isthmus.programs.server.agents import PLACE_S, Handshakes


class Handle:
    """A timer that is not due."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Time that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[Handle, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Handle:
        handle = Handle()
        self.due.append((handle, work))
        return handle

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for handle, work in due:
            if not handle.cancelled:
                work()


class Link:
    """A link whose connection says whether it is read."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.closed_because = ""
        self.peer_shut = False
        self.read = True

    @property
    def carrier(self) -> Link:
        return self

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True

    def lost(self, why: str) -> None:
        self.closed_because = why
        self.bench.handshakes.over(self)


class Bench:
    """Some links that came at once."""

    def __init__(self, number: int, most: int = 2) -> None:
        self.loop = Loop()
        self.handshakes = Handshakes(cast(asyncio.AbstractEventLoop, self.loop), most)
        self.links = [Link(self) for _ in range(number)]
        for link in self.links:
            self.handshakes.came(link)

    @property
    def read(self) -> list[int]:
        return [index for index, link in enumerate(self.links) if link.read]


def test_so_many_are_read_and_the_newest_is_next() -> None:
    bench = Bench(5)
    assert bench.read == [0, 1]
    bench.handshakes.over(bench.links[0])
    assert bench.read == [0, 1, 4]
    bench.handshakes.over(bench.links[4])
    bench.handshakes.over(bench.links[1])
    assert bench.read == [0, 1, 2, 3, 4]
    assert len(bench.handshakes) == 2


def test_who_takes_long_keeps_nobody_out() -> None:
    bench = Bench(5)
    bench.loop.pass_time(PLACE_S / 2)
    assert bench.read == [0, 1]
    bench.loop.pass_time(PLACE_S)
    assert bench.read == [0, 1, 3, 4]
    bench.handshakes.over(bench.links[0])  # has no place any more to give
    assert bench.read == [0, 1, 3, 4]
    bench.loop.pass_time(PLACE_S + 0.01)
    assert bench.read == [0, 1, 2, 3, 4]
    assert not bench.loop.due  # nobody waits, nobody looks


def test_who_left_is_not_served() -> None:
    bench = Bench(6)
    bench.links[5].peer_shut = True  # gave up
    bench.links[4].lost("handshake timed out")
    bench.handshakes.over(bench.links[0])
    assert bench.read == [0, 1, 3]
    assert bench.links[5].closed_because == "left before its turn"
    assert len(bench.handshakes) == 3


def test_nobody_is_served_after_the_end() -> None:
    bench = Bench(4)
    bench.handshakes.close()
    bench.loop.pass_time(10 * PLACE_S)
    bench.handshakes.over(bench.links[0])
    assert bench.read == [0, 1]
