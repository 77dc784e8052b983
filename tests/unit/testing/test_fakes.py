"""The fakes keep the contracts of what they stand for."""

from __future__ import annotations

import pytest

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd, MemoryLink, take_frames
from isthmus.tunnel.end import Ending, join
from isthmus.wire.yamux import DATA, PING, SYN, pack


def joined() -> tuple[MemoryEnd, MemoryEnd]:
    a, b = MemoryEnd(), MemoryEnd()
    join(a, b)
    return a, b


def test_a_clock_moves_by_hand_and_never_back() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert (clock(), repr(clock)) == (6.5, "<ManualClock 6.5>")
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_bytes_half_closes_and_the_report() -> None:
    a, b = joined()
    done: list[tuple[object, Ending]] = []
    a.on_done = b.on_done = lambda end, ending: done.append((end, ending))
    a.feed(b"to b")
    a.feed_eof()
    b.feed(b"to a")
    assert (bytes(b.received), b.eofs, bytes(a.received), a.eofs) == (b"to b", 1, b"to a", 0)
    assert done == []
    b.feed_eof()
    assert len(done) == 2 and (a, Ending.CLEAN) in done and (b, Ending.CLEAN) in done
    b.feed(b"ignored")
    assert a.received == b"to a"


def test_full_pauses_the_source_until_there_is_room() -> None:
    a, b = joined()
    b.fill()
    a.feed(b"one")
    a.feed(b"two")
    a.feed_eof()
    assert (bytes(b.received), b.eofs, a.waiting_bytes) == (b"one", 0, 3)
    b.make_room()
    assert (bytes(b.received), b.eofs, a.waiting_bytes) == (b"onetwo", 1, 0)


def test_a_resume_from_inside_write_is_not_lost() -> None:
    a, b = joined()
    b.fill()
    b.on_write = lambda data: b.make_room()
    a.feed(b"one")
    a.feed(b"two")
    assert b.received == b"onetwo"


def test_reset() -> None:
    a, b = joined()
    a.reset()
    assert (a.ending, a.aborted) == (Ending.RESET, None)
    assert (b.ending, b.aborted) == (Ending.RESET, Ending.RESET)
    b.abort(Ending.ADMIN)
    assert b.aborted is Ending.RESET
    assert repr(b) == "<MemoryEnd reset by peer, 0 received, 0 waiting>"


def test_a_carrier_is_full_above_its_room() -> None:
    carrier = MemoryCarrier(room_bytes=4)
    assert carrier.send(b"1234")
    assert not carrier.send(b"5")
    assert carrier.take(2) == b"12"
    assert (carrier.take(), carrier.most_bytes) == (b"345", 5)


def test_take_frames_leaves_the_beginning_of_one() -> None:
    buffer = bytearray(pack(0, PING, SYN, 0, 9) + pack(0, DATA, 0, 1, 3) + b"ab")
    frames = take_frames(buffer)
    assert [(frame.type, frame.payload) for frame in frames] == [(PING, b"")]
    buffer += b"c"
    assert [frame.payload for frame in take_frames(buffer)] == [b"abc"]
    assert not buffer


def test_a_link_that_never_rests_is_an_error() -> None:
    link = MemoryLink()
    link.client.open()
    with pytest.raises(RuntimeError, match="did not become idle"):
        link.run(max_rounds=1)
