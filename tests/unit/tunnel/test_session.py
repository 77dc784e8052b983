"""The session: frames and their order, opening, endings, liveness, and callbacks that close."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.testing import Frame, ManualClock, MemoryCarrier, MemoryEnd, MemoryLink
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import BURST, PER_SECOND, Limits
from isthmus.tunnel.session import LAST_ID, Session
from isthmus.tunnel.stream import MAX_FRAME, Stream
from isthmus.wire.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_BYTES,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    Flags,
    FrameType,
    GoAwayCode,
    pack,
)

OPEN = pack(0, WINDOW_UPDATE, SYN, 1, 0)


class Bench:
    """A session whose other side is the test, as raw frames."""

    def __init__(self, *, client: bool = False, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.carrier = MemoryCarrier()
        self.accepted: list[Stream] = []
        self.explained: list[tuple[int, Ending]] = []
        self.session = self.carrier.session = Session(
            self.carrier,
            client=client,
            clock=self.clock,
            on_stream=self.accepted.append,
            limits=limits if limits is not None else Limits(),
            explain_reset=lambda stream, reason: self.explained.append((stream.id, reason)),
        )

    def receive(self, *raw: bytes) -> None:
        self.session.heard()
        self.session.receive(memoryview(b"".join(raw)))

    def brief(self) -> list[tuple[FrameType, Flags, int, int]]:
        return [(f.type, f.flags, f.header.stream_id, f.header.length) for f in self.sent()]

    def sent(self) -> list[Frame]:
        return self.carrier.frames()

    def accept(self, stream_id: int = 1) -> tuple[Stream, MemoryEnd]:
        self.receive(pack(0, WINDOW_UPDATE, SYN, stream_id, 0))
        stream, end = self.accepted.pop(), MemoryEnd()
        join(stream, end)
        self.sent()
        return stream, end

    def open(self) -> tuple[Stream, MemoryEnd]:
        stream, end = self.session.open(), MemoryEnd()
        assert stream is not None
        join(stream, end)
        return stream, end


# Opening.


def test_ids_have_the_parity_of_the_role() -> None:
    for client, first in ((True, 1), (False, 2)):
        bench = Bench(client=client)
        for expected in (first, first + 2, first + 4):
            bench.session.open()
            assert bench.brief() == [(WINDOW_UPDATE, SYN, expected, 0)]


@pytest.mark.parametrize(("client", "stream_id"), [(True, 1), (False, 2), (True, 0), (False, 0)])
def test_an_id_that_is_not_the_peers(client: bool, stream_id: int) -> None:
    bench = Bench(client=client)
    with pytest.raises(ProtocolError, match="not in the peer's range"):
        bench.receive(pack(0, WINDOW_UPDATE, SYN, stream_id, 0))


def test_ids_run_out() -> None:
    bench = Bench(client=True)
    bench.session._next_id = LAST_ID
    last = bench.session.open()
    assert last is not None and last.id == LAST_ID
    assert bench.session.open() is None
    assert not bench.session.can_open


def test_a_stream_is_acknowledged_at_syn() -> None:
    bench = Bench()
    bench.receive(OPEN)
    assert bench.brief() == [(WINDOW_UPDATE, ACK, 1, 0)]
    assert [stream.id for stream in bench.accepted] == [1]


def test_the_stream_limit_both_ways() -> None:
    bench = Bench(limits=Limits(max_streams=2))
    bench.accept(1)
    bench.session.open()
    assert bench.session.open() is None
    bench.sent()
    bench.receive(pack(0, DATA, SYN, 3, 4), b"lost")
    assert bench.brief() == [(WINDOW_UPDATE, RST, 3, 0)]
    assert not bench.accepted
    bench.receive(pack(0, WINDOW_UPDATE, RST, 1, 0))
    bench.accept(5)


# Endings.


def test_frames_for_unknown_streams_are_drained_and_not_answered() -> None:
    bench = Bench()
    _, end = bench.accept(1)
    bench.receive(
        pack(0, DATA, 0, 9, 3), b"abc", pack(0, DATA, FIN, 9, 2), b"de",
        pack(0, WINDOW_UPDATE, 0, 9, 7), pack(0, WINDOW_UPDATE, RST, 9, 0),
        pack(0, DATA, 0, 1, 2), b"ok",
    )  # fmt: skip
    assert end.received == b"ok"
    assert bench.brief() == []


def test_data_after_a_reset_of_ours_is_dropped() -> None:
    bench = Bench()
    stream, end = bench.accept(1)
    stream.abort(Ending.CANCELLED)
    assert bench.explained == [(1, Ending.CANCELLED)]
    assert bench.brief() == [(WINDOW_UPDATE, RST, 1, 0)]
    bench.receive(pack(0, DATA, 0, 1, 4), b"late", pack(0, DATA, FIN, 1, 0))
    assert end.received == b"" and end.eofs == 0
    assert bench.brief() == []


def test_the_reason_of_a_reset_is_the_one_announced() -> None:
    bench = Bench()
    _, end = bench.accept(1)
    _, other = bench.accept(3)
    bench.session.reasons[1] = Ending.STALLED
    bench.receive(pack(0, WINDOW_UPDATE, RST, 1, 0), pack(0, WINDOW_UPDATE, RST, 3, 0))
    assert (end.aborted, other.aborted) == (Ending.STALLED, Ending.RESET)
    assert not bench.session.reasons


def test_half_closes_both_ways_finish_cleanly() -> None:
    bench = Bench()
    stream, end = bench.accept(1)
    bench.receive(pack(0, DATA, FIN, 1, 2), b"hi")
    assert (bytes(end.received), end.eofs, stream.half_closed) == (b"hi", 1, True)
    end.feed(b"reply")
    end.feed_eof()
    assert bench.brief() == [(DATA, Flags.NONE, 1, 5), (DATA, FIN, 1, 0)]
    assert stream.ending is end.ending is Ending.CLEAN
    assert not bench.session.streams


def test_fin_is_sent_once_and_after_what_waits() -> None:
    bench = Bench()
    stream, end = bench.accept(1)
    end.feed(b"x" * (MAX_FRAME + 1))
    end.feed_eof()
    stream.write_eof()
    assert stream.write(b"too late") is True
    stream.write_eof()
    sent = bench.brief()
    assert [length for *_, length in sent] == [MAX_FRAME, 1, 0]
    assert [flags for _, flags, *_ in sent] == [Flags.NONE, Flags.NONE, FIN]


def test_a_second_half_close_says_nothing() -> None:
    bench = Bench()
    stream, _ = bench.accept(1)
    stream.write_eof()
    stream.write_eof()
    assert stream.write(b"too late") is True
    assert bench.brief() == [(DATA, FIN, 1, 0)]


def test_loss_resets_every_stream_and_leaves_nothing() -> None:
    bench = Bench()
    ends = [bench.accept(stream_id)[1] for stream_id in (1, 3, 5)]
    ends[0].fill()
    bench.receive(pack(0, DATA, 0, 1, 4), b"held")
    assert bench.session.held == 4
    bench.session.lost(Ending.LINK_LOST)
    bench.session.lost(Ending.CLEAN)
    assert [end.aborted for end in ends] == [Ending.LINK_LOST] * 3
    assert bench.session.closed is Ending.LINK_LOST
    assert (bench.session.held, bench.session.streams) == (0, {})
    assert bench.session.open() is None
    ends[0].make_room()
    bench.session.resume()
    assert bench.carrier.take() == b""


# Go-away.


def test_our_go_away_is_said_once_and_refuses_streams() -> None:
    bench = Bench()
    _, old = bench.accept(1)
    bench.session.go_away()
    bench.session.go_away()
    assert bench.brief() == [(GO_AWAY, Flags.NONE, 0, 0)]
    bench.receive(pack(0, WINDOW_UPDATE, SYN, 3, 0), pack(0, DATA, 0, 1, 2), b"ok")
    assert bench.brief() == [(WINDOW_UPDATE, RST, 3, 0)]
    assert old.received == b"ok"


def test_an_error_is_told_even_while_draining() -> None:
    bench = Bench()
    bench.session.go_away()
    bench.session.go_away(GoAwayCode.PROTOCOL_ERROR)
    assert [length for *_, length in bench.brief()] == [0, 1]


def test_their_go_away_stops_opening_only() -> None:
    bench = Bench()
    _, old = bench.accept(1)
    bench.receive(pack(0, GO_AWAY, 0, 0, 0))
    assert bench.session.remote_draining
    assert bench.session.open() is None
    bench.accept(3)
    assert old.ending is None


# Liveness.


def test_a_ping_is_answered_with_its_value() -> None:
    bench = Bench()
    bench.receive(pack(0, PING, SYN, 0, 0xFFFFFFFF))
    assert bench.brief() == [(PING, ACK, 0, 0xFFFFFFFF)]


def test_our_ping_measures_the_round_trip() -> None:
    bench = Bench()
    bench.session.ping()
    bench.session.ping()  # one at a time
    [(_, flags, _, value)] = bench.brief()
    assert flags == SYN
    bench.clock.advance(0.25)
    bench.receive(pack(0, PING, ACK, 0, value + 1))
    assert bench.session.round_trip_s == 0.0
    bench.receive(pack(0, PING, ACK, 0, value))
    assert bench.session.round_trip_s == 0.25
    bench.session.ping()
    assert len(bench.brief()) == 1


def test_tick_pings_and_then_says_dead() -> None:
    bench = Bench()
    bench.clock.advance(9.9)
    assert bench.session.tick() and bench.brief() == []
    bench.clock.advance(0.1)
    assert bench.session.tick()
    assert [kind for kind, *_ in bench.brief()] == [PING]
    bench.clock.advance(10.0)
    assert bench.session.tick()
    bench.clock.advance(0.1)
    assert not bench.session.tick()
    bench.session.heard()
    assert bench.session.tick()


def test_a_half_closed_stream_that_is_idle_is_reset() -> None:
    bench = Bench()
    idle, idle_end = bench.accept(1)
    busy, busy_end = bench.accept(3)
    open_, _ = bench.accept(5)
    bench.receive(pack(0, DATA, FIN, 1, 0), pack(0, DATA, FIN, 3, 0))
    for _ in range(302):
        bench.clock.advance(1.0)
        bench.session.heard()
        busy_end.feed(b".")
        assert bench.session.tick()
    assert idle.ending is idle_end.aborted is Ending.TIMED_OUT
    assert busy.ending is open_.ending is None
    assert (WINDOW_UPDATE, RST, 1, 0) in bench.brief()


def test_a_peer_that_never_reads_but_keeps_asking() -> None:
    limits = Limits(max_waiting_control_bytes=1200)
    bench = Bench(limits=limits)
    bench.carrier.room_bytes = 0
    bench.receive(pack(0, PING, SYN, 0, 1))
    bench.carrier.flush()  # the carrier is full now
    ping = pack(0, PING, SYN, 0, 2)
    for _ in range(100):
        bench.receive(ping)
    bench.carrier.take()  # it read after all: the count starts again
    for _ in range(101):
        bench.receive(ping)
    with pytest.raises(ProtocolError, match="does not read"):
        bench.receive(ping)
    assert len(b"".join(map(bytes, bench.session._out))) <= 1200 + HEADER_BYTES


# Order.


def test_control_overtakes_data_when_the_carrier_is_full() -> None:
    bench = Bench()
    bench.carrier.room_bytes = MAX_FRAME
    bulk, bulk_end = bench.accept(1)
    for _ in range(2):
        bulk_end.feed(b"x" * MAX_FRAME)
    bench.carrier.flush()
    assert bench.carrier.full and bulk.backlog_bytes == 0
    bulk_end.feed(b"y" * 50_000)
    bench.receive(pack(0, PING, SYN, 0, 5))
    bench.carrier.take()
    sent = bench.brief()
    assert [kind for kind, *_ in sent] == [PING, DATA]


def test_streams_take_turns_of_one_frame() -> None:
    link = MemoryLink(room_bytes=0)
    bulk, small = MemoryEnd(), MemoryEnd()
    bulk_stream, small_stream = link.client.open(), link.client.open()
    assert bulk_stream and small_stream
    join(bulk_stream, bulk)
    join(small_stream, small)
    link.flush()  # the SYNs fill the carrier, and everything after them waits
    bulk.feed(b"b" * (3 * MAX_FRAME))
    small.feed(b"s")
    frames = link.client_out.frames()
    sizes = [(f.header.stream_id, len(f.payload)) for f in frames if f.type == DATA]
    assert sizes == [(1, MAX_FRAME), (3, 1), (1, MAX_FRAME), (1, MAX_FRAME)]


def test_a_small_write_goes_out_at_once_when_nothing_waits() -> None:
    bench = Bench()
    _, end = bench.accept(1)
    end.feed(b"now")
    assert bench.carrier.woken
    bench.session.flush()
    assert bench.carrier.take() == pack(0, DATA, 0, 1, 3) + b"now"


# Callbacks that close.


def test_abort_from_inside_write() -> None:
    bench = Bench()
    stream, end = bench.accept(1)
    end.fill()
    end.on_write = lambda data: stream.abort(Ending.CANCELLED)
    bench.receive(pack(0, DATA, 0, 1, 2), b"ab", pack(0, DATA, 0, 1, 2), b"cd")
    assert end.received == b"ab"
    assert (bench.session.held, bench.session.streams) == (0, {})
    assert bench.brief() == [(WINDOW_UPDATE, RST, 1, 0)]


def test_abort_in_the_middle_of_a_frame_that_comes_in_pieces() -> None:
    bench = Bench()
    stream, end = bench.accept(1)
    end.on_write = lambda data: stream.abort(Ending.CANCELLED)
    frame = pack(0, DATA, FIN, 1, 6) + b"abcdef" + pack(0, PING, SYN, 0, 1)
    for byte in frame:
        bench.receive(bytes([byte]))
    assert (bytes(end.received), end.eofs) == (b"a", 0)
    assert [kind for kind, *_ in bench.brief()] == [WINDOW_UPDATE, PING]


def test_loss_of_the_session_from_inside_write() -> None:
    bench = Bench()
    _, end = bench.accept(1)
    end.on_write = lambda data: bench.session.lost(Ending.ADMIN)
    bench.receive(
        pack(0, DATA, 0, 1, 2), b"ab",
        pack(0, WINDOW_UPDATE, SYN, 3, 0), pack(0, DATA, 0, 1, 2), b"cd",
    )  # fmt: skip
    assert (bytes(end.received), end.aborted) == (b"ab", Ending.ADMIN)
    assert (bench.accepted, bench.session.streams) == ([], {})


def test_aborting_others_while_the_session_is_lost() -> None:
    bench = Bench()
    first, first_end = bench.accept(1)
    second, second_end = bench.accept(3)
    first_end.on_done = lambda end, ending: second.abort(Ending.CANCELLED)
    bench.session.lost(Ending.LINK_LOST)
    assert first.ending is Ending.LINK_LOST
    assert second.ending is Ending.CANCELLED
    assert second_end.aborted is None  # whoever aborts a stream tells its peer
    assert not bench.session.streams


def test_on_stream_may_refuse_at_once() -> None:
    bench = Bench()
    bench.session.on_stream = lambda stream: stream.abort(Ending.CANCELLED)
    bench.receive(pack(0, DATA, SYN, 1, 5), b"hello")
    assert bench.brief() == [(WINDOW_UPDATE, ACK, 1, 0), (WINDOW_UPDATE, RST, 1, 0)]


def test_repr() -> None:
    bench = Bench()
    bench.accept(1)
    assert repr(bench.session) == "<Session server, 1 streams, 0 held>"


# Floods: what costs a peer nothing.

FLOODS = {
    "pings": lambda number: pack(0, PING, SYN, 0, number),
    "empty frames": lambda number: pack(0, DATA, 0, 1, 0),
    "streams reset before their answer": lambda number: (
        pack(0, WINDOW_UPDATE, SYN, 2 * number + 3, 0)
        + pack(0, WINDOW_UPDATE, RST, 2 * number + 3, 0)
    ),
    "refused streams": lambda number: pack(0, WINDOW_UPDATE, SYN, 2 * number + 3, 0),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_so_many_at_once_and_so_many_in_a_second(kind: str) -> None:
    refused = kind == "refused streams"
    bench = Bench(limits=Limits(max_streams=1) if refused else None)
    bench.receive(OPEN)
    send = FLOODS[kind]
    for number in range(BURST):
        bench.receive(send(number))
        bench.brief()
    bench.clock.advance(1.0)
    for number in range(BURST, BURST + PER_SECOND):
        bench.receive(send(number))
        bench.brief()
    with pytest.raises(ProtocolError, match=f"too many {kind}"):
        bench.receive(send(BURST + PER_SECOND))


def test_resets_of_answered_streams_are_no_flood() -> None:
    bench = Bench()
    for number in range(BURST + 100):
        stream_id = 2 * number + 1
        bench.receive(pack(0, WINDOW_UPDATE, SYN, stream_id, 0))
        bench.accepted[-1].write(b"answered")
        bench.receive(pack(0, WINDOW_UPDATE, RST, stream_id, 0))
        bench.brief()
    assert not bench.session.streams


def test_an_empty_frame_is_no_write() -> None:
    bench = Bench()
    bench.receive(OPEN)
    end = MemoryEnd()
    written: list[bytes] = []
    end.on_write = written.append
    join(bench.accepted[0], end)
    bench.receive(pack(0, DATA, 0, 1, 0) + pack(0, DATA, 0, 1, 1) + b"x")
    assert written == [b"x"]
