"""Properties of the yamux codec and session: any split, any garbage, any order of events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isthmus.errors import ProtocolError
from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd, MemoryLink
from isthmus.tunnel.budget import FULL_SINK_BYTES, STREAM_BYTES, Budget
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import MIB, Limits
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import MAX_FRAME, MAX_WINDOW, Stream
from isthmus.wire.yamux import (
    DATA,
    FIN,
    GO_AWAY,
    INITIAL_WINDOW,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    Flags,
    FrameType,
    Header,
    pack,
    take_header,
)

UINT32 = st.integers(0, 2**32 - 1)
HEADERS = st.builds(
    Header,
    st.sampled_from(FrameType),
    st.integers(0, 15).map(Flags),
    UINT32,
    UINT32,
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut at these places, wherever they fall within the data."""
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


CUTS = st.lists(UINT32, max_size=40)


@given(HEADERS, st.binary(max_size=20))
@settings(deadline=None)
def test_a_header_survives_the_round_trip(header: Header, rest: bytes) -> None:
    buffer = bytearray(header.to_bytes() + rest)
    assert take_header(buffer) == header
    assert buffer == rest


@given(st.lists(HEADERS, max_size=10), CUTS)
@settings(deadline=None)
def test_headers_come_out_of_any_split(headers: list[Header], cuts: list[int]) -> None:
    buffer, taken = bytearray(), []
    for piece in split(b"".join(header.to_bytes() for header in headers), cuts):
        buffer += piece
        while (header := take_header(buffer)) is not None:
            taken.append(header)
    assert taken == headers
    assert not buffer


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_a_header_is_taken_refused_or_not_all_here(raw: bytes) -> None:
    buffer = bytearray(raw)
    try:
        header = take_header(buffer)
    except ProtocolError:
        assert buffer == raw
        return
    if header is None:
        assert len(raw) < 12 and buffer == raw
    else:
        assert header.to_bytes() + buffer == raw


# A session fed by a script.


class Listener:
    """A server session that records everything that happens to its streams, in order."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.ends: dict[int, MemoryEnd] = {}
        self.carrier = MemoryCarrier()
        self.session = self.carrier.session = Session(
            self.carrier, client=False, clock=ManualClock(), on_stream=self.accept
        )

    def accept(self, stream: Stream) -> None:
        end = MemoryEnd()
        end.full = self.full
        join(stream, end)
        self.ends[stream.id] = end

    def deliveries(self) -> dict[int, tuple[bytes, int, Ending | None]]:
        return {id_: (bytes(e.received), e.eofs, e.aborted) for id_, e in self.ends.items()}


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Frames of a well-behaved client: streams that open, send, half-close and reset."""
    frames: list[bytes] = []
    open_: set[int] = set()
    next_id = 1
    left: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 25))):
        act = draw(st.sampled_from(["open", "data", "data", "fin", "reset", "ping", "stray"]))
        if act == "open":
            early = draw(st.binary(max_size=5))
            frames.append(pack(0, DATA, SYN, next_id, len(early)) + early)
            open_.add(next_id)
            left[next_id] = INITIAL_WINDOW - len(early)
            next_id += 2
        elif act == "ping":
            frames.append(pack(0, PING, SYN, 0, draw(UINT32)))
        elif act == "stray":
            frames.append(pack(0, DATA, 0, 2**31 + 1, 5) + b"stray")
        elif open_:
            id_ = draw(st.sampled_from(sorted(open_)))
            if act == "reset":
                frames.append(pack(0, WINDOW_UPDATE, RST, id_, 0))
                open_.remove(id_)
                continue
            data = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 100]))
            data = data[: left[id_]]
            left[id_] -= len(data)
            frames.append(pack(0, DATA, FIN if act == "fin" else 0, id_, len(data)) + data)
            if act == "fin":
                open_.remove(id_)
    return frames


@given(conversations(), CUTS)
@settings(deadline=None)
def test_any_split_gives_the_same_deliveries(frames: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(frames)
    whole, pieces, bytewise = Listener(), Listener(), Listener()
    whole.session.receive(memoryview(raw))
    for piece in split(raw, cuts):
        pieces.session.receive(memoryview(piece))
    for byte in raw:
        bytewise.session.receive(memoryview(bytes([byte])))
    assert whole.deliveries() == pieces.deliveries() == bytewise.deliveries()
    for listener in (whole, pieces, bytewise):
        listener.session.flush()
    answers = {listener.carrier.take() for listener in (whole, pieces, bytewise)}
    assert len(answers) == 1


WILD_HEADERS = st.builds(
    lambda version, kind, flags, id_, length: pack(version, kind, flags, id_, length),
    st.sampled_from([0, 0, 0, 0, 0, 1]),
    st.sampled_from([DATA, WINDOW_UPDATE, PING, GO_AWAY, DATA, WINDOW_UPDATE, 4]),
    st.integers(0, 17),
    st.integers(0, 5),
    st.one_of(st.integers(0, 20), st.sampled_from([INITIAL_WINDOW, INITIAL_WINDOW + 1]), UINT32),
)


@given(st.lists(st.one_of(WILD_HEADERS, st.binary(max_size=30)), max_size=30), CUTS, st.booleans())
@settings(max_examples=3 * settings().max_examples)
def test_garbage_raises_only_protocol_errors(
    parts: list[bytes], cuts: list[int], full: bool
) -> None:
    listener = Listener(full=full)
    session = listener.session
    try:
        for piece in split(b"".join(parts), cuts):
            session.receive(memoryview(piece))
    except ProtocolError as exc:
        assert str(exc).startswith("yamux: ")
    session.flush()
    session.lost(Ending.PROTOCOL)
    assert (session.held, session.streams) == (0, {})
    assert all(end.ending for end in listener.ends.values())


# Two sessions, coupled, in any order of events.

POOL = 1_000_000
CARRIER_ROOM = 20_000
LARGEST_WRITE = 300_000
# A prime period: a frame that is lost, repeated or out of turn shows.
PERIOD = 65_521
PATTERN = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(PERIOD)) * 6


class Side:
    """One end of one tunnel, with what it sent and what must have arrived."""

    def __init__(self) -> None:
        self.end = MemoryEnd()
        self.sent = bytearray()
        self.said_eof = False


class Coupled(RuleBasedStateMachine):
    """Random writes, stalls, half-closes, resets and full carriers between two sessions.

    Whatever the order: bytes arrive in order and whole, nobody exceeds a window, an end of file
    comes once and after the bytes, memory stays within its bounds, and all of it is given back.
    """

    tunnels: list[tuple[Side, Side]]

    @initialize(
        room=st.sampled_from([None, 0, CARRIER_ROOM]),
        small=st.booleans(),
        budget=st.sampled_from([100 * MIB, 2_000_000, 300_000, 10_000]),
    )
    def couple(self, room: int | None, small: bool, budget: int) -> None:
        self.budget = Budget(budget)
        self.tunnels = []
        self.clock = ManualClock()
        self.waiting: dict[int, Side] = {}
        self.link = MemoryLink(
            clock=self.clock,
            limits=Limits(growth_pool_bytes=POOL, batch_bytes=100_000),
            room_bytes=room,
            on_client_stream=self.accept,
            on_server_stream=self.accept,
        )
        for session in (self.link.client, self.link.server):
            session.round_trip_s = 0.5
            if small:
                session.first_window = 65_536
                session.first_update_bytes = 32_768

    def accept(self, stream: Stream) -> None:
        self.pay(stream)
        join(stream, self.waiting.pop(stream.id).end)

    def pay(self, stream: Stream) -> None:
        """Two clients, of which one pays for a third of the streams."""
        account = self.budget.account(bool(stream.id % 3))
        stream.session.charge(stream, account)

    def sides(self) -> list[Side]:
        return [side for pair in self.tunnels for side in pair if side.end.ending is None]

    @precondition(lambda self: len(self.tunnels) < 6)
    @rule(by_client=st.booleans())
    def open(self, by_client: bool) -> None:
        near, far = Side(), Side()
        session = self.link.client if by_client else self.link.server
        stream = session.open()
        assert stream is not None
        self.pay(stream)
        self.waiting[stream.id] = far
        join(stream, near.end)
        self.tunnels.append((near, far))

    @precondition(lambda self: self.sides())
    @rule(data=st.data(), size=st.sampled_from([1, 700, MAX_FRAME, MAX_FRAME + 1, LARGEST_WRITE]))
    def write(self, data: st.DataObject, size: int) -> None:
        side = data.draw(st.sampled_from(self.sides()))
        if side.said_eof:
            return
        self.feed(side, size)

    def feed(self, side: Side, size: int) -> None:
        start = len(side.sent)
        block = PATTERN[start % PERIOD :][:size]
        side.sent += block
        side.end.feed(block)

    @precondition(lambda self: self.sides())
    @rule(data=st.data(), stalled=st.booleans(), odd=st.integers(1, 3), seconds=st.floats(0, 3))
    def flood(self, data: st.DataObject, stalled: bool, odd: int, seconds: float) -> None:
        """More than a window at once, towards a sink that may take none of it for a while."""
        near, far = data.draw(st.sampled_from(self.tunnels))
        if near.said_eof or near.end.ending is not None:
            return
        if stalled:
            far.end.fill()
        self.feed(near, odd)
        for _ in range(4):
            self.feed(near, LARGEST_WRITE)
        self.link.run()
        self.clock.advance(seconds)
        far.end.make_room()
        self.link.run()

    @precondition(lambda self: self.sides())
    @rule(data=st.data(), act=st.sampled_from(["eof", "reset", "fill", "room", "room", "fill"]))
    def act(self, data: st.DataObject, act: str) -> None:
        side = data.draw(st.sampled_from(self.sides()))
        acts: dict[str, Callable[[], None]] = {
            "eof": side.end.feed_eof,
            "reset": side.end.reset,
            "fill": side.end.fill,
            "room": side.end.make_room,
        }
        if act == "eof":
            side.said_eof = True
        acts[act]()

    @rule(seconds=st.sampled_from([0.1, 0.4, 2.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        assert self.link.client.tick() or self.clock() > 1020
        assert self.link.server.tick() or self.clock() > 1020

    @rule()
    def flush(self) -> None:
        self.link.flush()

    @rule(to_server=st.booleans(), size=st.sampled_from([None, 1, 12, 13, 5_000, 100_000]))
    def deliver(self, to_server: bool, size: int | None) -> None:
        self.link.deliver(to_server=to_server, size=size)

    @rule()
    def settle(self) -> None:
        self.link.run()

    @invariant()
    def bytes_arrive_in_order_and_ends_once(self) -> None:
        for near, far in getattr(self, "tunnels", []):
            for source, sink in ((near, far), (far, near)):
                assert source.sent.startswith(sink.end.received)
                assert sink.end.eofs <= 1
                if sink.end.eofs:
                    assert source.said_eof
                    assert sink.end.received == source.sent

    @invariant()
    def windows_and_memory_are_kept(self) -> None:
        if not hasattr(self, "tunnels"):
            return
        for session, out in (
            (self.link.client, self.link.client_out),
            (self.link.server, self.link.server_out),
        ):
            streams = list(session.streams.values())
            assert 0 <= session._growth_left <= POOL
            grown = sum(max(stream.window - INITIAL_WINDOW, 0) for stream in streams)
            assert grown == POOL - session._growth_left == session.grown_bytes
            assert grown <= session.most_grown_bytes <= POOL
            assert session.held == sum(stream.held for stream in streams)
            assert all(stream.credit >= 0 for stream in streams)
            for stream in streams:
                assert 0 <= stream.window <= MAX_WINDOW
                # Only whoever is over its share gets less.
                assert stream.window >= INITIAL_WINDOW or self.budget.over_share
                credit, owed, held = stream.receive_credit, stream.owed, stream.held
                coming = session._body if session._into is stream else 0
                assert credit >= 0 and credit + owed + held + coming == stream.window
                # A source stops at the first False: one write and no more waits in a stream.
                assert stream.backlog_bytes <= LARGEST_WRITE
            # A carrier is given one batch more after it had room, and control frames.
            if out.room_bytes is not None:
                assert out.most_bytes <= out.room_bytes + 100_000 + 50_000

    @invariant()
    def all_that_is_held_is_charged(self) -> None:
        if not hasattr(self, "tunnels"):
            return
        sessions = (self.link.client, self.link.server)
        held = sum(STREAM_BYTES * len(it.streams) + it.held for it in sessions)
        held += FULL_SINK_BYTES * sum(len(it._holders) for it in sessions)
        assert self.budget.used_bytes == held

    def teardown(self) -> None:
        if not hasattr(self, "tunnels"):
            return
        for side in self.sides():
            side.end.make_room()
        self.link.run()
        for side in self.sides():
            side.end.make_room()
            side.said_eof = True
            side.end.feed_eof()
        self.link.run()
        self.bytes_arrive_in_order_and_ends_once()
        for near, far in self.tunnels:
            for side, other in ((near, far), (far, near)):
                # One may be clean and the other reset, as in TCP: a reset and a last half-close
                # can cross. But whoever ended cleanly has everything that was sent to it.
                assert side.end.ending is not None
                if side.end.ending is Ending.CLEAN:
                    assert side.end.eofs == 1
                    assert side.end.received == other.sent
        for session in (self.link.client, self.link.server):
            assert (session.streams, session.held, session._growth_left) == ({}, 0, POOL)
            assert not session._turns and not session._half and not session._holders
        assert (self.budget.used_bytes, self.budget.peers) == (0, 0)


Coupled.TestCase.settings = settings(stateful_step_count=30)
TestCoupledSessions = Coupled.TestCase
