"""Classes of traffic: who is served before whom on a full link, and that nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.tunnel.traffic_classes import QUANTA, TURN_BYTES, ClassTurns
from isthmus.values import BULK, NORMAL, URGENT, TrafficClass

BULKS = 8
KIB = 1024


@dataclass
class Somebody:
    """Waits."""

    name: str
    traffic: TrafficClass = NORMAL


def order(turns: ClassTurns[Somebody], number: int, size: int = TURN_BYTES) -> list[str]:
    """Who comes in the next turns, each using all of it and coming back."""
    names = []
    for _ in range(number):
        who = turns.take()
        turns.sent(who.traffic, size)
        turns.add(who)
        names.append(who.name)
    return names


def test_the_words_and_their_order() -> None:
    assert [it.value for it in TrafficClass] == ["urgent", "normal", "bulk"]
    assert [it.rank for it in TrafficClass] == [0, 1, 2]
    assert [it.weight for it in TrafficClass] == [16, 4, 1]
    # A new round makes up for any turn that was longer than what was left.
    assert min(QUANTA) >= TURN_BYTES


@pytest.mark.parametrize("traffic", TrafficClass)
def test_one_class_takes_turns_as_ever(traffic: TrafficClass) -> None:
    turns: ClassTurns[Somebody] = ClassTurns()
    for name in "abc":
        turns.add(Somebody(name, traffic))
    assert "".join(order(turns, 30)) == "abc" * 10


def test_shares_of_a_full_link() -> None:
    turns: ClassTurns[Somebody] = ClassTurns()
    for it in reversed(TrafficClass):
        turns.add(Somebody(it.value, it))
    served = order(turns, 210)
    assert [served.count(it.value) for it in TrafficClass] == [160, 40, 10]
    assert served[:21] == ["urgent"] * 16 + ["normal"] * 4 + ["bulk"]


def test_who_comes_late_in_a_round_has_not_missed_it() -> None:
    turns: ClassTurns[Somebody] = ClassTurns()
    turns.add(Somebody("bulk", BULK))
    turns.add(Somebody("normal", NORMAL))
    assert order(turns, 3) == ["normal"] * 3
    turns.add(Somebody("urgent", URGENT))
    assert order(turns, 18) == ["urgent"] * 16 + ["normal", "bulk"]


def test_what_is_too_much_is_paid_back_and_what_is_unused_is_not_kept() -> None:
    turns: ClassTurns[Somebody] = ClassTurns()
    turns.add(Somebody("normal", NORMAL))
    turns.add(Somebody("bulk", BULK))
    # 48 KiB each: bulk has 64 KiB a round, so that it comes twice in the first, and once in each
    # third of the rounds that follow it pays for that.
    served = order(turns, 400, 48 * KIB)
    assert served.count("bulk") * 4 == pytest.approx(served.count("normal"), abs=8)
    alone: ClassTurns[Somebody] = ClassTurns()
    alone.add(Somebody("bulk", BULK))
    order(alone, 1000)
    alone.add(Somebody("urgent", URGENT))
    assert order(alone, 17).count("urgent") >= 16  # and not a thousand turns' worth
    assert "bulk" in order(alone, 17)


def test_nobody_waits() -> None:
    turns: ClassTurns[Somebody] = ClassTurns()
    with pytest.raises(IndexError):
        turns.take()
    turns.add(Somebody("a"))
    assert len(turns) == 1 and "normal 1" in repr(turns)
    turns.clear()
    assert not turns
    with pytest.raises(IndexError):
        turns.take()


# In a session.


class FullLink:
    """A session whose carrier is full of bulk, and one short answer that waits behind it."""

    def __init__(self, bulk: TrafficClass, answer: TrafficClass) -> None:
        self.carrier = MemoryCarrier(room_bytes=0)
        self.session = self.carrier.session = Session(
            self.carrier, client=True, clock=ManualClock(), on_stream=_nobody
        )
        self.streams = [self._open(bulk) for _ in range(BULKS)]
        self.answer, self.answer_end = self._open(answer)
        self.carrier.flush()  # the SYNs fill the carrier, and everything after them waits
        for _, end in self.streams:
            end.feed(b"b" * (4 * TURN_BYTES))
        self.answer_end.feed(b"answer")

    def _open(self, traffic: TrafficClass) -> tuple[Stream, MemoryEnd]:
        stream, end = self.session.open(traffic=traffic), MemoryEnd()
        assert stream is not None
        join(stream, end)
        return stream, end

    def turns(self) -> list[tuple[int, int]]:
        """Every turn in order: whose, and how long."""
        found = [(f.header.stream_id, len(f.payload)) for f in self.carrier.frames() if f.payload]
        assert sum(size for _, size in found) == BULKS * 4 * TURN_BYTES + 6
        return found

    def bytes_before_the_answer(self) -> int:
        turns = self.turns()
        return sum(size for _, size in turns[: [it for it, _ in turns].index(self.answer.id)])


def _nobody(stream: Stream) -> None:
    raise AssertionError("nobody opens streams here")


def test_an_answer_goes_before_bulk() -> None:
    before = {
        (bulk, answer): FullLink(bulk, answer).bytes_before_the_answer()
        for bulk, answer in ((NORMAL, NORMAL), (BULK, NORMAL), (NORMAL, URGENT), (BULK, URGENT))
    }
    for (bulk, answer), size in before.items():
        print(f"{answer.value} beside {BULKS} {bulk.value}: {size // KIB} KiB go before it")
    assert before[NORMAL, NORMAL] == BULKS * TURN_BYTES
    assert before[BULK, NORMAL] == before[NORMAL, URGENT] == before[BULK, URGENT] == 0


def test_a_batch_has_one_turn_of_bulk() -> None:
    link = FullLink(BULK, URGENT)
    link.carrier.take()
    sizes = []
    while size := len(link.carrier.sent):
        sizes.append(size)
        link.carrier.take()
    assert max(sizes) <= TURN_BYTES + 100


def test_bulk_that_goes_on_at_once_takes_no_more_than_its_turn() -> None:
    """The reader is resumed in the middle of a turn, and writes before that returns."""
    link = FullLink(NORMAL, BULK)
    for _ in range(12):  # each is read when the one before it has gone
        link.answer_end.feed(b"x" * (16 * KIB))
    bulk = normal = 0
    for frame in link.carrier.frames():
        if frame.header.stream_id == link.answer.id:
            bulk += len(frame.payload)
        else:
            normal += len(frame.payload)
        assert bulk <= normal / 4 + 2 * TURN_BYTES
    assert bulk == 12 * 16 * KIB + 6


def test_a_lost_session_has_no_turns() -> None:
    link = FullLink(BULK, URGENT)
    assert link.session.unsent
    link.session.lost(Ending.LINK_LOST)
    assert not link.session.unsent
