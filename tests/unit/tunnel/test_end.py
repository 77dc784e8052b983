"""join and what comes before it, without any socket."""

from __future__ import annotations

import pytest

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import EARLY_BYTES, Discard, Early, End, Ending, join


def test_join_makes_peers_and_starts_both_in_order() -> None:
    a, b = MemoryEnd(), MemoryEnd()
    a.feed(b"from a")
    b.feed(b"from b")
    join(a, b)
    assert a.peer is b
    assert b.peer is a
    assert (bytes(b.received), bytes(a.received)) == (b"from a", b"from b")
    a.feed(b", more")
    assert bytes(b.received) == b"from a, more"


def test_early_says_full_at_its_bound() -> None:
    early = Early(10)
    assert early.write(b"123456789") is True
    assert early.write(b"0") is False
    assert early.write(b"!") is False
    assert bytes(early.buffer) == b"1234567890!"
    assert Early().limit == EARLY_BYTES


def test_early_bytes_come_in_one_piece_and_before_the_end_of_file() -> None:
    early, sink = Early(), MemoryEnd()
    pieces: list[bytes] = []
    sink.on_write = pieces.append
    early.write(b"one ")
    early.write(b"two")
    early.write_eof()
    assert early.pass_on(sink) is True
    assert pieces == [b"one two"]
    assert sink.eofs == 1
    assert not early.buffer


def test_pass_on_says_whether_the_peer_is_full() -> None:
    early, sink = Early(), MemoryEnd()
    sink.fill()
    early.write(b"x")
    assert early.pass_on(sink) is False
    assert Early().pass_on(sink) is True


def test_an_early_abort_is_all_that_is_passed_on() -> None:
    early, sink = Early(), MemoryEnd()
    early.write(b"half a message")
    early.write_eof()
    early.abort(Ending.LINK_LOST)
    early.pass_on(sink)
    assert sink.ending is Ending.LINK_LOST
    assert not sink.received
    assert not sink.eofs


def test_a_full_peer_pauses_the_end_at_start_and_room_resumes_it() -> None:
    a, b = MemoryEnd(), MemoryEnd()
    a.feed(b"early")
    b.fill()
    join(a, b)
    assert a.paused
    a.feed(b" late")
    assert bytes(b.received) == b"early"
    b.make_room()
    assert bytes(b.received) == b"early late"


def test_start_is_once() -> None:
    a, b = MemoryEnd(), MemoryEnd()
    a.feed(b"early")
    join(a, b)
    a.start()
    a.start()
    assert bytes(b.received) == b"early"


def test_no_cycle_stays_between_an_end_and_its_early_keeper() -> None:
    early = Early()
    a, b = MemoryEnd(early=early), MemoryEnd()
    assert early.peer is a
    join(a, b)
    assert early.peer is not a


def test_a_handshake_reader_takes_its_part_and_the_rest_is_passed_on() -> None:
    class Head(Early):
        def write(self, data: bytes) -> bool:
            super().write(data)
            del self.buffer[:4]
            join(self.peer, sink)
            return True

    sink = MemoryEnd()
    a = MemoryEnd(early=Head())
    a.feed(b"HEADbody")
    a.feed(b", tail")
    assert bytes(sink.received) == b"body, tail"


def test_join_again_moves_an_end_to_another_peer() -> None:
    a, b, c = MemoryEnd(), MemoryEnd(), MemoryEnd()
    join(a, b)
    a.feed(b"b's")
    join(a, c)
    a.feed(b"c's")
    assert (bytes(b.received), bytes(c.received)) == (b"b's", b"c's")


def test_discard_drops_bytes_and_never_fills() -> None:
    sink = Discard()
    assert all(sink.write(bytes(EARLY_BYTES)) for _ in range(3))
    assert not sink.buffer
    sink.write_eof()
    sink.abort(Ending.RESET)
    for call in (sink.start, sink.pause_reading, sink.resume_reading):
        call()


@pytest.mark.parametrize("ending", list(Ending))
def test_every_ending_reads_as_a_phrase(ending: Ending) -> None:
    assert ending.value == ending.value.strip().lower()


def test_a_report_is_made_once() -> None:
    reports: list[tuple[End, Ending]] = []
    a, b = MemoryEnd(), MemoryEnd()
    a.on_done = b.on_done = lambda end, ending: reports.append((end, ending))
    join(a, b)
    a.feed_eof()
    assert reports == []
    b.feed_eof()
    a.abort(Ending.RESET)
    b.abort(Ending.RESET)
    assert {id(end) for end, _ in reports} == {id(a), id(b)}
    assert [ending for _, ending in reports] == [Ending.CLEAN] * 2
