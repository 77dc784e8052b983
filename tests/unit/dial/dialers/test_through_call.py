"""One call of /ProxyService/Proxy from its client's side, against packets that a test writes."""

from __future__ import annotations

from isthmus.testing.clock import ManualClock
from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Http2Pair, Recorder
from isthmus.tunnel.call_stream import CallStage
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.proxy_call import REPLY_PAUSE_S, ProxyClientCall
from isthmus.wire.grpc import MESSAGE_HEAD, Status, message_size, status_headers
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_REQ,
    DATA,
    DIAL_REQ,
    close_dial,
    close_response,
    data_packet,
    dial_response,
)

RANDOM = 77
REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
)
RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class Bed:
    """A call, its server's side and its caller in one."""

    def __init__(self, *, half_closes: bool | None = True) -> None:
        self.clock = ManualClock()
        self.pair = Http2Pair(clock=self.clock)
        self.said: list[object] = []
        self.hung_up: list[Http2Stream] = []
        self.looks = 0
        self.end = ProxyClientCall(self, random=RANDOM, clock=self.clock, half_closes=half_closes)
        self.end.on_done = lambda _, ending: self.said.append(ending)
        stream = self.pair.client.open(NOBODY)
        assert stream is not None
        self.end.call(stream, REQUEST, "pod:80")
        self.pair.run()
        self.server: Http2Stream
        self.heard: Recorder
        [(self.server, self.heard)] = self.pair.accepted

    def dialed(self) -> None:
        self.said.append("dialed")

    def refused(self, error: str) -> None:
        self.said.append(("refused", error))

    def call_failed(self, status: Status, text: str) -> None:
        self.said.append(("failed", status, text))

    def not_called(self, text: str) -> None:
        self.said.append(("not called", text))

    def connection_lost(self, text: str) -> None:
        self.said.append(("lost", text))

    def hang_up(self, stream: Http2Stream) -> None:
        self.hung_up.append(stream)

    @property
    def left(self) -> int:
        """How many streams are open once the batch is over."""
        for stream in self.hung_up:
            stream.reset(ErrorCode.CANCEL)
        return len(self.pair.client.streams)

    def look_later(self, end: ProxyClientCall, delay_s: float) -> None:
        assert end is self.end
        self.looks += 1

    def say(self, *messages: bytes, end: Status | None = None) -> None:
        if not self.server.headers_sent:
            self.server.send_headers(RESPONSE)
        if messages:
            self.server.write(b"".join(messages), b"")
        if end is not None:
            self.server.end(tuple(status_headers(end, "words")))
        self.pair.run()

    def open(self) -> MemoryEnd:
        self.say(dial_response(RANDOM, 5))
        assert self.said.pop(0) == "dialed"
        client = MemoryEnd()
        join(client, self.end)
        return client

    @property
    def packets(self) -> list[Packet]:
        self.pair.run()
        data, found = bytes(self.heard.received), []
        while data:
            end = MESSAGE_HEAD + message_size(data[:MESSAGE_HEAD])
            found.append(Packet.FromString(data[MESSAGE_HEAD:end]))
            data = data[end:]
        return found


def test_the_dial() -> None:
    bed = Bed()
    [packet] = bed.packets
    assert packet.type == DIAL_REQ
    dial = packet.dialRequest
    assert (dial.protocol, dial.address, dial.random) == ("tcp", "pod:80", RANDOM)
    assert dict(bed.heard.headers[0])[b":path"] == b"/ProxyService/Proxy"


def test_another_ones_answer_is_none() -> None:
    bed = Bed()
    bed.say(dial_response(RANDOM + 1, 5), data_packet(5, b"x"))
    assert bed.end.stage is CallStage.DIALING and not bed.said


def test_data_both_ways_and_the_first_bytes_with_the_answer() -> None:
    bed = Bed()
    bed.say(dial_response(RANDOM, 5), data_packet(5, b"220 "), data_packet(5, b"ready"))
    client = MemoryEnd()
    join(client, bed.end)
    assert client.received == b"220 ready"
    client.feed(b"helo")
    assert [(it.data.connectID, it.data.data) for it in bed.packets[1:]] == [(5, b"helo")]


def test_more_than_a_message_holds() -> None:
    bed = Bed()
    client = bed.open()
    client.feed(b"z" * (5 * 1024 * 1024))
    assert b"".join(it.data.data for it in bed.packets[1:]) == zs(5 * 1024 * 1024)
    assert bed.end.backlog_bytes == 0 and not client.paused


def zs(size: int) -> bytes:
    return b"z" * size


def test_a_full_sink_holds_credit_back_for_as_long_as_it_likes() -> None:
    bed = Bed()
    client = bed.open()
    client.fill()
    for _ in range(100):
        bed.server.write(data_packet(5, b"x" * 16000), b"")
        bed.pair.run()
    window = bed.pair.client.limits.stream_window_bytes
    assert bed.server.out_bytes > 1_600_000 - window - 1000
    bed.clock.advance(3600.0)
    assert bed.end.ending is None
    client.make_room()
    bed.pair.run()
    assert len(client.received) == 1_600_000


def test_a_half_close_is_the_end_of_our_stream() -> None:
    bed = Bed()
    client = bed.open()
    client.feed(b"question")
    client.feed_eof()
    bed.pair.run()
    assert bed.heard.calls[-1] == "end"
    bed.say(data_packet(5, b"answer"), close_response(5), end=Status.OK)
    assert client.received == b"answer" and client.eofs == 1
    assert bed.said == [Ending.CLEAN] and not bed.left


def test_a_server_is_asked_whether_it_keeps_half_closes() -> None:
    for said, keeps in (((b"isthmus-half-close", b"1"),), True), ((), False):
        bed = Bed(half_closes=None)
        bed.server.send_headers((*RESPONSE, *said))
        client = bed.open()
        client.feed_eof()
        bed.pair.run()
        assert ("end" in bed.heard.calls) is keeps


def test_a_target_that_ends_before_it_has_everything_is_no_clean_end() -> None:
    bed = Bed()
    client = bed.open()
    bed.heard.full = True
    client.feed(b"z" * 1_000_000)
    client.feed_eof()
    bed.pair.run()
    assert bed.end.backlog_bytes
    bed.say(data_packet(5, b"enough"), close_response(5), end=Status.OK)
    assert client.received == b"enough" and client.eofs == 1
    assert bed.said == [Ending.RESET] and not bed.left


def test_a_call_that_was_not_seen_may_be_repeated() -> None:
    bed = Bed()
    bed.server.reset(ErrorCode.REFUSED_STREAM)
    bed.pair.run()
    assert bed.said == [Ending.RESET, ("not called", "reset by the peer")]


def test_the_connection_is_lost_before_the_answer() -> None:
    bed = Bed()
    bed.pair.client.lost("gone")
    assert bed.said == [Ending.LINK_LOST, ("lost", "gone")]


def test_a_server_without_half_close_is_asked_to_close_when_the_reply_pauses() -> None:
    bed = Bed(half_closes=False)
    client = bed.open()
    client.feed_eof()
    bed.pair.run()
    assert "end" not in bed.heard.calls and bed.looks == 1
    bed.end.look()
    bed.clock.advance(REPLY_PAUSE_S)
    bed.say(data_packet(5, b"slow"))
    bed.end.look()
    bed.clock.advance(REPLY_PAUSE_S + 1)
    bed.end.look()
    assert [it.type for it in bed.packets[1:]] == [CLOSE_REQ]
    assert not bed.said
    bed.say(close_response(5))
    assert client.received == b"slow" and client.eofs == 1
    assert bed.said == [Ending.CLEAN]
    bed.end.look()  # a timer that was on its way


def test_a_server_that_does_not_even_close() -> None:
    bed = Bed(half_closes=False)
    client = bed.open()
    client.feed_eof()
    bed.end.look()
    for _ in range(2):
        bed.clock.advance(REPLY_PAUSE_S + 1)
        bed.end.look()
    assert bed.said == [Ending.TIMED_OUT] and client.aborted is Ending.TIMED_OUT


def test_nobody_waits_for_the_reply() -> None:
    bed = Bed(half_closes=False)
    client = bed.open()
    client.feed(b"last")
    client.feed_eof()
    bed.end.let_go()
    bed.end.let_go()
    assert [it.type for it in bed.packets[1:]] == [DATA, CLOSE_REQ]


def test_the_target_ends_first() -> None:
    bed = Bed()
    client = bed.open()
    bed.say(data_packet(5, b"bye"), close_response(5), end=Status.OK)
    assert client.received == b"bye" and client.eofs == 1
    assert not bed.said and not bed.left and bed.end.half_closed
    client.feed_eof()
    assert bed.said == [Ending.CLEAN]


def test_who_sends_to_a_target_that_has_ended_is_reset() -> None:
    bed = Bed()
    client = bed.open()
    bed.say(close_response(5), end=Status.OK)
    client.feed(b"too late")
    assert client.aborted is Ending.RESET and bed.said == [Ending.RESET]


def test_resets_of_the_target() -> None:
    for break_it in (
        lambda bed: bed.say(close_response(5, "read: connection reset by peer")),
        lambda bed: (bed.server.reset(ErrorCode.INTERNAL_ERROR), bed.pair.run()),
        lambda bed: bed.say(end=Status.ABORTED),
        lambda bed: bed.say(end=Status.OK),  # without CLOSE_RSP it was cut
    ):
        bed = Bed()
        client = bed.open()
        bed.say(data_packet(5, b"before"))
        break_it(bed)  # type: ignore[no-untyped-call]
        assert client.received == b"before" and client.eofs == 0
        assert client.aborted is Ending.RESET and bed.said == [Ending.RESET]
        assert not bed.left


def test_the_connection_is_lost() -> None:
    bed = Bed()
    client = bed.open()
    bed.pair.client.lost("gone")
    assert client.aborted is Ending.LINK_LOST and bed.said == [Ending.LINK_LOST]


def test_our_reset_is_one() -> None:
    bed = Bed()
    bed.open()
    bed.end.abort(Ending.ADMIN)
    bed.end.abort(Ending.ADMIN)
    bed.pair.run()
    assert bed.heard.reset is not None and bed.heard.reset[0] == ErrorCode.CANCEL
    assert bed.said == [Ending.ADMIN] and not bed.left


def test_refusals() -> None:
    bed = Bed()
    bed.say(dial_response(RANDOM, error="no such host"), end=Status.OK)
    assert bed.said == [Ending.CLEAN, ("refused", "no such host")] and not bed.left
    bed = Bed()
    bed.say(dial_response(RANDOM))
    assert bed.said[1:] == [("refused", "the server answered without a connection id")]


def test_calls_that_fail() -> None:
    bed = Bed()
    bed.say(end=Status.UNAVAILABLE)
    assert bed.said[1:] == [("failed", Status.UNAVAILABLE, "words")]
    bed = Bed()
    bed.say(close_dial(RANDOM))
    assert bed.said[1:] == [("failed", Status.CANCELLED, "the server cancelled the dial")]
    bed = Bed()
    bed.say(close_response(0, "unknown connect id"))
    assert bed.said[1:] == [("failed", Status.UNKNOWN, "unknown connect id")]
    bed = Bed()
    bed.server.send_headers(((b":status", b"403"), (b"content-type", b"text/html")))
    bed.pair.run()
    assert bed.said[1:] == [
        ("failed", Status.PERMISSION_DENIED, "the response has HTTP status '403'")
    ]


def test_no_packets() -> None:
    bed = Bed()
    client = bed.open()
    bed.say(b"\x01nonsense")
    assert client.aborted is Ending.PROTOCOL and bed.said == [Ending.PROTOCOL]
    assert bed.heard.reset is not None
