"""The server's side of a KEP-1281 call, against what a client's stream says: plain, or ours."""

from __future__ import annotations

import pytest

from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Http2Pair, Recorder
from isthmus.tunnel.call_stream import CallStage
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload import PayloadEnd
from isthmus.wire.grpc import MAX_MESSAGE_BYTES, MESSAGE_HEAD, Status, message_size, read_status
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.kep1281_pb2 import Payload
from isthmus.wire.payload import MOST_DATA, payload_head

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b"content-type", b"application/grpc"),
)


class Bed:
    """A call from its client's side, and who dials for it."""

    def __init__(self, *, half_closes: bool = False) -> None:
        self.half_closes = half_closes
        self.pair = Http2Pair(on_request=self._request)
        self.said: list[object] = []
        self.heard = Recorder()
        stream = self.pair.client.open(self.heard)
        assert stream is not None
        self.client: Http2Stream = stream
        stream.send_headers(REQUEST)
        self.end: PayloadEnd
        self.pair.run()

    def _request(self, stream: Http2Stream, headers: Headers) -> PayloadEnd:
        self.end = PayloadEnd(stream, half_closes=self.half_closes)
        self.end.client = self
        self.end.on_done = lambda _, ending: self.said.append(ending)
        return self.end

    def left(self) -> None:
        self.said.append("left")

    def broke_rules(self, what: str) -> None:
        self.said.append(what)

    def open(self) -> MemoryEnd:
        self.end.accept()
        target = MemoryEnd()
        join(self.end, target)
        self.pair.run()
        return target

    def send(self, *data: bytes) -> None:
        for piece in data:
            self.client.write(payload_head(len(piece)), piece)
        self.pair.run()

    @property
    def payloads(self) -> list[Payload]:
        self.pair.run()
        data, found = bytes(self.heard.received), []
        while data:
            end = MESSAGE_HEAD + message_size(data[:MESSAGE_HEAD])
            found.append(Payload.FromString(data[MESSAGE_HEAD:end]))
            data = data[end:]
        return found

    @property
    def data(self) -> bytes:
        return b"".join(it.data for it in self.payloads)

    @property
    def status(self) -> tuple[Status, str]:
        self.pair.run()
        return read_status(self.heard.headers[-1])


def test_headers_say_that_the_target_is_reached() -> None:
    bed = Bed()
    assert not bed.heard.headers and bed.end.stage is CallStage.DIALING
    bed.end.accept()
    bed.end.accept()
    bed.pair.run()
    assert bed.heard.headers == [((b":status", b"200"), (b"content-type", b"application/grpc"))]
    assert "end" not in bed.heard.calls


def test_half_close_is_agreed_on_in_the_response() -> None:
    bed = Bed(half_closes=True)
    bed.open()
    assert dict(bed.heard.headers[0])[b"isthmus-half-close"] == b"1"


def test_a_refusal_is_one_block_of_headers() -> None:
    bed = Bed()
    bed.end.refuse(Status.NOT_FOUND, "cannot dial x:1: name not resolved")
    assert bed.status == (Status.NOT_FOUND, "cannot dial x:1: name not resolved")
    assert len(bed.heard.headers) == 1 and dict(bed.heard.headers[0])[b":status"] == b"200"
    assert bed.said == [Ending.CLEAN] and not bed.pair.server.streams


def test_data_both_ways_and_what_came_before_the_answer() -> None:
    bed = Bed()
    bed.send(b"early ", b"", b"bytes")
    target = bed.open()
    assert target.received == b"early bytes"
    target.feed(b"answer")
    target.feed(b"")
    assert bed.data == b"answer" and len(bed.payloads) == 1


def test_a_payload_has_64_kib_at_most() -> None:
    bed = Bed()
    target = bed.open()
    target.feed(b"z" * (MOST_DATA * 2 + 1))
    assert [len(it.data) for it in bed.payloads] == [MOST_DATA, MOST_DATA, 1]
    assert bed.end.bytes_written == MOST_DATA * 2 + 1


def test_the_clients_half_close_and_the_reply() -> None:
    bed = Bed()
    target = bed.open()
    bed.send(b"question")
    bed.client.end()
    bed.pair.run()
    assert target.received == b"question" and target.eofs == 1
    assert not bed.said and bed.end.half_closed
    target.feed(b"answer")
    target.feed_eof()
    assert bed.data == b"answer" and bed.status == (Status.OK, "")
    assert bed.said == [Ending.CLEAN] and not bed.pair.server.streams


def test_the_targets_half_close_at_our_client_leaves_the_other_direction() -> None:
    bed = Bed(half_closes=True)
    target = bed.open()
    target.feed(b"bye")
    target.feed_eof()
    assert [(it.data, it.isthmus_end_of_data) for it in bed.payloads] == [
        (b"bye", False),
        (b"", True),
    ]
    assert "end" not in bed.heard.calls and not bed.said and bed.end.half_closed
    bed.send(b"not yet")
    assert target.received == b"not yet"
    bed.client.end()
    assert bed.status == (Status.OK, "")
    assert target.eofs == 1 and bed.said == [Ending.CLEAN]
    assert not bed.pair.server.streams and not bed.pair.client.streams


def test_the_targets_half_close_at_another_client_ends_the_call_but_not_what_was_sent() -> None:
    bed = Bed()
    target = bed.open()
    bed.client.write(payload_head(9), b"under way")  # sent before it sees the trailers
    target.feed(b"bye")
    target.feed_eof()
    assert bed.data == b"bye" and bed.status == (Status.OK, "")
    assert target.received == b"under way"
    assert (target.eofs, bed.said) == (0, [])
    bed.client.reset(ErrorCode.NO_ERROR)  # as gRPC's clients take note
    bed.pair.run()
    assert target.eofs == 1 and target.aborted is None and bed.said == [Ending.CLEAN]
    assert not bed.pair.server.streams


def test_another_client_that_ends_its_side_after_the_trailers() -> None:
    bed = Bed()
    target = bed.open()
    target.feed_eof()
    bed.pair.run()
    bed.send(b"last")
    bed.client.end()
    bed.pair.run()
    assert target.received == b"last" and target.eofs == 1 and bed.said == [Ending.CLEAN]


def test_another_client_that_resets_after_the_trailers() -> None:
    bed = Bed()
    target = bed.open()
    target.feed_eof()
    bed.pair.run()
    bed.client.reset(ErrorCode.CANCEL)
    bed.pair.run()
    assert target.aborted is Ending.RESET and bed.said == [Ending.RESET]


def test_a_note_taken_of_nothing_is_a_reset() -> None:
    bed = Bed()
    target = bed.open()
    bed.client.reset(ErrorCode.NO_ERROR)
    bed.pair.run()
    assert target.aborted is Ending.RESET and not target.eofs


def test_the_clients_reset() -> None:
    bed = Bed()
    target = bed.open()
    bed.client.reset(ErrorCode.CANCEL)
    bed.pair.run()
    assert target.aborted is Ending.RESET and bed.said == [Ending.RESET]


def test_a_client_that_leaves_before_the_answer() -> None:
    bed = Bed()
    bed.client.reset(ErrorCode.CANCEL)
    bed.pair.run()
    assert bed.said == [Ending.RESET, "left"]
    bed.end.accept()
    bed.end.refuse(Status.INTERNAL, "late")
    assert not bed.heard.headers


@pytest.mark.parametrize("half_closes", [False, True])
@pytest.mark.parametrize("after_eof", [False, True])
def test_a_reset_is_never_ok(half_closes: bool, after_eof: bool) -> None:
    bed = Bed(half_closes=half_closes)
    target = bed.open()
    target.feed(b"some")
    if after_eof and half_closes:
        target.feed_eof()
    bed.end.abort(Ending.RESET)
    assert bed.status == (Status.ABORTED, "reset by peer") and bed.data == b"some"
    assert bed.said == [Ending.RESET]


def test_a_reset_does_not_wait_behind_what_nobody_reads() -> None:
    bed = Bed()
    target = bed.open()
    bed.heard.full = True
    target.feed(b"z" * 1_000_000)
    bed.pair.run()
    assert bed.end.backlog_bytes
    target.feed_eof()  # whose OK waits behind them
    bed.end.abort(Ending.RESET)
    bed.pair.run()
    assert bed.heard.reset is not None and bed.heard.reset[0] == ErrorCode.INTERNAL_ERROR
    assert len(bed.heard.headers) == 1


def test_a_reader_that_stops_stops_the_target_only_for_itself() -> None:
    bed = Bed()
    target = bed.open()
    bed.heard.full = True
    target.feed(b"z" * 1_000_000)
    bed.pair.run()
    assert (target.paused, bed.said) == (True, [])
    bed.heard.full = False
    bed.client.release()
    bed.pair.run()
    assert not target.paused and len(bed.data) == 1_000_000


def test_a_target_that_stops_reading_gives_no_credit() -> None:
    bed = Bed()
    target = bed.open()
    target.fill()
    for _ in range(100):
        bed.send(b"x" * 16_000)
    window = bed.pair.server.limits.stream_window_bytes
    assert bed.client.out_bytes > 1_600_000 - window - 1000
    target.make_room()
    bed.pair.run()
    assert len(target.received) == 1_600_000


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"\x01\x00\x00\x00\x01x", Status.INTERNAL),  # compressed
        (b"\x00" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"), Status.RESOURCE_EXHAUSTED),
        (b"\x00\x00\x00\x00\x02\x0a\x05", Status.INTERNAL),  # no Payload
    ],
)
def test_no_payloads(message: bytes, status: Status) -> None:
    bed = Bed()
    target = bed.open()
    bed.send(b"good")
    bed.client.write(message, b"")
    bed.pair.run()
    assert bed.status[0] is status and bed.status[1]
    assert target.received == b"good" and target.aborted is Ending.PROTOCOL
    assert bed.said[1] is Ending.PROTOCOL


def test_a_call_that_ends_inside_a_message() -> None:
    bed = Bed()
    target = bed.open()
    bed.client.write(payload_head(10), b"half")
    bed.client.end()
    bed.pair.run()
    assert target.received == b"half" and target.aborted is Ending.PROTOCOL and not target.eofs
    assert bed.status == (Status.INTERNAL, "the call ended inside a message")


def test_four_mib_in_one_message_are_not_gathered() -> None:
    bed = Bed()
    target = bed.open()
    size = MAX_MESSAGE_BYTES - 5
    bed.client.write(payload_head(size), b"x" * 100_000)
    bed.pair.run()
    assert len(target.received) == 100_000 and not bed.pair.server.held
    bed.client.write(b"x" * (size - 100_000), b"")
    bed.pair.run()
    assert len(target.received) == size


def test_an_unusual_message_is_gathered_and_counted() -> None:
    bed = Bed()
    target = bed.open()
    body = b"\x12\x80\x80\x04" + bytes(65_536) + b"\x0a\x04last"  # an unknown field first
    bed.client.write(len(body).to_bytes(5, "big"), body[:50_000])
    bed.pair.run()
    assert 45_000 < bed.pair.server.held <= 50_005
    bed.client.write(body[50_000:], b"")
    bed.pair.run()
    assert target.received == b"last" and not bed.pair.server.held
