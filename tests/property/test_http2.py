"""Properties of HTTP/2: any split, any garbage, any order of events between two connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isthmus.errors import ProtocolError
from isthmus.testing import Http2Pair, ManualClock, MemoryCarrier, Recorder
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import MIB, Http2Limits
from isthmus.wire import http2
from isthmus.wire.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    ErrorCode,
    HeaderReader,
    Headers,
    Http2Error,
    encode_headers,
    frame,
    goaway,
    rst_stream,
    window_update,
)

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
RESPONSE: Headers = ((b":status", b"200"),)
BLOCK = encode_headers(REQUEST)
UINT32 = st.integers(0, 2**32 - 1)
CUTS = st.lists(UINT32, max_size=40)
NAMES = st.from_regex(rb"[a-z0-9_.-]{1,12}", fullmatch=True)
VALUES = st.binary(max_size=40)
HEADER_LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=8).map(tuple)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


@given(st.lists(HEADER_LISTS, max_size=6))
def test_headers_survive_the_round_trip(lists: list[Headers]) -> None:
    reader = HeaderReader(100_000)
    for headers in lists:
        assert reader.read(encode_headers(headers)) == headers


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_a_header_block_is_read_or_refused(blocks: list[bytes]) -> None:
    reader = HeaderReader(4096)
    for block in blocks:
        try:
            headers = reader.read(block)
        except Http2Error as exc:
            assert exc.code in (ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM)
            return
        for fault in (http2.request_fault, http2.response_fault, http2.trailer_fault):
            assert isinstance(fault(headers), str)


# A connection fed by a script.


class Listener:
    """A server's connection that records what happens to its streams."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.handlers: dict[int, Recorder] = {}
        self.carrier = MemoryCarrier()
        self.http2 = Http2Connection(
            self.carrier, client=False, clock=ManualClock(), on_request=self.accept
        )
        self.carrier.session = self.http2

    def accept(self, stream: Http2Stream, headers: Headers) -> Recorder:
        handler = self.handlers[stream.id] = Recorder()
        handler.full = self.full
        handler.headers.append(headers)
        return handler

    def heard(self) -> dict[int, tuple[list[str], bytes, object]]:
        return {i: (h.calls, bytes(h.received), h.reset) for i, h in self.handlers.items()}


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Frames of a well-behaved client."""
    frames = [PREFACE + http2.settings()]
    open_: list[int] = []
    next_id = 1
    for _ in range(draw(st.integers(1, 25))):
        act = draw(st.sampled_from(["open", "data", "data", "padded", "end", "reset", "other"]))
        if act == "open":
            cut = draw(st.integers(0, len(BLOCK)))
            if cut == len(BLOCK):
                frames.append(frame(HEADERS, END_HEADERS, next_id, BLOCK))
            else:
                frames.append(frame(HEADERS, 0, next_id, BLOCK[:cut]))
                frames.append(frame(CONTINUATION, END_HEADERS, next_id, BLOCK[cut:]))
            open_.append(next_id)
            next_id += 2
        elif act == "other":
            frames.append(
                draw(
                    st.sampled_from(
                        [
                            frame(PING, 0, 0, b"12345678"),
                            http2.settings((INITIAL_WINDOW_SIZE, 70_000)),
                            window_update(0, 5),
                            frame(0x77, 0xFF, 3, b"unknown"),
                            frame(2, 0, 1, b"\0\0\0\0\x10"),
                        ]
                    )
                )
            )
        elif open_:
            id_ = draw(st.sampled_from(open_))
            data = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 100]))
            if act == "data":
                frames.append(frame(DATA, 0, id_, data))
            elif act == "padded":
                pad = draw(st.integers(0, 255))
                frames.append(frame(DATA, PADDED, id_, bytes([pad]) + data + bytes(pad)))
            elif act == "end":
                frames.append(frame(DATA, END_STREAM, id_, data))
                open_.remove(id_)
            else:
                frames.append(rst_stream(id_, ErrorCode.CANCEL))
                open_.remove(id_)
    return frames


@given(conversations(), CUTS)
def test_any_split_gives_the_same_calls(frames: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(frames)
    whole, pieces, bytewise = Listener(), Listener(), Listener()
    whole.http2.receive(memoryview(raw))
    for piece in split(raw, cuts):
        pieces.http2.receive(memoryview(piece))
    for byte in raw:
        bytewise.http2.receive(memoryview(bytes([byte])))
    assert whole.heard() == pieces.heard() == bytewise.heard()
    for listener in (whole, pieces, bytewise):
        for stream in listener.http2.streams.values():
            assert stream.unconsumed == 0
            assert stream.receive_credit + stream.owed == stream.window
        listener.http2.flush()
    assert whole.carrier.take() == pieces.carrier.take() == bytewise.carrier.take()


WILD = st.builds(
    frame,
    st.one_of(st.integers(0, 10), st.sampled_from([DATA, HEADERS, HEADERS])),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 3, 3, 2, 2**31]),
    st.one_of(st.binary(max_size=12), st.just(BLOCK), st.just(bytes(4)), st.just(bytes(8))),
)
TAME = st.sampled_from(
    [
        frame(HEADERS, END_HEADERS, 1, BLOCK),
        frame(HEADERS, END_HEADERS, 3, BLOCK),
        frame(DATA, 0, 1, b"data"),
        rst_stream(1, ErrorCode.CANCEL),
        goaway(0, ErrorCode.NO_ERROR),
    ]
)


@given(
    st.lists(st.one_of(TAME, TAME, WILD, st.binary(max_size=20)), max_size=30),
    CUTS,
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=3 * settings().max_examples)
def test_garbage_raises_only_http2_errors(
    parts: list[bytes], cuts: list[int], full: bool, greeted: bool
) -> None:
    listener = Listener(full=full)
    connection = listener.http2
    raw = (PREFACE + http2.settings() if greeted else b"") + b"".join(parts)
    try:
        for piece in split(raw, cuts):
            connection.receive(memoryview(piece))
    except ProtocolError as exc:
        assert isinstance(exc, Http2Error) and str(exc).startswith("http2: ")
        assert connection.draining
    assert connection.held == sum(s.held + s.kept for s in connection.streams.values())
    connection.flush()
    connection.lost("over")
    assert (connection.held, connection.streams, connection.holders) == (0, {}, {})
    for handler in listener.handlers.values():
        assert handler.calls.count("reset") <= 1


# Two connections, coupled, in any order of events.

BATCH = 100_000
CARRIER_ROOM = 20_000
PERIOD = 65_521
PATTERN = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(PERIOD)) * 6
LARGEST_WRITE = 300_000


class Half:
    """One side's half of a call: a source that stops when told to, and what must arrive."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.recorder.on_call = self._called
        self.stream: Http2Stream | None = None
        self.sent = bytearray()
        self.told_to_wait = False
        self.ended = False
        self.wakes = 0

    def _called(self, name: str, stream: Http2Stream) -> None:
        if name == "can_write":
            # Exactly when needed: somebody was told to wait, and nothing waits any more.
            assert self.told_to_wait and stream.out_bytes == 0
            self.told_to_wait = False
            self.wakes += 1

    def write(self, size: int) -> None:
        stream = self.stream
        if stream is None or not stream.open or self.ended:
            return
        block = PATTERN[len(self.sent) % PERIOD :][:size]
        self.sent += block
        if not stream.write(block[:5], block[5:]):
            self.told_to_wait = True

    @property
    def gone(self) -> bool:
        return self.stream is not None and not self.stream.open


class Coupled(RuleBasedStateMachine):
    """Random writes, stalls, ends, resets, settings and full carriers between two connections.

    Whatever the order: bytes arrive in order and whole, nobody exceeds a window, whoever was told
    to wait is woken once, an end comes once and after the bytes, and all memory is given back.
    """

    calls: list[tuple[Half, Half]]

    @initialize(
        room=st.sampled_from([None, 0, CARRIER_ROOM]),
        budget=st.sampled_from([100 * MIB, 2_000_000, 300_000, 10_000]),
    )
    def couple(self, room: int | None, budget: int) -> None:
        self.budget = Budget(budget)
        self.calls = []
        self.clock = ManualClock()
        self.waiting: dict[int, Half] = {}
        limits = Http2Limits(
            batch_bytes=BATCH,
            stream_window_bytes=100_000,
            connection_window_bytes=300_000,
            dead_after_s=1e9,
            ping_every_s=1e9,
        )
        self.pair = Http2Pair(
            clock=self.clock, limits=limits, room_bytes=room, on_request=self.accept
        )
        self.pair.run()

    def accept(self, stream: Http2Stream, headers: Headers) -> Recorder:
        self.pay(stream)
        far = self.waiting.pop(stream.id)
        far.stream = stream
        stream.answered = True
        stream.send_headers(RESPONSE)
        return far.recorder

    def pay(self, stream: Http2Stream) -> None:
        """Two clients, of which one pays for a third of the streams."""
        account = self.budget.account(bool(stream.id % 3))
        stream.connection.charge(stream, account)
        account.close()

    def halves(self) -> list[Half]:
        return [half for pair in self.calls for half in pair if half.stream and half.stream.open]

    @precondition(lambda self: len(self.calls) < 6)
    @rule()
    def open(self) -> None:
        near, far = Half(), Half()
        near.stream = self.pair.client.open(near.recorder)
        assert near.stream is not None
        self.pay(near.stream)
        self.waiting[near.stream.id] = far
        near.stream.send_headers(REQUEST)
        self.calls.append((near, far))

    @precondition(lambda self: self.halves())
    @rule(data=st.data(), size=st.sampled_from([1, 700, 16_384, 16_385, LARGEST_WRITE]))
    def write(self, data: st.DataObject, size: int) -> None:
        data.draw(st.sampled_from(self.halves())).write(size)

    @precondition(lambda self: self.halves())
    @rule(data=st.data(), act=st.sampled_from(["end", "reset", "fill", "room", "room", "grow"]))
    def act(self, data: st.DataObject, act: str) -> None:
        half = data.draw(st.sampled_from(self.halves()))
        stream = half.stream
        assert stream is not None
        acts: dict[str, Callable[[], None]] = {
            "end": stream.end,
            "reset": lambda: stream.reset(ErrorCode.CANCEL),
            "fill": lambda: setattr(half.recorder, "full", True),
            "room": lambda: self.make_room(half),
            "grow": lambda: stream.grow_window(stream.window + 50_000),
        }
        if act == "end":
            half.ended = True
        acts[act]()

    def make_room(self, half: Half) -> None:
        half.recorder.full = False
        if half.stream is not None:
            half.stream.release()

    @rule(by_server=st.booleans(), window=st.sampled_from([0, 1, 50_000, 100_000, 200_000]))
    def change_windows(self, by_server: bool, window: int) -> None:
        """One side says another window; a smaller one it does not enforce, so much is under way."""
        side = self.pair.server if by_server else self.pair.client
        more = window - side.limits.stream_window_bytes
        if more > 0:
            side.limits = replace(side.limits, stream_window_bytes=window)
            for stream in side.streams.values():
                stream.receive_credit += more
                stream.window += more
        side.emit(http2.settings((INITIAL_WINDOW_SIZE, window), (MAX_FRAME_SIZE, 16_384)))

    @rule()
    def ping(self) -> None:
        self.pair.client.ping()
        self.pair.server.ping()

    @rule()
    def flush(self) -> None:
        self.pair.flush()

    @rule(to_server=st.booleans(), size=st.sampled_from([None, 1, 9, 10, 5_000, 100_000]))
    def deliver(self, to_server: bool, size: int | None) -> None:
        self.pair.deliver(to_server=to_server, size=size)

    @rule()
    def settle(self) -> None:
        self.pair.run()

    @invariant()
    def bytes_arrive_in_order_and_ends_once(self) -> None:
        for near, far in getattr(self, "calls", []):
            for source, sink in ((near, far), (far, near)):
                assert source.sent.startswith(sink.recorder.received)
                assert sink.recorder.calls.count("end") <= 1
                assert sink.recorder.calls.count("reset") <= 1
                if "end" in sink.recorder.calls:
                    assert source.ended and sink.recorder.received == source.sent

    @invariant()
    def windows_and_memory_are_kept(self) -> None:
        if not hasattr(self, "calls"):
            return
        for connection, out in (
            (self.pair.client, self.pair.client_out),
            (self.pair.server, self.pair.server_out),
        ):
            streams = list(connection.streams.values())
            assert connection.credit >= 0
            assert connection.held == sum(s.held + s.kept for s in streams)
            for stream in streams:
                coming = connection._body if connection._into is stream else 0
                credit, owed, taken = stream.receive_credit, stream.owed, stream.unconsumed
                assert credit >= 0 and credit + owed + taken + coming == stream.window
                if stream.out_bytes and stream.credit > 0:
                    assert stream.in_turn  # nobody who could send is forgotten
            if out.room_bytes is not None:
                assert out.most_bytes <= out.room_bytes + BATCH + 50_000

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        for side in (self.pair.server, self.pair.client):
            side.emit(http2.settings((INITIAL_WINDOW_SIZE, side.limits.stream_window_bytes)))
        self.pair.run()
        for half in self.halves():
            self.make_room(half)
        self.pair.run()
        for half in self.halves():
            assert not half.told_to_wait, "a lost wake-up"
            assert half.stream is not None and half.stream.out_bytes == 0
        for near, far in self.calls:
            for half in (near, far):
                if half.stream is not None and half.stream.open:
                    half.ended = True
                    half.stream.end()
            self.pair.run()
        self.bytes_arrive_in_order_and_ends_once()
        for connection in (self.pair.client, self.pair.server):
            assert (connection.streams, connection.held, connection.holders) == ({}, 0, {})
            assert not connection._turns and not connection._lingering
        assert (self.budget.used_bytes, self.budget.peers) == (0, 0)


Coupled.TestCase.settings = settings(stateful_step_count=30)
TestCoupledConnections = Coupled.TestCase
