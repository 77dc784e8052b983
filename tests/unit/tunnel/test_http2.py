"""The HTTP/2 connection: what each frame does, its bounds, its endings, callbacks that close."""

from __future__ import annotations

import hpack
import pytest

from isthmus.testing import (
    Http2Frame,
    Http2Pair,
    ManualClock,
    MemoryCarrier,
    Recorder,
    take_http2_frames,
)
from isthmus.tunnel.budget import FULL_SINK_BYTES, SLOW_WINDOW, STREAM_BYTES, Account, Budget
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.http2_table import REMEMBERED
from isthmus.tunnel.limits import BURST, MIB, Http2Limits
from isthmus.wire import http2
from isthmus.wire.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Headers,
    Http2Error,
    StreamError,
    encode_headers,
    frame,
    rst_stream,
    settings,
    window_update,
)

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
BLOCK = encode_headers(REQUEST)
OK = encode_headers(((b":status", b"200"),))
HELLO = PREFACE + settings()


def request(stream_id: int = 1, *, end: bool = False, block: bytes = BLOCK) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, payload)


class Bench:
    """A connection whose other side is the test, as raw frames."""

    def __init__(
        self,
        *,
        client: bool = False,
        limits: Http2Limits | None = None,
        greeted: bool = True,
        account: Account | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.carrier = MemoryCarrier()
        self.handlers: dict[int, Recorder] = {}
        self.http2 = Http2Connection(
            self.carrier,
            client=client,
            clock=self.clock,
            on_request=self.on_request,
            limits=limits if limits is not None else Http2Limits(),
            account=account,
        )
        self.carrier.session = self.http2
        if greeted:
            self.receive(settings() if client else HELLO)
            self.sent()

    def on_request(self, stream: Http2Stream, headers: Headers) -> Recorder:
        self.handlers[stream.id] = handler = Recorder()
        handler.headers.append(headers)
        return handler

    def receive(self, *raw: bytes) -> None:
        self.http2.heard()
        self.http2.receive(memoryview(b"".join(raw)))

    def sent(self) -> list[Http2Frame]:
        self.carrier.flush()
        buffer = bytearray()
        while chunk := self.carrier.take():
            buffer += chunk
        frames = take_http2_frames(buffer)
        assert not buffer
        return frames

    def resets(self) -> list[tuple[int, int]]:
        return [
            (f.stream_id, int.from_bytes(f.payload, "big"))
            for f in self.sent()
            if f.kind == RST_STREAM
        ]

    def accept(self, stream_id: int = 1) -> tuple[Http2Stream, Recorder]:
        self.receive(request(stream_id))
        return self.http2.streams[stream_id], self.handlers[stream_id]

    def open(self) -> tuple[Http2Stream, Recorder]:
        handler = Recorder()
        stream = self.http2.open(handler)
        assert stream is not None
        stream.send_headers(REQUEST)
        return stream, handler

    def dies(self, *raw: bytes) -> ErrorCode:
        """Check that this ends the connection, with a GOAWAY of the same code."""
        with pytest.raises(Http2Error) as caught:
            self.receive(*raw)
        (last,) = [f for f in self.sent() if f.kind == GOAWAY][-1:]
        assert http2.read_goaway(last.payload)[1] == caught.value.code
        return caught.value.code


# Greetings.


def test_what_a_server_says_first() -> None:
    bench = Bench(greeted=False)
    first, update = bench.sent()
    assert (first.kind, first.flags) == (SETTINGS, 0)
    assert dict(http2.read_settings(first.payload)) == {
        http2.MAX_CONCURRENT_STREAMS: 16_384,
        http2.INITIAL_WINDOW_SIZE: 262_144,
        http2.MAX_HEADER_LIST_SIZE: 16_384,
    }
    assert update.payload == (4 * 1024 * 1024 - DEFAULT_WINDOW).to_bytes(4, "big")


def test_what_a_client_says_first() -> None:
    bench = Bench(client=True, greeted=False)
    bench.carrier.flush()
    assert bench.carrier.sent.startswith(PREFACE)
    assert dict(http2.read_settings(bench.sent()[0].payload))[http2.ENABLE_PUSH] == 0


def test_windows_below_the_default_cannot_be_had() -> None:
    for name in ("stream_window_bytes", "connection_window_bytes"):
        for size in (DEFAULT_WINDOW - 1, MAX_WINDOW + 1):
            with pytest.raises(ValueError, match="window"):
                Http2Limits(**{name: size})
    limits = Http2Limits(connection_window_bytes=DEFAULT_WINDOW)
    assert [f.kind for f in Bench(limits=limits, greeted=False).sent()] == [SETTINGS]


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n", PREFACE[:10] + b"?", PREFACE + request()])
def test_wrong_beginnings(raw: bytes) -> None:
    assert Bench(greeted=False).dies(raw) is ErrorCode.PROTOCOL_ERROR


def test_a_server_that_does_not_begin_with_settings() -> None:
    bench = Bench(client=True, greeted=False)
    assert bench.dies(frame(PING, 0, 0, bytes(8))) is ErrorCode.PROTOCOL_ERROR


def test_settings_are_acknowledged() -> None:
    bench = Bench()
    bench.receive(settings((http2.HEADER_TABLE_SIZE, 0), (http2.MAX_FRAME_SIZE, 2**24 - 1)))
    assert bench.sent() == [(SETTINGS, ACK, 0, b"")]
    assert bench.http2.peer_max_frame == 64 * 1024
    bench.receive(http2.SETTINGS_ACK)
    assert bench.sent() == []


# Frames that end the connection.


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (data(5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (data(2, b"x"), ErrorCode.PROTOCOL_ERROR),
        (data(1, b"", PADDED), ErrorCode.FRAME_SIZE_ERROR),
        (data(1, b"\x05abc", PADDED), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, bytes(16385)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame_head(16385, PING, 0, 0), ErrorCode.FRAME_SIZE_ERROR),
        (request(0), ErrorCode.PROTOCOL_ERROR),
        (request(2), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 3, b"\x09a"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 3, b"abcd"), ErrorCode.FRAME_SIZE_ERROR),
        (request(3, block=b"\x80"), ErrorCode.COMPRESSION_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 3, b"") + data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 3, b"") + frame(CONTINUATION, 4, 5), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 3, b"") + frame(0x99, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (rst_stream(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (rst_stream(3, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PUSH_PROMISE, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update(3, 1), ErrorCode.PROTOCOL_ERROR),
        (window_update(0, MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (settings((http2.INITIAL_WINDOW_SIZE, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_broken_rules_of_the_connection(raw: bytes, code: ErrorCode) -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    assert bench.dies(raw) is code
    bench.http2.lost("broke the rules")
    assert handler.reset == (ErrorCode.CANCEL, "broke the rules")
    assert (bench.http2.streams, bench.http2.held) == ({}, 0)
    bench.receive(request(7))  # heard no more
    assert 7 not in bench.handlers


def test_data_that_came_before_the_fault_is_handed_on() -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    over: list[str] = []
    handler.on_call = lambda name, stream: over.append(name)
    bench.dies(data(1, b"before"), window_update(0, 0))
    assert handler.received == b"before"
    assert over == ["data", "batch"]


def test_reserved_bits_mean_nothing() -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    bench.receive(data(1 | 1 << 31, b"x"), frame(WINDOW_UPDATE, 0, 1 << 31, b"\x80\0\0\1"))
    assert handler.received == b"x"
    assert bench.http2.credit == DEFAULT_WINDOW + 1


# Faults of one stream.


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update(1, MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (request(1), ErrorCode.PROTOCOL_ERROR),  # trailers with pseudo-headers
        (request(1, block=b""), ErrorCode.PROTOCOL_ERROR),  # trailers without an end
        (data(1, b"", END_STREAM) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (data(1, b"", END_STREAM) + request(1, end=True, block=b""), ErrorCode.STREAM_CLOSED),
    ],
)
def test_broken_rules_of_a_stream(raw: bytes, code: ErrorCode) -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    _, other = bench.accept(3)
    bench.receive(raw, data(3, b"goes on"))
    assert bench.resets() == [(1, code)]
    assert handler.reset is not None and handler.reset[0] == code
    assert (other.received, other.reset) == (b"goes on", None)
    assert list(bench.http2.streams) == [3]


@pytest.mark.parametrize(
    "block",
    [
        encode_headers(REQUEST[:2]),
        encode_headers((*REQUEST, (b"connection", b"close"))),
        encode_headers((*REQUEST, (b"content-length", b"x"))),
        encode_headers((*REQUEST, (b"content-length", b"9" * 16))),
    ],
)
def test_malformed_requests(block: bytes) -> None:
    bench = Bench()
    bench.receive(request(1, block=block), data(1, b"under way"), request(3))
    assert bench.resets() == [(1, ErrorCode.PROTOCOL_ERROR)]
    assert list(bench.handlers) == [3]


def test_a_request_that_depends_on_itself() -> None:
    bench = Bench()
    priority = b"\0\0\0\1\0"
    bench.receive(frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, priority + BLOCK))
    assert bench.resets() == [(1, ErrorCode.PROTOCOL_ERROR)]
    bench.receive(frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 3, priority + BLOCK))
    assert list(bench.handlers) == [3]


@pytest.mark.parametrize(("sent", "good"), [(b"abc", True), (b"ab", False), (b"abcd", False)])
def test_content_length(sent: bytes, good: bool) -> None:
    bench = Bench()
    block = encode_headers((*REQUEST, (b"content-length", b"3")))
    bench.receive(request(1, block=block), data(1, sent, END_STREAM))
    handler = bench.handlers[1]
    assert ("end" in handler.calls) is good
    assert bench.resets() == ([] if good else [(1, ErrorCode.PROTOCOL_ERROR)])


def test_a_request_without_a_body_that_announced_one() -> None:
    bench = Bench()
    block = encode_headers((*REQUEST, (b"content-length", b"3")))
    bench.receive(request(1, block=block, end=True))
    assert bench.resets() == [(1, ErrorCode.PROTOCOL_ERROR)]


# Header blocks.


def test_continuation_and_padding() -> None:
    bench = Bench()
    padded = b"\x03" + BLOCK[:2] + bytes(3)
    bench.receive(
        frame(HEADERS, PADDED | END_STREAM, 1, padded),
        frame(CONTINUATION, 0, 1, BLOCK[2:3]),
        frame(CONTINUATION, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 1, BLOCK[3:]),
    )
    assert bench.handlers[1].headers == [REQUEST]
    assert bench.handlers[1].calls == ["end"]


def test_the_count_of_continuations_is_bounded() -> None:
    many = [frame(CONTINUATION, 0, 1, b"")] * 8
    bench = Bench()
    bench.receive(frame(HEADERS, 0, 1, BLOCK), *many)
    assert bench.dies(frame(CONTINUATION, END_HEADERS, 1, b"")) is ErrorCode.ENHANCE_YOUR_CALM
    bench = Bench()
    bench.receive(frame(HEADERS, 0, 1, BLOCK), *many[:7], frame(CONTINUATION, END_HEADERS, 1))
    assert list(bench.handlers) == [1]


def test_the_size_of_a_block_is_bounded() -> None:
    bench = Bench(limits=Http2Limits(max_header_list_bytes=1000))
    code = bench.dies(frame(HEADERS, 0, 1, bytes(600)), frame(CONTINUATION, 0, 1, bytes(401)))
    assert code is ErrorCode.ENHANCE_YOUR_CALM


def test_the_size_of_a_list_is_bounded() -> None:
    """A few bytes may name a long header again and again."""
    encoder = hpack.Encoder()
    encoder.encode([*REQUEST, (b"x", b"y" * 1000)])
    bench = Bench(limits=Http2Limits(max_header_list_bytes=3000))
    bench.receive(request(1, block=hpack.Encoder().encode([*REQUEST, (b"x", b"y" * 1000)])))
    bomb = encoder.encode([*REQUEST, *[(b"x", b"y" * 1000)] * 3])
    assert len(bomb) < 20
    assert bench.dies(request(3, block=bomb)) is ErrorCode.ENHANCE_YOUR_CALM


def test_headers_for_streams_that_are_no_more() -> None:
    bench = Bench()
    stream, _ = bench.accept(1)
    stream.reset(ErrorCode.CANCEL)
    bench.receive(request(1, block=b"", end=True))  # was under way
    bench.accept(7)
    assert bench.dies(request(5)) is ErrorCode.PROTOCOL_ERROR  # ids only grow


def test_headers_behind_the_peers_own_end() -> None:
    bench = Bench()
    stream, _ = bench.accept(1)
    bench.receive(data(1, b"", END_STREAM))
    stream.send_headers(((b":status", b"200"),), end=True)
    assert bench.dies(request(1)) is ErrorCode.STREAM_CLOSED


def test_trailers_come_behind_the_data() -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    bench.receive(data(1, b"x"), request(1, block=encode_headers(((b"a", b"b"),)), end=True))
    assert handler.calls == ["data", "headers", "end"]
    assert handler.headers[1] == ((b"a", b"b"),)


# Requests and responses, the client's side.


def test_a_client_hears_a_response() -> None:
    bench = Bench(client=True)
    stream, handler = bench.open()
    trailers = encode_headers(((b"grpc-status", b"0"),))
    bench.receive(
        request(1, block=encode_headers(((b":status", b"103"),))),  # only a promise
        request(1, block=OK),
        data(1, b"body"),
        request(1, block=trailers, end=True),
    )
    assert handler.calls == ["headers", "data", "headers", "end"]
    assert stream.open and stream.remote_done
    stream.end()
    assert not stream.open and not bench.http2.streams


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (data(1, b"x"), ErrorCode.PROTOCOL_ERROR),  # before its headers
        (request(3, block=OK), ErrorCode.PROTOCOL_ERROR),  # nobody opened it
        (request(2, block=OK), ErrorCode.PROTOCOL_ERROR),
        (rst_stream(3, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_a_server_may_not_send(raw: bytes, code: ErrorCode) -> None:
    bench = Bench(client=True)
    bench.open()
    assert bench.dies(raw) is code


def test_a_response_that_is_none() -> None:
    bench = Bench(client=True)
    _, handler = bench.open()
    bench.receive(request(1, block=BLOCK))
    assert handler.reset is not None and handler.reset[0] == ErrorCode.PROTOCOL_ERROR


def test_a_response_to_a_stream_that_we_ended() -> None:
    bench = Bench(client=True)
    stream, handler = bench.open()
    stream.reset(ErrorCode.CANCEL)
    bench.receive(request(1, block=OK), data(1, b"late"), rst_stream(1, ErrorCode.CANCEL))
    assert handler.calls == []


# Streams: how many, and memory of those that were.


def test_too_many_streams_are_refused() -> None:
    bench = Bench(limits=Http2Limits(max_streams=2))
    bench.receive(request(1), request(3), request(5), data(5, b"under way"))
    assert bench.resets() == [(5, ErrorCode.REFUSED_STREAM)]
    bench.receive(rst_stream(1, ErrorCode.CANCEL), request(7))
    assert sorted(bench.http2.streams) == [3, 7]


def test_a_client_keeps_to_the_servers_limit() -> None:
    bench = Bench(client=True)
    bench.receive(settings((http2.MAX_CONCURRENT_STREAMS, 1)))
    stream, _ = bench.open()
    assert not bench.http2.can_open and bench.http2.open(Recorder()) is None
    stream.reset(ErrorCode.CANCEL)
    assert bench.http2.open(Recorder()) is not None
    bench.http2._next_id = 2**31 + 1
    bench.receive(settings((http2.MAX_CONCURRENT_STREAMS, 100)))
    assert not bench.http2.can_open


def test_what_is_remembered_is_bounded() -> None:
    bench = Bench()
    bad = encode_headers(REQUEST[:2])
    for i in range(300):
        bench.receive(request(4 * i + 1), rst_stream(4 * i + 1, ErrorCode.CANCEL))
        bench.receive(request(4 * i + 3, block=bad))
    assert bench.http2._recent is not None and len(bench.http2._recent) == REMEMBERED


# Floods.


@pytest.mark.parametrize(
    "raw",
    [
        frame(PING, 0, 0, bytes(8)),
        settings(),
        data(1, b""),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(0x99, 0, 0),
        http2.goaway(0, ErrorCode.NO_ERROR),
    ],
    ids=["ping", "settings", "empty data", "priority", "unknown", "goaway"],
)
def test_floods(raw: bytes) -> None:
    bench = Bench()
    bench.accept(1)
    bench.receive(raw * BURST)
    bench.sent()
    assert bench.dies(raw) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("answered", [True, False])
def test_resets_before_the_answer_are_a_flood(answered: bool) -> None:
    bench = Bench()
    died = False
    for i in range(BURST + 1):
        stream, _ = bench.accept(2 * i + 1)
        stream.answered = answered
        try:
            bench.receive(rst_stream(2 * i + 1, ErrorCode.CANCEL))
        except Http2Error as exc:
            died = exc.code is ErrorCode.ENHANCE_YOUR_CALM
    assert died is not answered


def test_making_us_reset_is_the_same_flood() -> None:
    bench = Bench()
    with pytest.raises(Http2Error, match="reset before their answer"):
        for i in range(BURST + 1):
            bench.receive(request(2 * i + 1), window_update(2 * i + 1, 0))


def test_changes_of_the_window_cost_by_the_streams() -> None:
    bench = Bench()
    for i in range(640):
        bench.accept(2 * i + 1)
    # One frame names the window as often as it can; that counts as one change.
    full = settings(*[(http2.INITIAL_WINDOW_SIZE, 70_000 + i) for i in range(2000)])
    bench.receive(full)
    assert {s.credit for s in bench.http2.streams.values()} == {71_999}
    with pytest.raises(Http2Error, match="changes of the window"):
        for i in range(BURST // 10):
            bench.receive(settings((http2.INITIAL_WINDOW_SIZE, 70_000 + i)))


def test_a_peer_that_asks_but_does_not_read() -> None:
    bench = Bench(limits=Http2Limits(max_waiting_control_bytes=1000))
    bench.carrier.room_bytes = 0
    bench.receive(frame(PING, 0, 0, bytes(8)))
    bench.carrier.flush()  # which fills the carrier
    for _ in range(59):
        bench.receive(frame(PING, 0, 0, bytes(8)))
    with pytest.raises(Http2Error, match="does not read"):
        bench.receive(frame(PING, 0, 0, bytes(8)))
    other = Bench(limits=Http2Limits(max_waiting_control_bytes=1000))
    for _ in range(200):  # one that reads may ask
        other.receive(frame(PING, 0, 0, bytes(8)))
        other.sent()


# Windows of what we receive.


def test_the_connections_window_returns_at_once() -> None:
    bench = Bench(limits=Http2Limits(connection_window_bytes=100_000))
    _, handler = bench.accept(1)
    handler.full = True
    bench.receive(*[data(1, bytes(10_000))] * 5)
    assert bench.sent() == [(WINDOW_UPDATE, 0, 0, (50_000).to_bytes(4, "big"))]
    assert bench.http2.receive_credit == 100_000


def test_more_than_the_connections_window() -> None:
    bench = Bench(limits=Http2Limits(connection_window_bytes=65_535, stream_window_bytes=200_000))
    bench.accept(1)
    bench.http2.receive_credit = 10_000
    assert bench.dies(data(1, bytes(10_001))) is ErrorCode.FLOW_CONTROL_ERROR


def test_more_than_a_streams_window() -> None:
    bench = Bench(limits=Http2Limits(stream_window_bytes=65_535))
    _, handler = bench.accept(1)
    handler.full = True
    bench.receive(*[data(1, bytes(13_107))] * 5)
    assert bench.dies(data(1, b"x")) is ErrorCode.FLOW_CONTROL_ERROR


def test_data_for_streams_that_are_no_more_counts_for_the_connection() -> None:
    bench = Bench()
    stream, handler = bench.accept(1)
    stream.reset(ErrorCode.CANCEL)
    bench.receive(data(1, bytes(1000)))
    assert bench.http2.receive_credit == 4 * 1024 * 1024 - 1000
    assert handler.received == b""


def test_data_behind_the_peers_own_end_is_answered() -> None:
    bench = Bench()
    stream, _ = bench.accept(1)
    bench.receive(data(1, b"", END_STREAM))
    stream.send_headers(((b":status", b"200"),), end=True)
    bench.sent()
    bench.receive(data(1, b"x"))
    assert bench.resets() == [(1, ErrorCode.STREAM_CLOSED)]


# Padding of data.


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1000])
@pytest.mark.parametrize(("pad", "body"), [(0, b"abc"), (4, b"abc"), (255, b""), (0, b"")])
def test_padding_is_dropped_and_credited(piece_bytes: int, pad: int, body: bytes) -> None:
    bench = Bench()
    stream, handler = bench.accept(1)
    payload = bytes([pad]) + body + bytes(pad)
    raw = data(1, b"head") + data(1, payload, PADDED) + data(1, b"tail", END_STREAM)
    for at in range(0, len(raw), piece_bytes):
        bench.receive(raw[at : at + piece_bytes])
        assert stream.unconsumed == 0
    assert handler.received == b"head" + body + b"tail"
    assert handler.calls == ["data", "end"]
    assert stream.receive_credit + stream.owed == stream.window


# Memory.


def test_what_is_held_and_kept_is_charged_and_given_back() -> None:
    budget = Budget(MIB)
    bench = Bench(account=budget.account("client"))
    handlers = [bench.accept(stream_id)[1] for stream_id in (1, 3)]
    assert budget.used_bytes == 2 * STREAM_BYTES
    for handler in handlers:
        handler.full = True
    bench.receive(data(1, bytes(10_000)), data(3, bytes(16_000)), data(3, bytes(14_000)))
    charged = 2 * STREAM_BYTES + 2 * FULL_SINK_BYTES + 40_000
    assert (bench.http2.held, budget.used_bytes) == (40_000, charged)
    bench.http2.streams[1].keep(7_000)  # a message that is not whole
    assert (bench.http2.held, budget.used_bytes) == (47_000, charged + 7_000)
    bench.http2.streams[1].release()
    bench.http2.streams[1].keep(0)
    bench.http2.streams[3].reset(ErrorCode.CANCEL)
    assert (bench.http2.held, bench.http2.holders) == (0, {})
    assert budget.used_bytes == STREAM_BYTES
    bench.http2.streams[1].reset(ErrorCode.CANCEL)
    assert budget.used_bytes == 0


def test_over_its_share_a_client_gets_less_credit_and_later_all_of_it() -> None:
    budget = Budget(MIB)
    account = budget.account("client")
    bench = Bench(account=account)
    stream, _ = bench.accept(1)
    window = stream.window
    account.hold(MIB * 3 // 4)
    for _ in range(30):
        bench.receive(data(1, bytes(10_000)))
        assert stream.receive_credit >= 10_000
    assert stream.window == SLOW_WINDOW < window
    account.give_back(MIB * 3 // 4)
    for _ in range(4):
        bench.receive(data(1, bytes(10_000)))
    assert stream.window == window == stream.receive_credit + stream.owed


def test_a_reader_that_takes_nothing_while_the_budget_is_exhausted_is_reset() -> None:
    budget = Budget(MIB)
    hog = budget.account("hog")
    bench = Bench(account=hog)
    _, handler = bench.accept(1)
    handler.full = True
    bench.receive(data(1, bytes(10_000)))
    hog.hold(MIB)
    for _ in range(300):
        bench.clock.advance(1.0)
        bench.http2.heard()
        assert bench.http2.tick()
    assert bench.resets() == []
    bench.clock.advance(1.0)
    bench.http2.heard()
    bench.http2.tick()
    assert bench.resets() == [(1, ErrorCode.ENHANCE_YOUR_CALM)]
    assert budget.used_bytes == MIB


def test_a_client_over_its_share_opens_nothing_more() -> None:
    budget = Budget(10 * STREAM_BYTES)
    bench = Bench(account=budget.account("client"))
    for stream_id in range(1, 15, 2):
        bench.receive(request(stream_id))
    assert len(bench.http2.streams) == 5
    assert bench.resets() == [(11, ErrorCode.ENHANCE_YOUR_CALM), (13, ErrorCode.ENHANCE_YOUR_CALM)]
    bench.http2.lost()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_header_block_that_is_gathered_is_paid_for(whole: bool) -> None:
    budget = Budget(MIB)
    bench = Bench(account=budget.account("client"))
    block = encode_headers(REQUEST)
    bench.receive(frame(HEADERS, 0, 1, block[:4]))
    assert budget.used_bytes == Http2Limits().max_header_list_bytes
    if whole:
        bench.receive(frame(CONTINUATION, END_HEADERS, 1, block[4:]))
        assert budget.used_bytes == STREAM_BYTES and len(bench.http2.streams) == 1
    bench.http2.lost()
    assert budget.used_bytes == 0


def test_a_header_block_that_cannot_be_paid_for_ends_the_connection() -> None:
    bench = Bench(account=Budget(16_000).account("client"))
    with pytest.raises(Http2Error, match="memory budget"):
        bench.receive(frame(HEADERS, 0, 1, b"x"))


def test_a_stream_closed_from_inside_is_not_held() -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    handler.full = True

    def close(name: str, stream: Http2Stream) -> None:
        if name == "batch":
            stream.reset(ErrorCode.CANCEL)

    handler.on_call = close
    bench.receive(data(1, b"x"))
    assert (bench.http2.held, bench.http2.holders, bench.http2.streams) == (0, {}, {})


# Callbacks that close or fail.


@pytest.mark.parametrize("where", ["data", "batch", "end", "headers"])
@pytest.mark.parametrize("how", ["stream", "connection", "error"])
def test_closing_inside_callbacks(where: str, how: str) -> None:
    bench = Bench()
    _, handler = bench.accept(1)
    _, other = bench.accept(3)

    def act(name: str, stream: Http2Stream) -> None:
        if name == where:
            if how == "stream":
                stream.reset(ErrorCode.CANCEL)
            elif how == "connection":
                bench.http2.lost("closed inside")
            else:
                raise StreamError(ErrorCode.INTERNAL_ERROR, "handler says no")

    handler.on_call = act
    trailers = encode_headers(((b"a", b"b"),))
    bench.receive(data(1, b"abc"), request(1, block=trailers, end=True), data(3, b"other"))
    assert 1 not in bench.http2.streams
    if how == "connection":
        assert not bench.http2.streams and other.reset == (ErrorCode.CANCEL, "closed inside")
    else:
        assert other.received == b"other"
        wanted = ErrorCode.CANCEL if how == "stream" else ErrorCode.INTERNAL_ERROR
        assert bench.resets() == [(1, wanted)]
    assert (handler.calls.count("reset") == 1) is (how != "stream")
    assert bench.http2.held == 0


def test_an_error_of_batch_over_behind_a_reset_is_not_answered() -> None:
    bench = Bench()
    _, handler = bench.accept(1)

    def act(name: str, stream: Http2Stream) -> None:
        if name == "batch":
            raise StreamError(ErrorCode.INTERNAL_ERROR, "no")

    handler.on_call = act
    bench.receive(data(1, b"abc"), rst_stream(1, ErrorCode.CANCEL))
    assert bench.resets() == []
    assert handler.reset == (ErrorCode.CANCEL, "reset by the peer")
    assert handler.calls == ["data", "reset"]


def test_a_request_that_nobody_serves() -> None:
    bench = Bench()

    def refuse(stream: Http2Stream, headers: Headers) -> Recorder:
        raise StreamError(ErrorCode.REFUSED_STREAM, "not now")

    bench.http2.on_request = refuse
    bench.receive(request(1, end=True))
    assert bench.resets() == [(1, ErrorCode.REFUSED_STREAM)]
    assert not bench.http2.streams


# Going away.


def test_drain_refuses_what_is_new() -> None:
    bench = Bench()
    bench.accept(1)
    bench.http2.go_away()
    bench.http2.go_away()
    (goaway,) = bench.sent()
    assert http2.read_goaway(goaway.payload) == (1, ErrorCode.NO_ERROR, "")
    bench.receive(request(3), data(1, b"goes on"))
    assert bench.resets() == [(3, ErrorCode.REFUSED_STREAM)]
    assert bench.handlers[1].received == b"goes on"


def test_a_server_that_drains_lets_old_streams_finish() -> None:
    bench = Bench(client=True)
    (_, one), (_, two) = bench.open(), bench.open()
    bench.receive(http2.goaway(1, ErrorCode.NO_ERROR))
    assert one.reset is None
    assert two.reset is not None and two.reset[0] == ErrorCode.REFUSED_STREAM
    assert not bench.http2.can_open
    bench.receive(request(1, block=OK), data(1, b"still"))
    assert one.received == b"still"


def test_a_server_that_ends_with_an_error() -> None:
    bench = Bench(client=True)
    _, one = bench.open()
    bench.receive(http2.goaway(1, ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings"), b"whatever")
    assert one.reset is not None and "too_many_pings" in one.reset[1]
    assert bench.http2.closed and not bench.http2.streams


def test_a_client_that_goes_away_keeps_its_streams() -> None:
    bench = Bench()
    bench.accept(1)
    bench.receive(http2.goaway(0, ErrorCode.NO_ERROR), data(1, b"x"))
    assert bench.http2.remote_draining and bench.handlers[1].received == b"x"


def test_lost_is_heard_once_and_nothing_is_sent_after() -> None:
    bench = Bench()
    stream, handler = bench.accept(1)
    bench.http2.lost("gone")
    bench.http2.lost("again")
    assert handler.reset == (ErrorCode.CANCEL, "gone")
    bench.http2.ping()
    bench.http2.go_away()
    stream.reset(ErrorCode.CANCEL)
    stream.write(b"x", b"y")
    stream.release()
    assert bench.sent() == [] and not bench.http2.unsent
    assert bench.http2.open(Recorder()) is None


def test_one_that_closes_all_from_inside() -> None:
    bench = Bench()
    handlers = [bench.accept(stream_id)[1] for stream_id in (1, 3, 5)]
    for handler in handlers:
        handler.on_call = lambda name, stream: bench.http2.lost("all")
    bench.receive(rst_stream(3, ErrorCode.CANCEL))
    assert [handler.calls for handler in handlers] == [["reset"]] * 3


# Liveness.


def test_pings_and_their_answers() -> None:
    bench = Bench()
    bench.receive(frame(PING, 0, 0, b"whatever"))
    assert bench.sent() == [(PING, ACK, 0, b"whatever")]
    bench.http2.ping()
    bench.http2.ping()
    (ping,) = bench.sent()
    bench.clock.advance(0.25)
    bench.receive(frame(PING, ACK, 0, b"stranger"))
    assert bench.http2.round_trip_s == 0.0
    bench.receive(frame(PING, ACK, 0, ping.payload))
    assert bench.http2.round_trip_s == 0.25


def test_silence_is_pinged_and_then_death() -> None:
    bench = Bench()
    bench.clock.advance(9.9)
    assert bench.http2.tick() and not bench.sent()
    bench.clock.advance(0.1)
    assert bench.http2.tick() and [f.kind for f in bench.sent()] == [PING]
    bench.clock.advance(10)
    assert bench.http2.tick()
    bench.clock.advance(0.1)
    assert not bench.http2.tick()


def test_pairs_find_each_other() -> None:
    pair = Http2Pair()
    handler = Recorder()
    stream = pair.client.open(handler)
    assert stream is not None
    stream.send_headers(REQUEST)
    pair.run(piece_bytes=3)
    ((far, _),) = pair.accepted
    far.send_headers(((b":status", b"200"),))
    far.write(b"he", b"llo")
    far.end(((b"grpc-status", b"0"),))
    pair.run(piece_bytes=3)
    assert handler.received == b"hello"
    assert handler.calls[:4] == ["headers", "data", "headers", "end"]
    # The server needs no more of the request, as grpc-go: it resets with NO_ERROR.
    assert handler.reset == (ErrorCode.NO_ERROR, "reset by the peer")
    assert not pair.client.streams and not pair.server.streams


def test_reprs() -> None:
    bench = Bench()
    stream, _ = bench.accept(1)
    assert repr(bench.http2) == "<Http2Connection server, 1 streams, 0 held>"
    assert repr(stream) == "<Http2Stream 1, 0 waiting, 0 unconsumed>"
