"""A client's call: every packet in every stage, what is held until it has settled, and its ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.testing import Http2Pair, ManualClock, MemoryEnd
from isthmus.tunnel.call_stream import CallStage
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.message_reader import PacketReader
from isthmus.tunnel.proxy_end import LAST_WORDS_S, SETTLE_S, ProxyEnd
from isthmus.wire.grpc import MAX_MESSAGE_BYTES, Status, read_status
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_RSP,
    DIAL_RSP,
    close_dial,
    close_request,
    close_response,
    data_packet,
    dial_request,
    dial_response,
    drain,
    parse,
)

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
ID, RANDOM = 5, 77
WINDOW = 256 * 1024


class Goclient:
    """The client's program: reads packets off its stream."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.received = bytearray()
        self.reader = PacketReader()
        self.status: tuple[Status, str] | None = None
        self.reset: int | None = None
        self.ended = False
        self.full = False

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        if end:
            self.status = read_status(headers)

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        self.reader.feed(view, self)

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        assert connect_id == ID and not self.closes
        self.received += piece

    def more_payload(self, piece: memoryview | bytes) -> None:
        self.received += piece

    def got_message(self, message: memoryview | bytes) -> None:
        self.packets.append(parse(message))

    def batch_over(self, stream: Http2Stream) -> None:
        if not self.full:
            stream.release()

    def got_end(self, stream: Http2Stream) -> None:
        assert self.reader.at_boundary
        self.ended = True

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        if not self.ended:
            self.reset = code

    def can_write(self, stream: Http2Stream) -> None:
        pass

    @property
    def closes(self) -> list[tuple[int, str]]:
        found = [p.closeResponse for p in self.packets if p.type == CLOSE_RSP]
        return [(close.connectID, close.error) for close in found]

    @property
    def answers(self) -> list[tuple[int, int, str]]:
        found = [p.dialResponse for p in self.packets if p.type == DIAL_RSP]
        return [(answer.random, answer.connectID, answer.error) for answer in found]


class Bench:
    """A ProxyEnd whose client is at the other side of a pair; also its tunnel.proxy_end.Client."""

    def __init__(
        self, stage: CallStage = CallStage.NEW, *, limits: Http2Limits | None = None
    ) -> None:
        self.clock = ManualClock()
        self.pair = Http2Pair(clock=self.clock, on_request=self._request, limits=limits)
        self.wanted: list[tuple[str, str]] = []
        self.lefts = 0
        self.complaints: list[str] = []
        self.delays: list[float] = []
        self.done: list[Ending] = []
        self.go = Goclient()
        stream = self.pair.client.open(self.go)
        assert stream is not None
        self.stream = stream
        stream.send_headers(REQUEST)
        self.pair.run()
        self.target = MemoryEnd()
        self._bring(stage)

    def _request(self, stream: Http2Stream, headers: Headers) -> ProxyEnd:
        self.end = ProxyEnd(stream, self.clock)
        self.end.client = self
        self.end.on_done = lambda end, ending: self.done.append(ending)
        return self.end

    def _bring(self, stage: CallStage) -> None:
        if stage is CallStage.NEW:
            return
        self.send(dial_request("tcp", "1.2.3.4:5", RANDOM))
        if stage is CallStage.DIALING:
            return
        self.end.accept(ID)
        join(self.end, self.target)
        self.clock.advance(SETTLE_S)
        self.pair.run()
        if stage is CallStage.LEFT:
            self.send(close_request(ID))
        elif stage is CallStage.OVER:
            self.send(close_request(ID))
            self.target.feed_eof()

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self.stream.write(message, b"")
        self.pair.run()

    def fire(self) -> None:
        """Let the timers come that were asked for."""
        while self.delays:
            self.clock.advance(self.delays.pop())
            self.end.settle()
        self.pair.run()

    @property
    def over(self) -> bool:
        """Everything was reported once, and nothing is left."""
        assert len(self.done) <= 1
        return bool(self.done) and not self.pair.server.streams and not self.pair.server.held

    # Client.

    def wants(self, protocol: str, address: str) -> None:
        self.wanted.append((protocol, address))

    def left(self) -> None:
        self.lefts += 1

    settle_s = SETTLE_S

    def settle_later(self, end: ProxyEnd, delay_s: float) -> None:
        assert end is self.end
        self.delays.append(delay_s)

    def broke_rules(self, what: str) -> None:
        self.complaints.append(what)


# A life.


def test_dial_echo_close() -> None:
    bench = Bench()
    bench.send(dial_request("tcp", "1.2.3.4:5", RANDOM))
    assert bench.wanted == [("tcp", "1.2.3.4:5")]
    bench.end.accept(ID)
    join(bench.end, bench.target)
    bench.pair.run()
    assert bench.go.answers == [(RANDOM, ID, "")]
    bench.send(data_packet(ID, b"hello"))
    assert bench.target.received == b"hello"
    bench.target.feed(b"world")
    bench.pair.run()
    assert bench.go.received == b"world"
    assert bench.end.bytes_written == 5
    bench.send(close_request(ID))
    assert bench.go.closes == [(ID, "")] and bench.go.status == (Status.OK, "")
    assert bench.target.eofs == 1 and bench.end.half_closed and not bench.done
    bench.target.feed_eof()
    assert bench.done == [Ending.CLEAN] and bench.target.ending is Ending.CLEAN
    assert bench.over


def test_a_refused_dial() -> None:
    bench = Bench(CallStage.DIALING)
    bench.end.refuse("no route")
    bench.pair.run()
    assert bench.go.answers == [(RANDOM, 0, "no route")]
    assert bench.go.status == (Status.OK, "")
    assert bench.over and bench.done == [Ending.CLEAN]
    bench.end.accept(ID)
    bench.end.refuse("again")
    assert bench.stream.open is False


def test_answers_count_against_no_flood() -> None:
    for answer in (lambda end: end.accept(ID), lambda end: end.refuse("no")):
        bench = Bench(CallStage.DIALING)
        assert not bench.end.stream.answered
        answer(bench.end)
        assert bench.end.stream.answered


def test_the_target_ends_first() -> None:
    bench = Bench(CallStage.OPEN)
    bench.target.feed(b"bye")
    bench.target.feed_eof()
    bench.pair.run()
    assert bench.go.received == b"bye" and not bench.go.closes
    bench.send(data_packet(ID, b"last words"))
    assert bench.target.received == b"last words"
    bench.fire()
    assert bench.go.closes == [(ID, "")]
    assert bench.go.status == (Status.OK, "")
    # The protocol has no half-close: the client can send nothing more.
    assert bench.target.eofs == 1 and bench.target.ending is Ending.CLEAN
    assert bench.over and bench.done == [Ending.CLEAN]


@pytest.mark.parametrize("how", ["timer", "close", "end", "vanish", "cancel", "abort"])
def test_how_last_words_end(how: str) -> None:
    bench = Bench(CallStage.OPEN)
    bench.target.feed_eof()
    bench.end.write_eof()
    bench.pair.run()
    assert bench.delays == [pytest.approx(LAST_WORDS_S)] and not bench.done
    match how:
        case "close":
            bench.send(close_request(ID))
        case "end":
            bench.stream.end()
            bench.pair.run()
        case "vanish":
            bench.stream.reset(ErrorCode.CANCEL)
            bench.pair.run()
        case "cancel":
            bench.send(close_dial(RANDOM))
        case "abort":
            bench.target.reset()
    bench.fire()
    ending = {"vanish": Ending.RESET, "abort": Ending.RESET, "cancel": Ending.CANCELLED}
    assert bench.done == [ending.get(how, Ending.CLEAN)] and bench.over
    if how in ("timer", "close", "end"):
        assert bench.go.closes == [(ID, "")] and bench.target.ending is Ending.CLEAN
        assert bench.target.eofs == 1


def test_the_client_half_closes_its_call_and_gets_its_reply() -> None:
    bench = Bench(CallStage.OPEN)
    bench.stream.write(data_packet(ID, b"request"), b"")
    bench.stream.end()
    bench.pair.run()
    assert (bench.target.received, bench.target.eofs) == (b"request", 1)
    assert bench.end.half_closed and not bench.done
    bench.target.feed(b"reply")
    bench.target.feed_eof()
    bench.pair.run()
    assert bench.go.received == b"reply" and bench.go.closes == [(ID, "")]
    assert bench.target.eofs == 1 and bench.over and bench.done == [Ending.CLEAN]


def test_a_half_close_before_the_answer_is_remembered() -> None:
    bench = Bench(CallStage.DIALING)
    bench.stream.end()
    bench.pair.run()
    assert not bench.done and not bench.lefts
    bench.end.accept(ID)
    join(bench.end, bench.target)
    assert bench.target.eofs == 1
    bench.clock.advance(SETTLE_S)
    bench.target.feed(b"reply")
    bench.target.feed_eof()
    bench.pair.run()
    assert bench.go.received == b"reply" and bench.over


def test_an_empty_call() -> None:
    bench = Bench()
    bench.stream.end()
    bench.pair.run()
    assert bench.go.status == (Status.OK, "") and bench.done == [Ending.CLEAN] and bench.over


# Every packet in every stage.

PACKETS = {
    "DIAL_REQ": dial_request("tcp", "6.7.8.9:1", 88),
    "DIAL_RSP": dial_response(1, 2),
    "CLOSE_REQ": close_request(ID),
    "CLOSE_REQ other": close_request(9),
    "CLOSE_RSP": close_response(ID),
    "DATA": data_packet(ID, b"abc"),
    "DATA other": data_packet(9, b"abc"),
    "DATA empty": data_packet(ID, b""),
    "DIAL_CLS": close_dial(RANDOM),
    "DIAL_CLS other": close_dial(1),
    "DRAIN": drain(),
}
UNKNOWN = "unknown connect id"


def expected(stage: CallStage, packet: str) -> str:
    """What a packet does: a row of the protocol's table."""
    table: dict[str, dict[CallStage, str]] = {
        "DIAL_REQ": {
            CallStage.NEW: "dials",
            CallStage.DIALING: "refused",
            CallStage.OPEN: "refused",
        },
        "CLOSE_REQ": {
            CallStage.NEW: "unknown",
            CallStage.DIALING: "unknown",
            CallStage.OPEN: "closes",
        },
        "CLOSE_REQ other": dict.fromkeys(
            (CallStage.NEW, CallStage.DIALING, CallStage.OPEN), "unknown"
        ),
        "DATA": {
            CallStage.NEW: "unknown",
            CallStage.DIALING: "unknown",
            CallStage.OPEN: "delivers",
        },
        "DATA other": {
            CallStage.NEW: "unknown",
            CallStage.DIALING: "unknown",
            CallStage.OPEN: "breaks",
        },
        "DIAL_CLS": {CallStage.DIALING: "leaves", CallStage.OPEN: "cancels"},
        "DIAL_RSP": dict.fromkeys((CallStage.NEW, CallStage.DIALING, CallStage.OPEN), "complains"),
        "CLOSE_RSP": dict.fromkeys((CallStage.NEW, CallStage.DIALING, CallStage.OPEN), "complains"),
        "DRAIN": dict.fromkeys((CallStage.NEW, CallStage.DIALING, CallStage.OPEN), "complains"),
    }
    return table.get(packet, {}).get(stage, "nothing")


@pytest.mark.parametrize("packet", PACKETS)
@pytest.mark.parametrize("stage", list(CallStage))
def test_every_packet_in_every_stage(stage: CallStage, packet: str) -> None:
    bench = Bench(stage)
    assert bench.end.stage is stage
    complaints, packets, done = len(bench.complaints), len(bench.go.packets), list(bench.done)
    bench.send(PACKETS[packet])
    what = expected(stage, packet)
    said = len(bench.go.packets) - packets
    assert (len(bench.complaints) > complaints) is (what in ("unknown", "complains", "breaks"))
    match what:
        case "nothing" | "complains":
            assert said == 0 and bench.done == done and bench.target.received == b""
        case "dials":
            assert bench.wanted == [("tcp", "6.7.8.9:1")] and bench.end.stage is CallStage.DIALING
        case "refused":
            assert bench.go.answers[-1] == (88, 0, "one stream carries one connection")
            assert len(bench.wanted) == 1 and not bench.done
        case "unknown":
            assert said == 1 and bench.go.closes[-1][1] == UNKNOWN and not bench.done
        case "closes":
            assert bench.go.closes == [(ID, "")] and bench.target.eofs == 1
            assert bench.end.stage is CallStage.LEFT
        case "delivers":
            assert bench.target.received == b"abc" and said == 0
        case "breaks":
            assert bench.go.closes == [(9, UNKNOWN), (ID, Ending.PROTOCOL.value)]
            assert bench.target.aborted is Ending.PROTOCOL and bench.done == [Ending.PROTOCOL]
        case "leaves":
            assert bench.lefts == 1 and bench.done == [Ending.CANCELLED]
        case "cancels":
            assert bench.target.aborted is Ending.CANCELLED and bench.done == [Ending.CANCELLED]
    if what in ("breaks", "leaves", "cancels"):
        assert bench.over
    # Whatever it was, a vanishing client ends everything that is left.
    bench.stream.reset(ErrorCode.CANCEL)
    bench.pair.run()
    if bench.end.stage is CallStage.LEFT:
        bench.target.feed_eof()
    assert bench.over and bench.end.ending is not None


@pytest.mark.parametrize("stage", list(CallStage))
@pytest.mark.parametrize("how", ["reset", "lost", "garbage", "large", "compressed", "cut"])
def test_a_client_that_vanishes_or_breaks_the_stream(stage: CallStage, how: str) -> None:
    bench = Bench(stage)
    before = list(bench.done)
    match how:
        case "reset":
            bench.stream.reset(ErrorCode.CANCEL)
        case "lost":
            bench.pair.server.lost()
        case "garbage":
            bench.stream.write(b"\0\0\0\0\4\xff\xff\xff\xff", b"")
        case "large":
            bench.stream.write((MAX_MESSAGE_BYTES + 1).to_bytes(5, "big"), b"")
        case "compressed":
            bench.stream.write(b"\x01\0\0\0\1x", b"")
        case "cut":
            bench.stream.write(b"\0\0\0\0\4", b"\x08")
            bench.stream.end()
    bench.pair.run()
    if stage in (CallStage.LEFT, CallStage.OVER):
        assert bench.done == before  # it had said goodbye
        return
    kind = Ending.RESET if how in ("reset", "lost") else Ending.PROTOCOL
    assert bench.done == [kind] and bench.over
    assert bench.lefts == (stage is CallStage.DIALING)
    assert bench.target.aborted is (kind if stage is CallStage.OPEN else None)
    if kind is Ending.PROTOCOL:
        wanted = Status.RESOURCE_EXHAUSTED if how == "large" else Status.INTERNAL
        assert bench.go.status is not None and bench.go.status[0] is wanted
        assert len(bench.complaints) == 1


def test_a_message_of_just_4_mib() -> None:
    bench = Bench(CallStage.OPEN)
    payload = bytes(MAX_MESSAGE_BYTES - 20)
    bench.send(data_packet(ID, payload), data_packet(ID, b"!"))
    assert len(bench.target.received) == len(payload) + 1
    assert not bench.done and bench.pair.server.held == 0


def test_a_gathered_message_counts_while_it_is_kept() -> None:
    bench = Bench()
    raw = dial_request("tcp", "a" * 60_000, RANDOM)
    bench.send(raw[:50_000])
    assert bench.pair.server.held == 50_000
    bench.send(raw[50_000:])
    assert bench.pair.server.held == 0 and len(bench.wanted) == 1


def test_a_client_that_asks_nonsense_and_does_not_read() -> None:
    bench = Bench()
    bench.go.full = True
    for _ in range(40):
        bench.send(*[data_packet(9, b"x")] * 1000)
        if bench.done:
            break
    assert bench.done == [Ending.PROTOCOL] and bench.go.reset == ErrorCode.ENHANCE_YOUR_CALM
    assert bench.over


def test_data_in_pieces_for_an_unknown_connection_is_answered_once() -> None:
    bench = Bench()
    bench.stream.write(data_packet(9, bytes(50_000)), b"")
    bench.pair.run(piece_bytes=1000)
    assert bench.go.closes == [(9, UNKNOWN)]


# Settling: Go's client loses what follows its answer too closely.


def just_open() -> Bench:
    bench = Bench(CallStage.DIALING)
    bench.end.accept(ID)
    join(bench.end, bench.target)
    bench.pair.run()
    return bench


def test_what_the_target_says_first_waits() -> None:
    bench = just_open()
    bench.target.feed(b"220 hello")
    bench.target.feed(b", again")
    bench.pair.run()
    assert bench.go.received == b"" and bench.delays == [pytest.approx(SETTLE_S)]
    assert bench.target.waiting_bytes == 7  # told to stop after the first
    bench.clock.advance(SETTLE_S)
    bench.end.settle()
    bench.pair.run()
    assert bench.go.received == b"220 hello, again"
    bench.end.settle()  # a timer that comes late
    assert not bench.done


def test_a_busy_client_gets_longer() -> None:
    bench = just_open()
    bench.clock.advance(SETTLE_S)
    bench.settle_s = 3 * SETTLE_S  # by now others have come
    bench.target.feed(b"220 hello")
    bench.pair.run()
    assert bench.go.received == b"" and bench.delays == [pytest.approx(2 * SETTLE_S)]
    bench.settle_s = 4 * SETTLE_S
    bench.clock.advance(2 * SETTLE_S)
    bench.end.settle()
    bench.pair.run()
    assert bench.go.received == b"" and bench.delays[1:] == [pytest.approx(SETTLE_S)]
    bench.clock.advance(SETTLE_S + 0.001)
    bench.end.settle()
    bench.pair.run()
    assert bench.go.received == b"220 hello"


def test_the_clients_first_packet_settles() -> None:
    bench = just_open()
    bench.target.feed(b"first")
    bench.target.on_write = lambda data: bench.target.feed(b", answer")
    bench.send(data_packet(ID, b"x"))
    assert bench.go.received == b"first, answer" and bench.target.received == b"x"


def test_time_settles_without_a_timer() -> None:
    bench = just_open()
    bench.clock.advance(SETTLE_S)
    bench.target.feed(b"late enough")
    bench.pair.run()
    assert bench.go.received == b"late enough" and bench.delays == []


@pytest.mark.parametrize("data", [b"", b"last words"])
def test_the_targets_end_waits_too(data: bytes) -> None:
    bench = just_open()
    if data:
        bench.target.feed(data)
        bench.target.resume_reading()  # so that the end is not kept by the target itself
    bench.target.feed_eof()
    bench.end.write_eof()
    assert bench.end.write(b"too late") is True
    bench.pair.run()
    assert bench.go.closes == [] and not bench.done
    bench.fire()
    assert bench.go.received == data and bench.go.closes == [(ID, "")]
    assert bench.done == [Ending.CLEAN] and bench.over


def test_a_reset_waits_behind_what_came_before_it() -> None:
    bench = just_open()
    bench.target.feed(b"error: ")
    bench.target.reset()
    bench.end.abort(Ending.ADMIN)
    assert bench.done == [Ending.RESET]  # the tunnel is over, the client hears it later
    bench.pair.run()
    assert bench.go.closes == []
    bench.end.settle()
    bench.pair.run()
    assert bench.go.received == b"error: " and bench.go.closes == [(ID, Ending.RESET.value)]
    assert bench.go.status == (Status.ABORTED, Ending.RESET.value) and bench.over


def test_a_client_that_vanishes_while_it_settles() -> None:
    for act in (lambda b: b.target.feed(b"x"), lambda b: b.target.reset()):
        bench = just_open()
        act(bench)
        bench.stream.reset(ErrorCode.CANCEL)
        bench.pair.run()
        bench.end.settle()
        bench.pair.run()
        assert bench.done == [Ending.RESET] and bench.over


@pytest.mark.parametrize("data", [b"", b"unheard"])
def test_both_close_while_it_settles(data: bytes) -> None:
    bench = just_open()
    if data:
        bench.target.feed(data)
        bench.target.resume_reading()
    bench.target.feed_eof()
    bench.send(close_request(ID))
    assert bench.done == [Ending.CLEAN] and bench.target.ending is Ending.CLEAN
    assert bench.go.closes == [(ID, "")] and bench.over


def test_dial_cls_while_it_settles() -> None:
    bench = just_open()
    bench.target.feed(b"x")
    bench.send(close_dial(RANDOM))
    bench.end.settle()
    bench.pair.run()
    assert bench.target.aborted is Ending.CANCELLED and bench.done == [Ending.CANCELLED]
    assert bench.go.received == b"" and bench.over


# Back-pressure.


def test_a_target_that_does_not_read_stops_its_client() -> None:
    bench = Bench(CallStage.OPEN)
    bench.target.fill()
    total = 0
    for _ in range(40):
        bench.send(data_packet(ID, bytes(20_000)))
        total += 20_000
    assert bench.pair.server.held == WINDOW - bench.end.stream.owed
    assert len(bench.target.received) <= WINDOW
    bench.target.make_room()
    bench.pair.run()
    assert len(bench.target.received) == total and bench.pair.server.held == 0


def test_a_client_that_does_not_read_stops_its_target() -> None:
    bench = Bench(CallStage.OPEN)
    bench.go.full = True
    for _ in range(40):
        bench.target.feed(bytes(20_000))
        bench.pair.run()
    assert bench.target.paused and bench.end.backlog_bytes <= 20_020
    bench.go.full = False
    bench.stream.release()
    bench.pair.run()
    assert len(bench.go.received) == 800_000 and not bench.target.paused


def test_close_while_data_is_buffered() -> None:
    """The target's last bytes wait; the client closes: the target is told, and can end."""
    bench = Bench(CallStage.OPEN)
    bench.go.full = True
    for _ in range(20):
        bench.target.feed(bytes(20_000))
    bench.target.feed_eof()
    bench.pair.run()
    assert bench.target.paused
    bench.send(data_packet(ID, b"last"), close_request(ID))
    assert bench.target.received == b"last" and bench.target.aborted is Ending.RESET
    assert bench.done == [Ending.RESET]
    bench.go.full = False
    bench.stream.release()
    bench.pair.run()
    assert bench.go.closes == [(ID, "")] and bench.over


def test_a_target_that_sends_to_a_client_that_left_is_reset() -> None:
    bench = Bench(CallStage.LEFT)
    bench.end.write(b"")
    assert not bench.done
    bench.target.feed(b"still here?")
    assert bench.target.aborted is Ending.RESET and bench.done == [Ending.RESET]


def test_an_abort_gets_past_a_client_that_does_not_read() -> None:
    bench = Bench(CallStage.OPEN)
    bench.go.full = True
    for _ in range(20):
        bench.target.feed(bytes(20_000))
    bench.pair.run()
    bench.target.reset()
    bench.pair.run()
    assert bench.go.reset == ErrorCode.INTERNAL_ERROR and bench.over


def test_a_write_larger_than_a_message() -> None:
    bench = Bench(CallStage.OPEN)
    bench.target.feed(bytes(5 * 1024 * 1024))
    bench.pair.run()
    assert len(bench.go.received) == 5 * 1024 * 1024


# Closing inside callbacks.


def act_on(bench: Bench, how: str) -> None:
    acts: dict[str, Callable[[], None]] = {
        "abort": lambda: bench.end.abort(Ending.ADMIN),
        "eof": bench.end.write_eof,
        "reset": lambda: bench.stream.reset(ErrorCode.CANCEL),
        "lost": bench.pair.server.lost,
    }
    acts[how]()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("how", ["abort", "eof", "lost"])
def test_closing_inside_write(how: str, full: bool) -> None:
    bench = Bench(CallStage.OPEN)
    bench.target.full = full
    bench.target.on_write = lambda data: act_on(bench, how)
    bench.send(data_packet(ID, b"abc"), data_packet(ID, b"def"))
    assert bench.target.received.startswith(b"abc")
    bench.fire()
    assert len(bench.done) == 1 and bench.over


@pytest.mark.parametrize("stage", list(CallStage))
def test_calls_after_the_end_do_nothing(stage: CallStage) -> None:
    bench = Bench(stage)
    bench.end.abort(Ending.ADMIN)
    bench.pair.run()
    done = list(bench.done)
    assert bench.end.write(b"x") is True
    bench.end.write_eof()
    bench.end.abort(Ending.RESET)
    bench.end.resume_reading()
    bench.end.pause_reading()
    bench.end.start()
    bench.pair.run()
    assert bench.done == done and len(done) == 1 and bench.over


def test_repr() -> None:
    assert repr(Bench(CallStage.OPEN).end) == "<ProxyEnd 1 open>"
