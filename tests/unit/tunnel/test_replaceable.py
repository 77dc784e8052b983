"""The replaceable carrier: offsets, acknowledgements, what is kept, and time that stands still."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import KIB, MIB, Limits
from isthmus.tunnel.replaceable import (
    MOST_KEPT_CONTROL_BYTES,
    PausableClock,
    ReplaceableCarrier,
)
from isthmus.tunnel.session import Session
from isthmus.wire.yamux import FIN, PING, SYN, WINDOW_UPDATE, pack


class Side:
    """The client of a session whose peer is the test."""

    def __init__(self, limits: Limits = Limits(), budget: int = 100 * MIB) -> None:
        self.clock = ManualClock()
        self.budget = Budget(budget)
        account = self.budget.account("peer")
        self.connection = MemoryCarrier()
        self.session = self.connection.session = Session(
            self.connection, client=True, clock=self.clock, on_stream=lambda stream: None,
            limits=limits,
        )  # fmt: skip
        self.carrier = ReplaceableCarrier(self.connection, self.session, account)
        self.session.acknowledged_low = self.carrier.acknowledge_low
        account.close()

    def send(self, size: int) -> None:
        """Have the session send ``size`` bytes in one batch."""
        self.carrier.send(bytes(size))

    def open(self) -> MemoryEnd:
        stream, end = self.session.open(), MemoryEnd()
        assert stream is not None
        join(stream, end)
        return end

    def receive(self, raw: bytes) -> None:
        self.session.heard()
        self.session.receive(memoryview(raw))

    def replace(self, offset: int) -> MemoryCarrier:
        self.carrier.detach()
        connection = MemoryCarrier()
        self.carrier.attach(connection, offset)
        return connection


def test_what_is_acknowledged_is_not_sent_again() -> None:
    side = Side()
    for part in (b"one", b"two", b"three"):
        side.carrier.send(part)
    side.carrier.acknowledge(4)
    assert bytes(side.replace(4).sent) == b"wothree"
    assert bytes(side.replace(11).sent) == b""
    assert side.carrier.resent_bytes == 7


@pytest.mark.parametrize("offset", [0, 3, 12])
def test_no_other_offset_can_be_resumed_at(offset: int) -> None:
    side = Side()
    side.send(11)
    side.carrier.acknowledge(4)
    assert not side.carrier.can_resume_at(offset)
    with pytest.raises(ProtocolError, match=f"resume at {offset}, not from 4 to 11"):
        side.replace(offset)


def test_an_acknowledgement_of_what_was_never_sent() -> None:
    side = Side()
    side.send(10)
    with pytest.raises(ProtocolError, match="11 bytes acknowledged, 10 were sent"):
        side.carrier.acknowledge(11)
    with pytest.raises(ProtocolError, match="a ping acknowledges 11 bytes that were not sent"):
        side.carrier.acknowledge_low(11)


def test_an_old_acknowledgement_changes_nothing() -> None:
    side = Side()
    side.send(10)
    side.carrier.acknowledge(8)
    side.carrier.acknowledge(5)
    side.carrier.acknowledge_low(5)
    assert side.carrier.acknowledged == 8


def test_pings_acknowledge_past_four_gibibytes() -> None:
    side = Side()
    side.carrier.sent = side.carrier.acknowledged = side.carrier._start = 2**32 - 5
    side.send(10)
    side.receive(pack(0, PING, SYN, 0, 3))
    assert side.carrier.acknowledged == 2**32 + 3


def test_an_idle_link_keeps_next_to_nothing() -> None:
    side = Side()
    for _ in range(5000):
        side.clock.advance(10)
        side.receive(pack(0, PING, SYN, 0, side.carrier.sent))
        assert side.session.tick()
        side.connection.flush()
        (ping,) = (f for f in side.connection.frames() if f.type == PING and f.flags == SYN)
        side.receive(pack(0, PING, 2, 0, ping.header.length))
    assert side.carrier.kept_bytes < KIB
    assert side.budget.used_bytes == 0
    assert side.session.received_bytes == side.session.quiet_bytes


def test_data_is_held_back_and_control_is_not() -> None:
    side = Side(Limits(first_kept_bytes=10_000, most_kept_bytes=10_000, batch_bytes=8_000))
    end = side.open()
    side.receive(pack(0, WINDOW_UPDATE, 0, 1, 100_000))
    for _ in range(10):
        end.feed(bytes(5_000))
        side.connection.flush()
    assert side.session.holds_back
    assert side.carrier.kept_bytes < 10_000 + 16_000
    assert end.waiting_bytes or end.paused
    before = side.carrier.sent
    side.session.ping()
    side.connection.flush()
    assert side.carrier.sent == before + 12
    side.carrier.acknowledge(before)
    assert not side.session.holds_back
    side.connection.flush()
    assert side.carrier.sent > before + 5_000


def test_a_peer_inside_its_share_is_kept_more_for() -> None:
    rich, poor = Side(), Side(budget=MIB)
    for side in (rich, poor):
        side.session.round_trip_s = 0.05
        for _ in range(12):
            side.send(MIB)
    assert (rich.carrier.limit_bytes, rich.session.holds_back) == (16 * MIB, False)
    assert (poor.carrier.limit_bytes, poor.session.holds_back) == (4 * MIB, True)
    assert rich.budget.used_bytes >= 12 * MIB
    for side in (rich, poor):
        side.carrier.close()
        assert (side.budget.used_bytes, side.budget.peers) == (0, 0)


def test_over_a_short_way_no_more_is_kept() -> None:
    side = Side()
    for _ in range(12):
        side.send(MIB)
    assert (side.carrier.limit_bytes, side.session.holds_back) == (4 * MIB, True)


def test_a_peer_that_acknowledges_nothing_is_noticed() -> None:
    side = Side(Limits(first_kept_bytes=10_000, most_kept_bytes=10_000))
    side.send(20_000)
    assert side.session.holds_back and not side.carrier.overfull
    side.send(MOST_KEPT_CONTROL_BYTES)
    assert side.carrier.overfull


def test_nothing_of_a_connection_that_was_let_go_is_heard() -> None:
    side = Side()
    old = side.connection
    assert side.carrier.detach() == 0
    assert old.session is None and side.carrier.suspended
    assert side.carrier.detach() == 0


def test_a_full_connection_gets_the_rest_when_it_has_room() -> None:
    side = Side()
    for part in (b"one", b"two", b"three"):
        side.carrier.send(part)
    side.session.ping()
    side.carrier.detach()
    connection = MemoryCarrier(room_bytes=0)
    side.carrier.attach(connection, 0)
    pieces = []
    while piece := connection.take():
        pieces.append(piece)
    assert pieces == [b"one", b"two", b"three", pack(0, PING, SYN, 0, 0)]
    assert connection.session is side.session


def test_time_stands_still_while_there_is_no_connection() -> None:
    side = Side()
    end = side.open()
    side.receive(pack(0, WINDOW_UPDATE, FIN, 1, 0))
    assert side.session.tick()
    for _ in range(3):
        side.carrier.detach()
        side.clock.advance(3600)
        side.carrier.attach(MemoryCarrier(), side.carrier.sent)
        side.clock.advance(1)
        assert side.session.tick()
        assert end.aborted is None
    side.clock.advance(301)
    side.session.heard()
    side.session.tick()
    assert end.aborted is Ending.TIMED_OUT


def test_a_clock_that_stands_still_goes_on_from_there() -> None:
    real = ManualClock()
    clock = PausableClock(real)
    began = clock()
    for _ in range(2):
        clock.stop()
        clock.stop()
        real.advance(10)
        clock.go_on()
        clock.go_on()
    real.advance(1)
    assert clock() == began + 1
