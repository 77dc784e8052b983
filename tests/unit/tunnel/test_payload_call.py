"""The client's side of a KEP-1281 call, against servers that agreed to half-closes and others."""

from __future__ import annotations

import pytest

from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Http2Pair, Recorder
from isthmus.tunnel.call_stream import CallStage
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.payload import PayloadCall
from isthmus.wire.grpc import MESSAGE_HEAD, Status, message_size, status_headers
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.kep1281_pb2 import Payload
from isthmus.wire.payload import END_OF_DATA, payload_head

REQUEST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/ProxyService/Proxy"))
RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))
AGREED = (*RESPONSE, (b"isthmus-half-close", b"1"))


class Bed:
    """A call, its server's side and its caller in one."""

    def __init__(self) -> None:
        self.pair = Http2Pair()
        self.said: list[object] = []
        self.end = PayloadCall(self)
        self.end.on_done = lambda _, ending: self.said.append(ending)
        stream = self.pair.client.open(NOBODY)
        assert stream is not None
        self.end.call(stream, REQUEST)
        self.pair.run()
        self.server: Http2Stream
        self.heard: Recorder
        [(self.server, self.heard)] = self.pair.accepted

    def dialed(self) -> None:
        self.said.append("dialed")

    def call_failed(self, status: Status, text: str) -> None:
        self.said.append(("failed", status, text))

    def not_called(self, text: str) -> None:
        self.said.append("not called")

    def connection_lost(self, text: str) -> None:
        self.said.append(("lost", text))

    def open(self, *, agreed: bool = True) -> MemoryEnd:
        self.server.send_headers(AGREED if agreed else RESPONSE)
        self.pair.run()
        assert self.said.pop(0) == "dialed"
        client = MemoryEnd()
        join(client, self.end)
        return client

    def say(self, *data: bytes) -> None:
        for piece in data:
            self.server.write(payload_head(len(piece)), piece)
        self.pair.run()

    def trailers(self, status: Status, text: str = "") -> None:
        self.server.end(tuple(status_headers(status, text)))
        self.pair.run()

    @property
    def data(self) -> bytes:
        self.pair.run()
        raw, found = bytes(self.heard.received), b""
        while raw:
            end = MESSAGE_HEAD + message_size(raw[:MESSAGE_HEAD])
            found += Payload.FromString(raw[MESSAGE_HEAD:end]).data
            raw = raw[end:]
        return found


def test_headers_are_the_answer_and_bytes_may_follow_at_once() -> None:
    bed = Bed()
    bed.server.send_headers(AGREED)
    bed.say(b"220 ", b"ready")
    assert bed.said == ["dialed"]
    client = MemoryEnd()
    join(client, bed.end)
    assert client.received == b"220 ready"
    client.feed(b"helo")
    client.feed(b"z" * 200_000)
    assert bed.data == b"helo" + b"z" * 200_000


def test_a_call_taken_for_answered() -> None:
    bed = Bed()
    bed.end.open_unheard()
    assert bed.said == ["dialed"]
    client = MemoryEnd()
    join(client, bed.end)
    client.feed(b"first")
    assert bed.data == b"first"
    bed.server.send_headers(AGREED)
    bed.say(b"answer")
    assert client.received == b"answer" and bed.said == ["dialed"]


def test_a_call_taken_for_answered_whose_target_is_not_there() -> None:
    bed = Bed()
    bed.end.open_unheard()
    client = MemoryEnd()
    join(client, bed.end)
    bed.server.send_headers((*RESPONSE, *status_headers(Status.UNAVAILABLE, "x")), end=True)
    bed.pair.run()
    assert client.aborted is Ending.RESET and not client.eofs


def test_our_half_close_and_the_reply() -> None:
    bed = Bed()
    client = bed.open()
    client.feed(b"question")
    client.feed_eof()
    assert bed.data == b"question" and bed.heard.calls[-1] == "end"
    assert bed.end.half_closed and not bed.said
    bed.say(b"answer")
    bed.trailers(Status.OK)
    assert client.received == b"answer" and client.eofs == 1
    assert bed.said == [Ending.CLEAN] and not bed.pair.client.streams


def test_the_targets_half_close_as_agreed() -> None:
    bed = Bed()
    client = bed.open()
    bed.say(b"bye")
    bed.server.write(END_OF_DATA, b"")
    bed.pair.run()
    assert client.received == b"bye" and client.eofs == 1 and not bed.said
    client.feed(b"not yet")
    assert bed.data == b"not yet"
    client.feed_eof()
    bed.pair.run()
    assert bed.heard.calls[-1] == "end" and not bed.said
    bed.trailers(Status.OK)
    assert client.eofs == 1 and bed.said == [Ending.CLEAN]


def test_data_behind_the_end_of_data() -> None:
    bed = Bed()
    client = bed.open()
    bed.server.write(END_OF_DATA, b"")
    bed.say(b"but")
    assert client.aborted is Ending.PROTOCOL and not client.received
    assert bed.heard.reset is not None


def test_what_was_not_agreed_on_is_an_unknown_field() -> None:
    bed = Bed()
    client = bed.open(agreed=False)
    bed.server.write(END_OF_DATA, b"")
    bed.say(b"more")
    assert client.received == b"more" and not client.eofs


def test_another_server_ends_first() -> None:
    bed = Bed()
    client = bed.open(agreed=False)
    bed.say(b"bye")
    bed.trailers(Status.OK)
    assert client.received == b"bye" and client.eofs == 1 and not bed.said
    assert bed.end.stage is CallStage.LEFT and not bed.pair.client.streams
    client.feed_eof()
    assert bed.said == [Ending.CLEAN]


def test_who_sends_to_a_server_that_has_ended_is_reset() -> None:
    bed = Bed()
    client = bed.open(agreed=False)
    bed.trailers(Status.OK)
    client.feed(b"too late")
    assert client.aborted is Ending.RESET and bed.said == [Ending.RESET]


@pytest.mark.parametrize("eof_first", [True, False])
def test_a_server_that_ends_before_it_took_everything(eof_first: bool) -> None:
    bed = Bed()
    client = bed.open(agreed=False)
    bed.server.patient = True
    bed.heard.full = True
    client.feed(b"z" * 1_000_000)
    bed.pair.run()
    assert (client.paused, bed.end.backlog_bytes > 0) == (True, True)
    if eof_first:
        client.feed_eof()
    bed.trailers(Status.OK)
    assert client.eofs == 1 and (eof_first or not client.paused)
    if not eof_first:
        client.feed_eof()
    assert bed.said == [Ending.RESET]  # what was sent is lost
    assert not bed.pair.client.streams


def test_resets_of_the_target() -> None:
    for break_it in (
        lambda bed: bed.trailers(Status.ABORTED, "reset by peer"),
        lambda bed: (bed.server.reset(ErrorCode.INTERNAL_ERROR), bed.pair.run()),
        lambda bed: (bed.server.end(), bed.pair.run()),  # without any status
        lambda bed: (bed.server.write(payload_head(9), b""), bed.trailers(Status.OK)),  # cut
    ):
        bed = Bed()
        client = bed.open()
        bed.say(b"before")
        break_it(bed)
        assert client.received == b"before" and client.eofs == 0
        assert client.aborted is Ending.RESET and bed.said == [Ending.RESET]
        assert not bed.pair.client.streams


def test_a_reset_after_the_end_of_data() -> None:
    bed = Bed()
    client = bed.open()
    bed.server.write(END_OF_DATA, b"")
    bed.trailers(Status.ABORTED)
    assert client.eofs == 1 and client.aborted is Ending.RESET and bed.said == [Ending.RESET]


def test_the_connection_is_lost() -> None:
    bed = Bed()
    client = bed.open()
    bed.pair.client.lost("gone")
    assert client.aborted is Ending.LINK_LOST and bed.said == [Ending.LINK_LOST]
    bed = Bed()
    bed.pair.client.lost("gone")
    assert bed.said == [Ending.LINK_LOST, ("lost", "gone")]


def test_our_reset_is_a_cancel() -> None:
    for opened in (True, False):
        bed = Bed()
        if opened:
            bed.open()
        bed.end.abort(Ending.ADMIN)
        bed.end.abort(Ending.ADMIN)
        bed.pair.run()
        assert bed.heard.reset is not None and bed.heard.reset[0] == ErrorCode.CANCEL
        assert bed.said == [Ending.ADMIN]


def test_refusals() -> None:
    bed = Bed()
    bed.server.send_headers((*RESPONSE, *status_headers(Status.NOT_FOUND, "who?")), end=True)
    bed.pair.run()
    assert bed.said[1:] == [("failed", Status.NOT_FOUND, "who?")]
    bed = Bed()
    bed.server.send_headers((*RESPONSE, *status_headers(Status.OK)), end=True)
    bed.pair.run()
    assert bed.said[1:] == [("failed", Status.UNKNOWN, "the call ended without an answer")]
    bed = Bed()
    bed.server.send_headers(((b":status", b"403"), (b"content-type", b"text/html")))
    bed.pair.run()
    assert bed.said[1:] == [
        ("failed", Status.PERMISSION_DENIED, "the response has HTTP status '403'")
    ]
    bed = Bed()
    bed.server.reset(ErrorCode.INTERNAL_ERROR)
    bed.pair.run()
    assert bed.said[1:] == [("failed", Status.UNAVAILABLE, "reset by the peer")]


def test_a_stream_refused_unseen_may_be_asked_for_again() -> None:
    bed = Bed()
    bed.server.reset(ErrorCode.REFUSED_STREAM)
    bed.pair.run()
    assert bed.said[1:] == ["not called"]


@pytest.mark.parametrize("message", [b"\x01\x00\x00\x00\x01x", b"\x00\xff\xff\xff\xff"])
def test_no_payloads(message: bytes) -> None:
    bed = Bed()
    client = bed.open()
    bed.server.write(message, b"")
    bed.pair.run()
    assert client.aborted is Ending.PROTOCOL and bed.said == [Ending.PROTOCOL]
    assert bed.heard.reset is not None


def test_a_full_sink_holds_credit_back_for_as_long_as_it_likes() -> None:
    bed = Bed()
    client = bed.open()
    client.fill()
    for _ in range(100):
        bed.say(b"x" * 16_000)
    window = bed.pair.client.limits.stream_window_bytes
    assert bed.server.out_bytes > 1_600_000 - window - 1000
    client.make_room()
    bed.pair.run()
    assert len(client.received) == 1_600_000
