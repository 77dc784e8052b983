"""Properties of classes of traffic: no class starves, whatever the others do; nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.testing.carriers import take_frames
from isthmus.tunnel.end import join
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.tunnel.traffic_classes import QUANTA, TURN_BYTES, ClassTurns
from isthmus.values import TrafficClass
from isthmus.wire.yamux import WINDOW_UPDATE, pack

CLASSES = st.sampled_from(list(TrafficClass))
SIZES = st.integers(1, TURN_BYTES)
LONG = st.integers(4096, TURN_BYTES)
#: What all may send while one waits for its turn: the rest of a round, and its own turn in the
#: next, each with a turn that was longer than what was left.
MOST_BEFORE = 2 * (sum(QUANTA) + len(QUANTA) * TURN_BYTES)


@dataclass
class Somebody:
    """Waits for a turn; ``before`` counts what others sent meanwhile."""

    traffic: TrafficClass
    turns_left: int
    before: int = field(default=0)


@given(st.lists(st.tuples(CLASSES, st.integers(1, 40), SIZES), min_size=1, max_size=12), st.data())
def test_whoever_is_first_of_its_class_is_served_soon(
    arrivals: list[tuple[TrafficClass, int, int]], data: st.DataObject
) -> None:
    """They come at any time, each for some turns, with turns of any length."""
    turns: ClassTurns[Somebody] = ClassTurns()
    coming = [(Somebody(traffic, number), size) for traffic, number, size in arrivals]
    sizes: dict[int, int] = {}
    waits: dict[TrafficClass, int] = {}
    while coming or len(turns):
        while coming and (not len(turns) or data.draw(st.booleans())):
            who, size = coming.pop()
            sizes[id(who)] = size
            turns.add(who)
            waits.setdefault(who.traffic, 0)
        who = turns.take()
        size = sizes[id(who)]
        turns.sent(who.traffic, size)
        who.turns_left -= 1
        if who.turns_left:
            turns.add(who)
        for traffic in waits:
            waits[traffic] += size
        queue = turns._queues[who.traffic.rank]
        del waits[who.traffic]
        if queue:
            waits[who.traffic] = 0
        assert all(waited <= MOST_BEFORE for waited in waits.values())


@given(st.lists(st.lists(LONG, min_size=1, max_size=5), min_size=3, max_size=3))
def test_each_class_has_its_share_of_a_link_that_is_always_full(sizes: list[list[int]]) -> None:
    """Whatever the lengths of their turns are: shares are of bytes, not of turns."""
    turns: ClassTurns[Somebody] = ClassTurns()
    for it in TrafficClass:
        turns.add(Somebody(it, 0))
    sent = dict.fromkeys(TrafficClass, 0)
    while sum(sent.values()) < 10 * sum(QUANTA):
        who = turns.take()
        lengths = sizes[who.traffic.rank]
        size = lengths[who.turns_left % len(lengths)]
        who.turns_left += 1
        turns.sent(who.traffic, size)
        turns.add(who)
        sent[who.traffic] += size
    rounds = sum(sent.values()) / sum(QUANTA)
    for it in TrafficClass:
        quantum = QUANTA[it.rank]
        assert abs(sent[it] - rounds * quantum) <= quantum + 2 * TURN_BYTES


class Source(MemoryEnd):
    """The client of one stream: has everything to send at once, and counts what went."""

    def __init__(self, stream: Stream, pieces: list[bytes]) -> None:
        super().__init__()
        self.stream = stream
        self.all = b"".join(pieces)
        self.came = bytearray()
        join(stream, self)
        for piece in pieces:
            self.feed(piece)


PIECES = st.lists(st.integers(1, 40_000).map(lambda size: bytes(size)), min_size=1, max_size=12)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(CLASSES, PIECES), min_size=1, max_size=8),
    st.integers(0, 200_000),
    st.lists(st.integers(1, 150_000), min_size=1, max_size=10),
)
def test_a_session_serves_every_stream(
    wanted: list[tuple[TrafficClass, list[bytes]]], room: int, reads: list[int]
) -> None:
    """Over a carrier of any size, read in any pieces: all of every stream, its class in turn."""
    carrier = MemoryCarrier(room_bytes=room)
    session = carrier.session = Session(
        carrier, client=True, clock=ManualClock(), on_stream=lambda stream: None
    )
    sources: dict[int, Source] = {}
    for traffic, pieces in wanted:
        stream = session.open(traffic=traffic)
        assert stream is not None
        sources[stream.id] = Source(stream, pieces)
    before = dict.fromkeys(TrafficClass, 0)
    buffer, number = bytearray(), 0
    while True:
        carrier.flush()
        chunk = carrier.take(reads[number % len(reads)])
        number += 1
        if not chunk and not carrier.woken:
            break
        buffer += chunk
        for frame in take_frames(buffer):
            if frame.payload:
                _came(session, sources, frame.header.stream_id, frame.payload, before)
    assert all(source.came == source.all for source in sources.values())
    assert not session.unsent


def _came(
    session: Session,
    sources: dict[int, Source],
    stream_id: int,
    payload: bytes,
    before: dict[TrafficClass, int],
) -> None:
    source = sources[stream_id]
    source.came += payload
    assert len(payload) <= TURN_BYTES
    waiting = {
        it.stream.traffic for it in sources.values() if it.came != it.all and it is not source
    }
    for traffic in TrafficClass:
        if traffic in waiting and traffic is not source.stream.traffic:
            before[traffic] += len(payload)
        else:
            before[traffic] = 0
        # What a batch took at once, while there was room for it, is besides.
        assert before[traffic] <= MOST_BEFORE + session.limits.batch_bytes
    session.receive(memoryview(pack(0, WINDOW_UPDATE, 0, stream_id, len(payload))))
