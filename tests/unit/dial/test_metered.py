"""Tunnels that are held to a rate: who waits, for how long, and that nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import cast

import pytest

from isthmus.dial.metered import Face, Gates, MeteredTunnel
from isthmus.dial.rules_policy import Share
from isthmus.dial.rules_shares import Pot
from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, unsent
from isthmus.tunnel.first_byte import DialAgain
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import (
    DIRECTLY,
    AgentId,
    DialOutcome,
    DialRequest,
    HostPort,
    Identity,
    TunnelId,
)

RATE = 100


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose clock is moved by hand, and that calls what is due then."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None], Timer]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer()
        self._due.append((self.now + delay_s, call, timer))
        return timer

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while any(at <= until and not timer.cancelled for at, _, timer in self._due):
            self._due.sort(key=lambda it: it[0])
            at, call, timer = self._due.pop(0)
            self.now = max(self.now, at)
            if not timer.cancelled:
                call()
        self.now = until


def share(rate: int = RATE, burst: int = RATE) -> Share:
    return Share(name="s", bytes_per_s=rate, burst_bytes=burst)


class Bed:
    def __init__(self, pots: int = 1) -> None:
        self.loop = Loop()
        self.waits = 0
        self.pots = [Pot(share(), f"p{number}", now=0.0) for number in range(pots)]
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.gates = [Gates(pot, loop, self._waited) for pot in self.pots]
        self.ended: list[Tunnel] = []

    def _waited(self) -> None:
        self.waits += 1

    def open(
        self, again: DialAgain | None = None, far: MemoryEnd | None = None
    ) -> tuple[MeteredTunnel, MemoryEnd, MemoryEnd]:
        client, far = MemoryEnd(), far or MemoryEnd()
        tunnel = MeteredTunnel(
            TunnelId(1),
            DialRequest(HostPort("10.0.0.1", 443), Identity("ann"), "test"),
            DIRECTLY,
            client=client,
            far=far,
            opened_at=0.0,
            on_done=self.ended.append,
        )
        tunnel.dial_again_by(again)
        tunnel.hold_to(([it.to_target for it in self.gates], [it.to_client for it in self.gates]))
        tunnel.open()
        return tunnel, client, far


def test_a_burst_goes_at_once_and_the_rest_at_its_rate() -> None:
    bed = Bed()
    tunnel, client, far = bed.open()
    for _ in range(10):
        client.feed(b"x" * 50)
    # The piece that makes the debt has gone, too.
    assert len(far.received) == 150 and tunnel.held and bed.waits == 1
    bed.loop.advance(0.6)
    assert len(far.received) == 200
    bed.loop.advance(10.0)
    assert len(far.received) == 500 and not tunnel.held


def test_the_directions_have_a_rate_each() -> None:
    bed = Bed()
    _, client, far = bed.open()
    client.feed(b"x" * 500)
    client.feed(b"x" * 500)
    far.feed(b"y" * 80)
    assert len(far.received) == 500 and len(client.received) == 80


def test_those_of_one_pot_take_turns() -> None:
    bed = Bed()
    tunnels = [bed.open() for _ in range(3)]
    for _, client, _ in tunnels:
        for _ in range(20):
            client.feed(b"x" * 100)
    bed.loop.advance(60.0)
    got = [len(far.received) for _, _, far in tunnels]
    assert sum(got) == 6000 or (max(got) - min(got)) <= 100, got
    assert sum(got) <= RATE + RATE * 60.0 + 300


@pytest.mark.parametrize("pays", [0, 1])
def test_of_two_pots_both_have_to_be_paid(pays: int) -> None:
    bed = Bed(pots=2)
    bed.pots[pays].become(share(rate=10, burst=10), now=0.0)
    _, client, far = bed.open()
    client.feed(b"x" * 110)  # one pot is out of debt after 0.1 s, the other after 10
    client.feed(b"y")
    bed.loop.advance(9.0)
    assert len(far.received) == 110
    bed.loop.advance(1.5)
    assert len(far.received) == 111


def test_a_full_sink_and_a_debt_are_both_waited_for() -> None:
    bed = Bed()
    _, client, far = bed.open()
    far.full = True
    client.feed(b"x" * 200)
    client.feed(b"y")
    bed.loop.advance(10.0)
    assert len(far.received) == 200  # paid, but full
    far.full = False
    far.peer.resume_reading()
    assert len(far.received) == 201
    # The other way round: room comes first, and the debt is paid later.
    far.full = True
    bed.pots[0].become(share(), now=bed.loop.now)
    client.feed(b"x" * 300)
    client.feed(b"y")
    far.full = False
    far.peer.resume_reading()
    assert len(far.received) == 501
    bed.loop.advance(10.0)
    assert len(far.received) == 502


def test_half_closes_and_resets_do_not_wait() -> None:
    bed = Bed()
    _, client, far = bed.open()
    client.feed(b"x" * 500)
    client.feed_eof()
    far.feed(b"reply")
    assert client.received == b"reply"
    far.peer.abort(Ending.RESET)
    assert client.aborted is Ending.RESET
    bed.loop.advance(100.0)


class Lost(MemoryEnd):
    """A far end whose link is lost, as streams lose theirs."""

    def lose(self) -> None:
        peer = self.peer
        self._finish(Ending.LINK_LOST)
        peer.abort(Ending.LINK_LOST)


class Dialing:
    """A dial under way."""

    def cancel(self) -> None:
        """Nobody does."""


@pytest.mark.parametrize("first", ["client", "far"])
def test_before_the_first_byte_it_can_be_dialed_again(first: str) -> None:
    bed = Bed()
    tunnel, client, far = bed.open(lambda tunnel: Dialing())
    assert tunnel.untouched and not tunnel.held
    one, two = (client, far) if first == "client" else (far, client)
    one.feed(b"x" * 500)
    one.feed(b"y")
    assert not tunnel.untouched and tunnel.held and len(two.received) == 500
    bed.loop.advance(4.5)
    assert len(two.received) == 501


def test_dialed_again_it_is_held_to_the_same_rate() -> None:
    bed = Bed()
    far, other = Lost(), MemoryEnd()
    tunnel, client, _ = bed.open(lambda tunnel: Dialing(), far)
    far.lose()
    client.feed(b"x" * 500)
    tunnel.dialed_again(other, DialOutcome(AgentId("second"), 2))
    client.feed(b"y")
    assert len(other.received) == 500 and tunnel.held and client.aborted is None
    bed.loop.advance(4.5)
    assert len(other.received) == 501
    other.feed(b"answer")
    other.feed_eof()
    client.feed_eof()
    assert client.received == b"answer" and bed.ended == [tunnel]
    assert tunnel.ending is Ending.CLEAN


def test_early_bytes_count_too() -> None:
    bed = Bed()
    client, far = MemoryEnd(), MemoryEnd()
    client.feed(b"x" * 500)
    tunnel = MeteredTunnel(
        TunnelId(1),
        DialRequest(HostPort("10.0.0.1", 443), Identity("ann"), "test"),
        DIRECTLY,
        client=client,
        far=far,
        opened_at=0.0,
        on_done=bed.ended.append,
    )
    tunnel.dial_again_by(None)
    tunnel.hold_to(([bed.gates[0].to_target], [bed.gates[0].to_client]))
    tunnel.open()
    assert len(far.received) == 500 and tunnel.held
    client.feed(b"y")
    assert len(far.received) == 500
    bed.loop.advance(4.5)
    assert len(far.received) == 501


def test_it_shows_what_its_sink_keeps_and_how_that_ended() -> None:
    source, sink = MemoryEnd(), MemoryEnd()
    sink.out_bytes = 7  # type: ignore[attr-defined]
    face = Face(source, sink, ())
    assert (unsent(face), face.ending) == (7, None)
    sink.abort(Ending.RESET)
    assert face.ending is Ending.RESET


def test_one_that_is_gone_does_not_keep_the_others_waiting() -> None:
    bed = Bed()
    gone, client, _ = bed.open()
    client.feed(b"x" * 200)
    _, second, far = bed.open()
    second.feed(b"x" * 100)
    second.feed(b"y")
    gone.abort(Ending.ADMIN)
    gone.leave()
    bed.loop.advance(2.5)
    assert far.received[-1:] == b"y"


def test_a_rate_that_is_lifted_lets_everybody_on() -> None:
    bed = Bed()
    _, client, far = bed.open()
    client.feed(b"x" * 10_000)
    client.feed(b"y")
    bed.pots[0].become(Share(name="s", max_tunnels=5), now=0.0)
    bed.gates[0].changed()
    assert len(far.received) == 10_001


def test_a_finished_tunnel_is_freed_without_a_collection() -> None:
    bed = Bed()
    gc.collect()
    gc.disable()
    try:
        tunnel, client, far = bed.open()
        client.feed(b"x")
        tunnel.abort(Ending.ADMIN)
        tunnel.leave()
        bed.ended.clear()
        del tunnel, client, far
        assert not [it for it in gc.get_objects() if isinstance(it, MeteredTunnel | MemoryEnd)]
    finally:
        gc.enable()
