"""A mux session: any bytes in any cut, towards sinks that do anything.

Only ProtocolError; the same deliveries, error and answers for every cut; streams, held bytes and
answers within their bounds; and nothing left of it when it is lost.
"""

from cutting import cut, knobs, same, whole_and_cut
from sinks import sink

from isthmus.errors import ProtocolError
from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.wire.yamux import HEADER_BYTES

STREAMS, BUDGET, CONTROL = 8, 512 * 1024, 480


class Side:
    """A session and whatever is behind its streams."""

    def __init__(self, role: int, behaviour: int, limits: Limits, room: int | None) -> None:
        self.ends: dict[int, MemoryEnd] = {}
        self.behaviour = behaviour
        self.carrier = MemoryCarrier(room_bytes=room)
        self.session = self.carrier.session = Session(
            self.carrier, client=bool(role & 1), clock=ManualClock(), on_stream=self.accept,
            limits=limits,
        )  # fmt: skip
        for _ in range(role >> 1 & 3):
            stream = self.session.open(first=b"first")
            assert stream is not None
            self.accept(stream)

    def accept(self, stream: Stream) -> None:
        """Join it to a sink."""
        end = self.ends[stream.id] = sink(self.behaviour)
        join(stream, end)

    def outcome(self, pieces: list[bytes]) -> tuple[object, ...]:
        """Receive, and tell all that came of it."""
        error = ""
        try:
            for piece in pieces:
                self.session.receive(memoryview(piece))
        except ProtocolError as exc:
            error = str(exc)
        self.session.flush()
        ends = {id_: (bytes(e.received), e.eofs, e.aborted) for id_, e in self.ends.items()}
        return error, ends, self.carrier.take()


def hostile(role: int, behaviour: int, pieces: list[bytes]) -> None:
    """With small bounds, a carrier that is full and a batch after every read."""
    limits = Limits(
        max_streams=STREAMS, max_waiting_control_bytes=CONTROL,
        growth_pool_bytes=4096, batch_bytes=1024,
    )  # fmt: skip
    side = Side(role, behaviour, limits, 0 if role & 8 else None)
    session = side.session
    session.first_update_bytes = 64
    budget = Budget(BUDGET)
    account = session.account = budget.account("peer")
    for stream in list(session.streams.values()):
        session.charge(stream, account.join())
    taken = 0
    try:
        for piece in pieces:
            session.receive(memoryview(piece))
            taken += len(piece)
            side.carrier.flush()
            assert len(session.streams) <= STREAMS
            assert session.held == sum(it.held for it in session.streams.values())
            waiting = sum(map(len, session._out))
            assert waiting <= CONTROL + 4096 + 2 * HEADER_BYTES * len(piece), "answers pile up"
    except ProtocolError:
        pass
    session.lost(Ending.PROTOCOL)
    assert not session.streams and not session.held and not session._half and not session._holders
    assert all(end.ending for end in side.ends.values())
    account.close()
    assert not budget.used_bytes and not budget.peers


def check(data: bytes) -> None:
    """One session for each cut, and one with small bounds."""
    (role, behaviour, *sizes), raw = knobs(data)
    pieces = whole_and_cut(raw, bytes(sizes))
    if not behaviour & 1:  # what full sinks hold is counted by the read
        same([Side(role, 0, Limits(), None).outcome(each) for each in pieces])
    hostile(role, behaviour, list(cut(raw, bytes(sizes))))
