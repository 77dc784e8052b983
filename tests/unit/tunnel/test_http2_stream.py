"""The HTTP/2 stream: the peer's windows, turns, wake-ups, ends that wait, and resets anywhere."""

from __future__ import annotations

import pytest

from isthmus.frame.tunnels import LEFTOVERS_S
from isthmus.testing import Http2Frame, Http2Pair, ManualClock, Recorder, take_http2_frames
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.wire.http2 import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MIN_MAX_FRAME,
    ErrorCode,
    HeaderReader,
    Headers,
    settings,
    window_update,
)

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
RESPONSE: Headers = ((b":status", b"200"),)
WINDOW = 256 * 1024


class Call:
    """One stream of a pair, both halves."""

    def __init__(self, pair: Http2Pair) -> None:
        self.pair = pair
        self.near_handler = Recorder()
        near = pair.client.open(self.near_handler)
        assert near is not None
        self.near = near
        near.send_headers(REQUEST)
        pair.run()
        self.far, self.far_handler = pair.accepted.pop()
        self.far.send_headers(RESPONSE)
        pair.run()


def frames_of(pair: Http2Pair, stream_id: int) -> list[Http2Frame]:
    pair.client_out.flush()
    buffer = bytearray(pair.client_out.take())
    return [f for f in take_http2_frames(buffer) if f.stream_id == stream_id]


def to_client(pair: Http2Pair, raw: bytes) -> None:
    pair.client.receive(memoryview(raw))


# Windows.


def test_a_write_that_fits_goes_at_once() -> None:
    pair = Http2Pair()
    call = Call(pair)
    assert call.near.write(b"head", b"body") is True
    assert frames_of(pair, 1) == [(DATA, 0, 1, b"headbody")]
    assert call.near.credit == WINDOW - 8
    assert call.near_handler.calls == ["headers"]  # nobody was told to wait


def test_an_empty_write_is_nothing() -> None:
    pair = Http2Pair()
    call = Call(pair)
    assert call.near.write(b"", b"") is True
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 0)))
    call.near.credit = -5
    assert call.near.write(b"", b"") is True
    call.near.end()
    assert frames_of(pair, 1) == [(DATA, END_STREAM, 1, b"")]


def test_frames_are_no_larger_than_the_peer_takes() -> None:
    pair = Http2Pair()
    call = Call(pair)
    assert call.near.write(b"h" * 5, b"d" * 40_000) is True
    sizes = [len(f.payload) for f in frames_of(pair, 1)]
    assert sizes == [MIN_MAX_FRAME, MIN_MAX_FRAME, 40_005 - 2 * MIN_MAX_FRAME]


def test_a_window_and_not_a_byte_more() -> None:
    pair = Http2Pair()
    call = Call(pair)
    call.far_handler.full = True
    assert call.near.write(b"x", bytes(WINDOW)) is False
    pair.run()
    assert len(call.far_handler.received) == WINDOW
    assert (call.near.out_bytes, call.near.credit) == (1, 0)
    assert "can_write" not in call.near_handler.calls
    assert pair.server.held == call.far.held == WINDOW
    call.far_handler.full = False
    call.far.release()
    pair.run()
    assert len(call.far_handler.received) == WINDOW + 1
    assert call.near_handler.calls.count("can_write") == 1
    assert pair.server.held == 0


def test_the_connections_window_stops_everybody_and_wakes_everybody() -> None:
    pair = Http2Pair(limits=Http2Limits(connection_window_bytes=DEFAULT_WINDOW))
    calls = [Call(pair) for _ in range(3)]
    pair.client.credit = 10
    pair.client._new_batch()
    for call in calls:
        assert call.near.write(b"12345", b"") is (call is not calls[2])
    assert pair.client.credit == 0 and calls[2].near.write(b"6", b"") is False
    pair.flush()
    assert pair.client.unsent
    to_client(pair, window_update(0, 3))
    assert pair.client_out.woken
    pair.flush()
    assert calls[2].near.out_bytes == 3
    to_client(pair, window_update(0, 100))
    pair.run()
    assert calls[2].far_handler.received == b"123456"
    assert calls[2].near_handler.calls.count("can_write") == 1
    assert "can_write" not in calls[0].near_handler.calls


def test_a_window_that_opens_while_a_batch_is_gathered_does_not_enlarge_it() -> None:
    pair = Http2Pair(limits=Http2Limits(batch_bytes=10_000))
    call = Call(pair)
    assert call.near.write(bytes(9_000), b"") is True
    to_client(pair, window_update(0, 5))
    assert pair.client.room == 1_000
    assert call.near.write(bytes(9_000), b"") is False
    pair.run()
    assert len(call.far_handler.received) == 18_000
    assert call.near_handler.calls.count("can_write") == 1


def test_bytes_behind_waiting_ones_wait_too() -> None:
    pair = Http2Pair()
    call = Call(pair)
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 10)))
    assert call.near.write(b"0123456789", b"ab") is False
    to_client(pair, window_update(1, 100))
    # There is a window now, but whoever was told to wait must be woken.
    assert call.near.write(b"cd", b"") is False
    assert call.near_handler.calls.count("can_write") == 0
    pair.run()
    assert call.far_handler.received == b"0123456789abcd"
    assert call.near_handler.calls.count("can_write") == 1


# SETTINGS_INITIAL_WINDOW_SIZE.


def test_a_window_that_shrinks_below_zero_and_returns() -> None:
    pair = Http2Pair()
    call = Call(pair)
    assert call.near.write(bytes(1000), b"") is True
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 100)))
    assert call.near.credit == -900
    assert call.near.write(b"waits", b"") is False
    pair.run()
    assert call.near.out_bytes == 5
    to_client(pair, window_update(1, 900))
    pair.run()
    assert call.near.credit == 0 and call.near.out_bytes == 5
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 103)))
    pair.run()
    assert call.near.out_bytes == 2
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 1000)))
    pair.run()
    assert call.far_handler.received == bytes(1000) + b"waits"
    assert call.near_handler.calls.count("can_write") == 1
    assert call.near.credit == 1000 - 1005 + 900


def test_new_streams_begin_with_the_new_window() -> None:
    pair = Http2Pair()
    Call(pair)
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 0)))
    call = Call(pair)
    assert call.near.write(b"x", b"") is False
    to_client(pair, settings((INITIAL_WINDOW_SIZE, 1)))
    pair.run()
    assert call.far_handler.received == b"x"


# Turns.


def test_streams_take_turns() -> None:
    pair = Http2Pair(limits=Http2Limits(batch_bytes=4 * TURN_BYTES, stream_window_bytes=2**20))
    one, two = Call(pair), Call(pair)
    pair.client_out.room_bytes = 0
    pair.client.ping()
    pair.client_out.flush()  # the carrier is full now
    assert one.near.write(bytes(300_000), b"") is False
    assert two.near.write(bytes(300_000), b"") is False
    to_client(pair, window_update(0, 2**20))
    pair.client_out.take()
    frames = take_http2_frames(bytearray(pair.client_out.take()))
    order = [f.stream_id for f in frames if f.kind == DATA]
    assert order == [1] * 4 + [3] * 4 + [1] * 4 + [3] * 4
    pair.client_out.room_bytes = None
    pair.client.resume()
    pair.run()
    assert one.near.out_bytes == two.near.out_bytes == 0


def test_a_full_carrier_stops_data_and_not_control_and_resumes() -> None:
    pair = Http2Pair(room_bytes=20_000)
    call = Call(pair)
    written = 0
    while call.near.write(bytes(5_000), b""):
        written += 5_000
        pair.client_out.flush()
    assert pair.client_out.full
    pair.client.ping()
    pair.run(piece_bytes=1_000)
    assert len(call.far_handler.received) == written + 5_000
    assert call.near_handler.calls.count("can_write") == 1


def test_writing_from_inside_can_write() -> None:
    pair = Http2Pair()
    call = Call(pair)
    left = [b"2" * WINDOW, b"3" * WINDOW]

    def more(name: str, stream: Http2Stream) -> None:
        if name == "can_write":
            while left and stream.write(left.pop(0), b""):
                pass

    call.near_handler.on_call = more
    assert call.near.write(b"1" * WINDOW * 2, b"") is False
    pair.run()
    assert len(call.far_handler.received) == 4 * WINDOW
    assert call.near_handler.calls.count("can_write") == 3


@pytest.mark.parametrize("how", ["reset", "lost"])
def test_closing_from_inside_can_write(how: str) -> None:
    pair = Http2Pair()
    one, two = Call(pair), Call(pair)

    def close(name: str, stream: Http2Stream) -> None:
        if name == "can_write":
            if how == "reset":
                stream.reset(ErrorCode.CANCEL)
            else:
                pair.client.lost("inside")

    one.near_handler.on_call = close
    for call in (one, two):
        assert call.near.write(bytes(WINDOW + 1), b"") is False
    pair.run()
    assert one.near_handler.calls.count("can_write") == 1
    assert not one.near.open
    assert two.near.open is (how == "reset")
    if how == "reset":
        assert len(two.far_handler.received) == WINDOW + 1


# Ends.


def test_an_end_waits_for_what_was_written() -> None:
    pair = Http2Pair()
    call = Call(pair)
    call.near.write(bytes(WINDOW + 5), b"")
    call.near.end()
    call.near.end()
    assert call.near.write(b"too late", b"") is True
    pair.run()
    assert len(call.far_handler.received) == WINDOW + 5
    assert call.far_handler.calls[-1] == "end"
    assert call.far.remote_done and call.near.local_done
    call.far.end(((b"grpc-status", b"0"),))
    pair.run()
    assert not pair.client.streams and not pair.server.streams


def test_an_end_that_nobody_takes_is_reset_at_last() -> None:
    clock = ManualClock()
    pair = Http2Pair(clock=clock, limits=Http2Limits(linger_s=30, dead_after_s=1e9))
    call = Call(pair)
    call.near_handler.full = True
    call.far.write(bytes(WINDOW + 100), b"")
    call.far.end(((b"grpc-status", b"0"),))
    pair.run()
    assert call.far.out_bytes == 100 and call.far.open
    clock.advance(29)
    pair.server.tick()
    to_server = window_update(1, 50)  # some of it is taken: it may wait on
    call.near.receive_credit += 50
    pair.server.receive(memoryview(to_server))
    pair.run()
    clock.advance(1)
    pair.server.tick()
    clock.advance(29)
    pair.server.tick()
    assert call.far.open
    clock.advance(1)
    pair.server.tick()
    assert call.far_handler.reset == (ErrorCode.CANCEL, "the peer does not read")
    assert not pair.server.streams and not pair.server._lingering
    pair.run()
    assert not pair.client.streams


def test_a_lingering_end_that_goes_is_forgotten() -> None:
    pair = Http2Pair()
    call = Call(pair)
    call.far.write(bytes(WINDOW + 100), b"")
    call.far.end()
    assert pair.server._lingering
    pair.run()
    assert not pair.server._lingering and not pair.server.streams


def test_a_long_header_list_is_continued() -> None:
    pair = Http2Pair()
    call = Call(pair)
    long = ((b"grpc-message", b"%" * 40_000),)
    call.near.end(long)
    first, *rest = frames_of(pair, 1)
    assert (first.kind, first.flags, len(first.payload)) == (HEADERS, END_STREAM, MIN_MAX_FRAME)
    assert [f.kind for f in rest] == [CONTINUATION] * len(rest)
    assert [f.flags for f in rest] == [0] * (len(rest) - 1) + [END_HEADERS]
    block = b"".join(f.payload for f in (first, *rest))
    assert HeaderReader(100_000).read(block) == long


# Resets in every state.

STATES = ["new", "headers", "waiting", "half closed here", "half closed there", "ending", "held"]


def bring(call: Call, state: str) -> None:
    match state:
        case "headers":
            call.near.write(b"x", b"")
        case "waiting" | "ending":
            call.near.write(bytes(WINDOW * 2), b"")
            if state == "ending":
                call.near.end()
        case "half closed here":
            call.near.end()
        case "half closed there":
            call.pair.server.client = True  # else it would reset what it has answered
            call.far.end()
            call.pair.run()
            call.pair.server.client = False
        case "held":
            call.near_handler.full = True
            call.far.write(bytes(1000), b"")
            call.pair.run()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", ["us", "the peer", "the carrier"])
def test_resets_in_every_state(state: str, by: str) -> None:
    pair = Http2Pair()
    call, other = Call(pair), Call(pair)
    call.far_handler.full = state in ("waiting", "ending")
    bring(call, state)
    if by == "us":
        call.near.reset(ErrorCode.CANCEL)
        call.near.reset(ErrorCode.CANCEL)
    elif by == "the peer":
        call.far.reset(ErrorCode.INTERNAL_ERROR)
        call.far.reset(ErrorCode.INTERNAL_ERROR)
    else:
        pair.client.lost()
    pair.run()
    assert not call.near.open and call.near.out_bytes == 0
    assert call.near_handler.calls.count("reset") == (by != "us")
    assert pair.client.held == 0 and not pair.client.holders
    if by != "the carrier":
        assert not call.far.open and pair.server.held == 0
        assert other.near.write(b"goes on", b"") is True
        pair.run()
        assert other.far_handler.received == b"goes on"
    # Calls after the end do nothing.
    for stream in (call.near,):
        assert stream.write(b"x", b"y") is True
        stream.end()
        stream.send_headers(RESPONSE)
        stream.release()
        stream.consumed(0)
        stream.hold()
        stream.keep(10)
        stream.grow_window(2**20)
        stream.lost(0, "late")
    assert pair.client.held == 0
    assert call.near_handler.calls.count("reset") == (by != "us")


def test_a_reset_from_inside_was_reset() -> None:
    pair = Http2Pair()
    call = Call(pair)
    call.near_handler.on_call = lambda name, stream: stream.reset(ErrorCode.CANCEL)
    call.far.reset(ErrorCode.INTERNAL_ERROR)
    pair.run()
    assert call.near_handler.calls == ["headers", "reset"]


def test_growing_a_window() -> None:
    pair = Http2Pair()
    call = Call(pair)
    call.far.grow_window(2 * WINDOW)
    call.far.grow_window(WINDOW)
    pair.run()
    assert call.near.credit == call.far.receive_credit == 2 * WINDOW


def test_a_stream_that_was_full_of_nothing_is_forgotten() -> None:
    """Its sink was full, and had taken everything all the same."""
    pair = Http2Pair()
    stream = pair.client.open(Recorder())
    assert stream is not None
    stream.hold()
    assert not pair.client.held
    stream.lost(0, "reset")
    assert not pair.client.holders


def test_the_last_bytes_of_a_call_may_wait_as_long_as_those_of_a_socket() -> None:
    assert Http2Limits().linger_s == LEFTOVERS_S


def test_a_window_that_shrinks_and_grows_again_keeps_its_sum() -> None:
    pair = Http2Pair()
    call = Call(pair)
    far = call.far
    whole = far.window
    call.near.write(b"", bytes(100_000))
    call.far_handler.full = True
    pair.run()

    def whole_sum() -> int:
        return far.receive_credit + far.unconsumed + far.owed

    assert far.unconsumed == 100_000 and whole_sum() == whole
    far.shrink_window(65_536)
    assert far.owed < 0 and whole_sum() == far.window == 65_536
    credit = far.receive_credit
    far.give(40_000)  # nothing is told: the peer may still send more than it should
    assert (far.receive_credit, whole_sum()) == (credit, 65_536)
    far.shrink_window(70_000)  # that is wider
    assert far.window == 65_536
    far.grow_window(whole)
    assert whole_sum() == far.window == whole
    far.give(60_000)
    assert far.owed == 0 and far.receive_credit == whole
