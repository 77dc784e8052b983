"""Slow readers of a call that carries many connections, with a clock that is moved by hand.

Whatever order packets, slow reads, pauses and ends come in: every byte arrives in its order,
nothing is reset, others do not wait for a slow reader while its share lasts, and nothing of the
brake is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.testing import Http2Pair, ManualClock, MemoryEnd, Recorder
from isthmus.tunnel.budget import Account, Budget
from isthmus.tunnel.end import Early, Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.linked_end import LinkedEnd
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.packet_brake import (
    ACTIVE_S,
    MOST_PROBE_S,
    PROBE_BYTES,
    PULSE_S,
    REDUCED_WINDOW_BYTES,
)
from isthmus.tunnel.packet_link import PacketLink
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.wire.http2 import Headers

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
WINDOW = 256 * 1024
KIB, MIB = 1024, 1024 * 1024
STEP_S = 0.001
FULL_BYTES = 64 * KIB
PATTERN = bytes(range(251)) * 40_000
#: A sender's turn for each slow reader, and pulses that are late by a step.
ACTIVE_WAIT_S = 5 * PULSE_S
#: A packet of data waits behind a turn in the call's queue and another before its own.
IDLE_WAIT_S = 2 * MOST_PROBE_S + 0.1


def pattern(at: int, size: int) -> bytes:
    """What a stream has at some place."""
    start = at % 251
    assert start + size <= len(PATTERN)
    return PATTERN[start : start + size]


class Reader(MemoryEnd):
    """A sink that takes bytes at the test's pace, like a socket: full above 64 KiB, resumed at 0.

    Holds what comes against the pattern, so that nothing has to be kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.out_bytes = 0
        self.slow = False
        self.most_bytes = 0

    def took(self, data: bytes) -> None:
        assert data == pattern(self.bytes_written - len(data), len(data))
        if self.slow:
            self.out_bytes += len(data)
            self.most_bytes = max(self.most_bytes, self.out_bytes)
            self.full = self.out_bytes > FULL_BYTES

    def take(self, size: int) -> None:
        """Read so much of what waits."""
        if self.out_bytes:
            self.out_bytes -= min(size, self.out_bytes)
            if not self.out_bytes:
                self.make_room()
                self._maybe_done()

    def _maybe_done(self) -> None:
        if not self.out_bytes:  # a socket is closed when everything is written
            super()._maybe_done()

    def be_quick(self) -> None:
        self.slow = False
        self.take(self.out_bytes)


class Writer(MemoryEnd):
    """A target that sends so much of the pattern, as fast as it may."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = self.to_send = 0

    def send(self, size: int) -> None:
        self.to_send += size
        self.pump()

    def pump(self) -> None:
        while self.to_send and not self.paused and self.ending is None:
            size = min(self.to_send, 60_000)
            self.to_send -= size
            data = pattern(self.sent, size)
            self.sent += size
            self.feed(data)

    def resume_reading(self) -> None:
        super().resume_reading()
        self.pump()


class Program:
    """One side's owner of its PacketLink; its timers are the world's."""

    link: PacketLink

    def __init__(self, world: World) -> None:
        self._world = world
        self.complaints: list[str] = []

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        self._world.asked(random)

    def taken_back(self, random: int) -> None:
        """Nobody does that here."""

    def told_to_drain(self) -> None:
        """Nobody does that here."""

    def call_over(self, text: str) -> None:
        raise AssertionError(text)

    def ease_later(self, delay_s: float) -> None:
        self._world.timer(delay_s, self)

    def broke_rules(self, what: str) -> None:
        raise AssertionError(what)


class Connection:
    """One connection: reader ⇄ server's end … agent's end ⇄ writer."""

    def __init__(self, world: World, random: int) -> None:
        self.reader, self.writer = Reader(), Writer()
        self.random = random
        self.near = world.server.link.dial("a:1", random, self._told)
        self.far: LinkedEnd | None = None
        self.joined = False

    def accept(self, world: World) -> None:
        self.far = world.agent.link.accept(self.random)
        join(self.far, self.writer)

    def _told(self, error: str | None) -> None:
        assert error is None
        self.joined = True
        join(self.near, self.reader)


class World:
    """Our server and our agent; a step of the clock carries whatever windows allow."""

    def __init__(self, *, budget_bytes: int = 8 * MIB, half_closes: bool = True) -> None:
        self.clock = ManualClock()
        self.budget = Budget(budget_bytes)
        self.account: Account = self.budget.account("the agent")
        self._half_closes = half_closes
        self._timers: list[tuple[float, int, Program]] = []
        self._number = 0
        self.server, self.agent = Program(self), Program(self)
        limits = Http2Limits(stream_window_bytes=WINDOW, connection_window_bytes=16 * MIB)
        self.pair = Http2Pair(clock=self.clock, on_request=self._request, limits=limits)
        stream = self.pair.client.open(Recorder())
        assert stream is not None
        stream.handler = self._link(self.agent, stream)
        stream.send_headers(REQUEST)
        self.pair.run()
        self.server.link.stream.send_headers(((b":status", b"200"),))
        self.pair.run()
        self.connections: list[Connection] = []

    def _request(self, stream: Http2Stream, headers: Headers) -> PacketLink:
        return self._link(self.server, stream)

    def _link(self, program: Program, stream: Http2Stream) -> PacketLink:
        program.link = PacketLink(
            stream, program, agent=program is self.agent, clock=self.clock,
            counts=PacketCounts(), half_closes=self._half_closes, account=self.account,
        )  # fmt: skip
        return program.link

    def asked(self, random: int) -> None:
        self.connections[random - 1].accept(self)

    def timer(self, delay_s: float, program: Program) -> None:
        self._number += 1
        heappush(self._timers, (self.clock() + delay_s, self._number, program))

    @property
    def timers(self) -> int:
        return len(self._timers)

    def connect(self) -> Connection:
        made = Connection(self, len(self.connections) + 1)
        self.connections.append(made)
        self.settle()
        return made

    def settle(self) -> None:
        """Carry what windows allow, without time passing."""
        self.pair.run()

    def pass_time(self, seconds: float, *, rates: dict[Connection, float] | None = None) -> None:
        """Let time pass; ``rates`` are the bytes that each reader takes in a second."""
        until = self.clock() + seconds
        while self.clock() < until - 1e-9:
            self.clock.advance(min(STEP_S, until - self.clock()))
            for connection, rate in (rates or {}).items():
                connection.reader.take(int(rate * STEP_S))
            while self._timers and self._timers[0][0] <= self.clock() + 1e-9:
                heappop(self._timers)[2].link.ease()
            self.settle()

    def opened(self, number: int, *, slow: int = 0) -> list[Connection]:
        """Open connections, the first few of them with a slow reader."""
        made = [self.connect() for _ in range(number)]
        self.settle()
        for connection in made[:slow]:
            connection.reader.slow = True
        return made

    def ping(self, connection: Connection, *, most_s: float = 10.0) -> float:
        """A small message of a target; how long it takes to arrive."""
        began = self.clock()
        connection.writer.send(10)
        wanted = connection.writer.sent
        self.settle()
        while connection.reader.bytes_written < wanted and self.clock() - began < most_s:
            self.pass_time(STEP_S)
        return self.clock() - began

    def talk(self, connection: Connection) -> float:
        """A request, and its answer after 1 ms; how long that takes."""
        connection.reader.feed(b"?")
        self.settle()
        self.pass_time(0.001)
        return 0.001 + self.ping(connection)

    def assert_released(self) -> None:
        """Nothing of any brake is left, on either side."""
        for program in (self.server, self.agent):
            brake, stream = program.link.brake, program.link.stream
            assert not brake.behind and not brake._leaving and not brake._sinks
            assert (brake.withheld, program.link.held, stream.unconsumed) == (0, 0, 0)
            assert not program.link.watching and not brake.exhausted
            assert stream.window >= WINDOW
            assert stream.receive_credit + stream.owed == stream.window
        assert self.account.used_bytes == self.budget.used_bytes == 0


def until_exhausted(world: World) -> Iterator[None]:
    """Go on until the share is used up, which must come."""
    for _ in range(2000):
        if world.server.link.brake.exhausted:
            return
        yield
    raise AssertionError("the share is never used up")


# One rule after the other.


def test_an_only_reader_sets_the_pace_and_is_kept_a_window_of() -> None:
    world = World()
    (slow,) = world.opened(1, slow=1)
    slow.writer.send(4 * MIB)
    world.settle()
    assert slow.reader.most_bytes <= WINDOW
    world.pass_time(2.5, rates={slow: 2 * MIB})
    assert slow.reader.bytes_written >= 4 * MIB  # it never had to wait
    # Besides a window, probes were lent while the call stood still for lack of updates.
    assert slow.reader.most_bytes <= WINDOW + 4 * PROBE_BYTES
    assert slow.reader.aborted is None
    world.pass_time(0.5, rates={slow: 2 * MIB})
    world.assert_released()


def test_others_do_not_wait_for_a_reader_that_reads_nothing() -> None:
    world = World(budget_bytes=32 * MIB)
    slow, *others = world.opened(4, slow=1)
    slow.writer.send(64 * MIB)
    for _ in range(40):
        for other in others:
            assert world.talk(other) <= ACTIVE_WAIT_S
        assert world.account.used_bytes <= 16 * MIB
    assert slow.reader.aborted is None and slow.reader.out_bytes > WINDOW


def test_a_reader_is_lent_at_the_pace_of_pulses_and_no_faster() -> None:
    world = World(budget_bytes=64 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    began = world.clock()
    for _ in range(50):
        world.talk(other)
    passed_s = world.clock() - began
    assert slow.reader.out_bytes <= WINDOW + (passed_s / PULSE_S + 2) * 2 * TURN_BYTES


def test_a_call_whose_share_is_used_up_goes_at_the_pace_of_its_reader() -> None:
    world = World(budget_bytes=8 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in until_exhausted(world):
        world.talk(other)
    assert world.account.used_bytes <= 4 * MIB + 4 * WINDOW
    assert world.server.link.stream.window == REDUCED_WINDOW_BYTES
    # It reads nothing: everybody waits, as with Go's programs.
    before = slow.reader.bytes_written
    assert world.ping(other, most_s=20.0) >= 20.0
    assert slow.reader.bytes_written - before <= 3 * TURN_BYTES + WINDOW
    assert slow.reader.aborted is None
    # It reads slowly: everybody goes on, and what is kept stays inside the share.
    world.pass_time(2.0, rates={slow: MIB})
    assert other.reader.bytes_written == other.writer.sent
    assert world.account.used_bytes <= 4 * MIB + WINDOW
    # It catches up: everything comes, and the window is as wide as before.
    slow.reader.be_quick()
    world.pass_time(0.5)
    assert slow.reader.bytes_written == slow.writer.sent == 64 * MIB
    world.assert_released()


def test_a_connection_that_wakes_up_beside_a_reader_that_reads_nothing_is_heard() -> None:
    world = World(budget_bytes=128 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    world.pass_time(3.0)
    assert not world.server.link.brake.exhausted
    assert world.ping(other) <= IDLE_WAIT_S  # nobody could know that it has something
    assert world.talk(other) <= ACTIVE_WAIT_S  # now everybody knows
    world.pass_time(2.0)
    assert world.talk(other) <= ACTIVE_WAIT_S  # who asks is known, too


@pytest.mark.parametrize("by", ["server", "agent"])
def test_a_dial_beside_a_reader_that_reads_nothing_is_answered(by: str) -> None:
    world = World()
    (slow,) = world.opened(1, slow=1)
    slow.writer.send(64 * MIB)
    world.pass_time(3.0)
    if by == "server":
        made = world.connect()
        world.pass_time(ACTIVE_WAIT_S)
        assert made.joined
        return
    # A dial of the program that sends too much: it comes behind what waits there.
    asked: list[int] = []
    world.server.asked = lambda protocol, address, random, ours: asked.append(random)  # type: ignore[method-assign]
    world.agent.link.dial("a:1", 77, lambda error: None)
    world.pass_time(MOST_PROBE_S + 0.1)
    assert asked == [77]


def test_what_an_only_reader_was_lent_is_taken_before_more_comes() -> None:
    world = World(budget_bytes=32 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in range(30):
        world.talk(other)
    kept = slow.reader.out_bytes
    assert kept > 2 * WINDOW
    world.pass_time(ACTIVE_S)
    kept = slow.reader.out_bytes
    world.pass_time(2.0, rates={slow: 4 * MIB})
    assert slow.reader.out_bytes < max(kept - 4 * MIB, 2 * WINDOW)


@pytest.mark.parametrize("how", ["reset", "close", "target resets", "link lost"])
def test_a_slow_reader_that_goes_lets_everybody_on_at_once(how: str) -> None:
    world = World(budget_bytes=2 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in until_exhausted(world):
        world.talk(other)
    other.writer.send(10)
    world.settle()
    if how == "reset":
        slow.reader.reset()
    elif how == "close":
        slow.near.abort(Ending.CANCELLED)
    elif how == "target resets":
        slow.near.closed_by_peer("reset")
    else:
        for program in (world.server, world.agent):
            program.link.lost(Ending.LINK_LOST)
        assert world.account.used_bytes == 0 and not world.server.link.brake._sinks
        return
    world.settle()  # no time passes
    assert other.reader.bytes_written == other.writer.sent
    assert world.account.used_bytes == 0


def test_a_reader_that_gets_nothing_more_brakes_nobody_and_is_still_charged() -> None:
    world = World()
    slow, other = world.opened(2, slow=1)
    slow.writer.send(200_000)
    slow.writer.feed_eof()
    slow.reader.feed_eof()
    world.settle()
    assert slow.near.ending is Ending.CLEAN  # the protocol is done with it; its socket is not
    assert not world.server.link.brake.behind and world.server.link.brake.withheld == 0
    assert world.account.used_bytes == slow.reader.out_bytes == world.server.link.held > 0
    world.pass_time(5.0)
    assert world.account.used_bytes == slow.reader.out_bytes
    slow.reader.take(100_000)
    world.pass_time(0.2)
    assert world.account.used_bytes == slow.reader.out_bytes
    assert world.talk(other) <= ACTIVE_WAIT_S
    slow.reader.take(MIB)
    world.pass_time(0.2)
    world.assert_released()


def test_a_socket_that_is_gone_is_not_charged_for() -> None:
    world = World()
    slow, _ = world.opened(2, slow=1)
    slow.writer.send(200_000)
    slow.writer.feed_eof()
    slow.reader.feed_eof()
    world.settle()
    slow.reader.peer = slow.near  # it has not heard of the end
    slow.reader.ending = Ending.RESET
    world.pass_time(0.2)
    world.assert_released()


def test_who_took_nothing_for_how_long_can_be_asked() -> None:
    world = World()
    slow, slower = world.opened(2, slow=2)
    for connection in (slow, slower):
        connection.writer.send(4 * MIB)
    world.settle()
    world.pass_time(10.0, rates={slow: 64 * KIB})
    brake = world.server.link.brake
    assert list(brake.stalled(9.0)) == [slower.near]
    assert list(brake.stalled(11.0)) == []
    assert slower.reader.aborted is None


def test_a_paused_reader_is_reset_only_after_minutes_of_an_exhausted_budget() -> None:
    world = World(budget_bytes=2 * MIB)
    paused, reading = world.opened(2, slow=2)
    for connection in (paused, reading):
        connection.writer.send(64 * MIB)
    elsewhere = world.budget.account("somebody else")

    def minutes(number: float) -> None:
        for _ in range(round(60 * number)):
            world.clock.advance(1.0 - STEP_S)
            reading.reader.take(1)
            world.pass_time(STEP_S)
            world.server.link.tick()

    minutes(10)  # of a budget that is nearly free
    elsewhere.hold(2 * MIB)
    world.account.hold(MIB)
    assert world.budget.exhausted and world.account.over_share
    minutes(4.9)
    assert paused.reader.aborted is None
    elsewhere.give_back(2 * MIB)
    world.account.give_back(MIB)
    minutes(0.1)
    assert not world.budget.exhausted
    elsewhere.hold(2 * MIB)
    world.account.hold(MIB)
    minutes(4.9)
    assert paused.reader.aborted is None
    minutes(0.2)
    assert paused.reader.aborted is Ending.STALLED
    assert reading.reader.aborted is None
    world.account.give_back(MIB)


def test_paused_readers_are_reset_only_until_there_is_room() -> None:
    world = World(budget_bytes=2 * MIB)
    paused = world.opened(3, slow=3)
    for connection in paused:
        connection.writer.send(80_000)
    world.account.hold(MIB)
    world.pass_time(5.0)
    world.budget.account("somebody else").hold(world.budget.share_bytes)
    assert world.budget.exhausted and world.account.over_share
    for _ in range(301):
        world.clock.advance(1.0)
        world.server.link.tick()
    assert [it.reader.aborted for it in paused].count(Ending.STALLED) == 1
    assert not world.budget.exhausted


def test_a_connection_of_another_account_is_charged_there() -> None:
    world = World()
    one, two = world.opened(2, slow=2)
    two.near.account = world.budget.account("a client")
    for connection in (one, two):
        connection.writer.send(100_000)
    world.pass_time(0.1)
    assert world.account.used_bytes == one.reader.out_bytes == 100_000
    assert two.near.account.used_bytes == two.reader.out_bytes == 100_000
    for connection in (one, two):
        connection.reader.be_quick()
    world.pass_time(0.1)
    world.assert_released()


def test_a_sink_that_cannot_say_how_much_it_has_is_not_given_more() -> None:
    world = World()
    (slow,) = world.opened(1)
    slow.reader.fill()  # out_bytes stays 0
    slow.writer.send(8 * MIB)
    world.pass_time(1.0)
    assert slow.reader.bytes_written <= WINDOW + 6 * PROBE_BYTES
    slow.reader.make_room()
    world.pass_time(0.1)
    assert slow.reader.bytes_written == 8 * MIB
    world.assert_released()


def test_early_bytes_are_charged_where_they_are() -> None:
    world = World()
    end = world.server.link.dial("a:1", 1, lambda error: None)
    made = Connection.__new__(Connection)
    made.reader, made.writer, made.random, made.near = Reader(), Writer(), 1, end
    world.connections.append(made)
    world.settle()
    made.writer.send(200_000)
    world.pass_time(0.01)
    assert isinstance(end.peer, Early) and world.account.used_bytes == len(end.peer.buffer) > 0
    made.reader.slow = True
    join(end, made.reader)
    world.pass_time(0.05)
    assert world.account.used_bytes == made.reader.out_bytes == 200_000
    made.reader.be_quick()
    world.settle()
    world.assert_released()


def test_a_stuck_call_is_not_a_dead_link() -> None:
    world = World(budget_bytes=2 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in until_exhausted(world):
        world.talk(other)
    for _ in range(120):
        world.pass_time(1.0)
        assert world.pair.server.tick() and world.pair.client.tick()
        world.settle()
    assert world.pair.server.unanswered_s == world.pair.client.unanswered_s == 0.0
    assert slow.reader.aborted is None and world.server.link.brake.exhausted


def test_what_we_send_goes_on_while_we_brake() -> None:
    world = World(budget_bytes=2 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in until_exhausted(world):
        world.talk(other)
    got = len(other.writer.received)
    for _ in range(64):
        other.reader.feed(bytes(64 * KIB))
        world.settle()
    assert len(other.writer.received) == got + 4 * MIB


def test_one_timer_is_enough_and_none_is_left() -> None:
    world = World()
    slow, other = world.opened(2, slow=1)
    for _ in range(20):
        slow.writer.send(100_000)
        world.talk(other)
        slow.reader.be_quick()
        slow.reader.slow = True
        world.settle()
    assert world.timers <= 3
    world.pass_time(0.3)
    assert world.timers == 0
    world.assert_released()


# Any order.

PICK = st.integers(0, 4)
ACTS = st.one_of(
    st.tuples(st.just("pour"), PICK, st.sampled_from([100, 70_000, 600_000, 3_000_000])),
    st.tuples(st.just("pour"), PICK, st.sampled_from([100, 70_000, 600_000, 3_000_000])),
    st.tuples(st.just("take"), PICK, st.sampled_from([1, 5_000, 100_000, 4_000_000])),
    st.tuples(st.just("take"), PICK, st.sampled_from([1, 5_000, 100_000, 4_000_000])),
    st.tuples(st.just("quick"), PICK, st.just(0)),
    st.tuples(st.just("slow"), PICK, st.just(0)),
    st.tuples(st.just("ask"), PICK, st.sampled_from([1, 100_000])),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, 3, 20, 150, 1200])),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, 3, 20, 150, 1200])),
    st.tuples(st.just("open"), st.just(0), st.just(0)),
    st.tuples(st.just("end"), PICK, st.just(0)),
    st.tuples(st.just("half-close"), PICK, st.just(0)),
    st.tuples(st.just("reset"), PICK, st.just(0)),
)


class Checked:
    """A world, and what was done to it."""

    def __init__(self, budget_bytes: int, slow: list[bool]) -> None:
        self.world = World(budget_bytes=budget_bytes)
        self.was_reset: set[Connection] = set()
        for is_slow in slow:
            self.world.connect().reader.slow = is_slow

    def act(self, what: str, pick: int, size: int) -> None:
        world = self.world
        if what == "wait":
            world.pass_time(size / 1000)
        elif what == "open" and len(world.connections) < 5:
            world.connect()
        elif pick < len(world.connections):
            self._act(world.connections[pick], what, size)
        world.settle()

    def _act(self, it: Connection, what: str, size: int) -> None:
        if what == "take":
            it.reader.take(size)
        elif what == "quick":
            it.reader.be_quick()
        elif what == "slow":
            it.reader.slow = True
        elif it.reader.ending is not None or not it.joined or it.far is None:
            return
        elif what == "pour" and not it.writer._eof_waits:
            it.writer.send(size)
        elif what == "ask" and not it.reader._eof_waits:
            it.reader.feed(bytes(size))
        elif what == "end" and not it.writer.to_send:
            it.writer.feed_eof()
        elif what == "half-close":
            it.reader.feed_eof()
        elif what == "reset":
            self.was_reset.add(it)
            it.reader.reset()

    def finish(self) -> None:
        """Everybody reads: everything comes, and nothing is left."""
        world = self.world
        for _ in range(3):  # what a dial brings when it is answered may fill its reader
            for it in world.connections:
                it.reader.be_quick()
            world.pass_time(0.2)
        for it in world.connections:
            assert it.joined
            if it not in self.was_reset:
                assert it.reader.aborted is None and it.writer.aborted is None
                assert it.reader.bytes_written == it.writer.sent and not it.writer.to_send
        world.assert_released()
        assert world.timers == 0
        # And it works on.
        last = world.connect()
        last.writer.send(2 * MIB)
        world.settle()
        assert last.reader.bytes_written == 2 * MIB


@given(
    st.sampled_from([600_000, 2 * MIB, 64 * MIB]),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(ACTS, max_size=25),
)
def test_every_byte_arrives_and_the_brake_is_always_let_go(
    budget_bytes: int, slow: list[bool], acts: list[tuple[str, int, int]]
) -> None:
    checked = Checked(budget_bytes, slow)
    for what, pick, size in acts:
        checked.act(what, pick, size)
        share = checked.world.budget.total_bytes // 2
        # Over it by what was under way when it was reached: a window, and a look late.
        assert checked.world.budget.used_bytes <= share + 8 * WINDOW
    checked.finish()


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 30_000, 500_000])),
             min_size=1, max_size=20),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_nobody_waits_for_longer_than_a_few_pulses_while_the_share_lasts(
    slow: int, acts: list[tuple[int, int]], idle: bool
) -> None:
    world = World(budget_bytes=1024 * MIB)
    *readers, other = world.opened(slow + 1, slow=slow)
    for reader in readers:
        reader.writer.send(200 * MIB)
    world.settle()
    for pick, taken in acts:
        if idle:
            world.pass_time(2 * ACTIVE_S)
        waited_s = world.talk(other)
        assert not world.server.link.brake.exhausted
        # Each slow reader has its turns, and how many take turns is learned in a few looks.
        assert waited_s <= ACTIVE_WAIT_S * (1 + slow)
        readers[pick % slow].reader.take(taken)
    for reader in readers:
        assert reader.reader.aborted is None
        reader.reader.reset()
    world.settle()
    assert world.talk(other) <= 2 * STEP_S
    world.pass_time(0.3)
    world.assert_released()


@dataclass(frozen=True)
class Pace:
    """How a reader reads: a gulp every so often."""

    rate: int
    gulp_s: float


@pytest.mark.parametrize("others_eighths", [0, 4, 8])
@pytest.mark.parametrize(
    "pace",
    [
        Pace(64 * KIB, STEP_S),  # less than is worth a frame between two looks
        Pace(64 * KIB, 0.5),  # and nothing at most looks
        Pace(400 * KIB, 0.3),
        Pace(MIB, STEP_S),
    ],
)
def test_whoever_waits_for_a_reader_waits_for_what_is_under_way_and_no_more(
    pace: Pace, others_eighths: int
) -> None:
    """The share is used up: others go on as the reader reads on, long before it catches up."""
    world = World(budget_bytes=8 * MIB)
    slow, other = world.opened(2, slow=1)
    slow.writer.send(64 * MIB)
    for _ in until_exhausted(world):
        world.talk(other)
    world.budget.account("somebody else").hold(others_eighths * MIB)

    def read_until(wanted: int, most_s: float) -> None:
        since = world.clock()
        while other.reader.bytes_written < wanted:
            assert world.clock() - since < most_s
            world.pass_time(pace.gulp_s)
            slow.reader.take(int(pace.rate * pace.gulp_s))
            world.settle()

    # What was sent before the window was narrow goes first. Far over a share that others have made
    # smaller, it goes at half the pace.
    other.writer.send(10)
    read_until(other.writer.sent, 2 * (WINDOW + 2 * TURN_BYTES) / pace.rate + 1.0)
    for _ in range(3):
        other.writer.send(10)
        under_way = REDUCED_WINDOW_BYTES + 2 * TURN_BYTES
        read_until(other.writer.sent, 2 * under_way / pace.rate + pace.gulp_s)
    assert slow.reader.out_bytes > MIB and slow.reader.aborted is None
