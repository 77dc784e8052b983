"""Properties of links that survive: any cut at any byte, any number of times, and nothing is lost.

Two sessions with replaceable carriers. Connections are cut wherever they are, one side notices
before the other, resuming is cut again; every stream has exactly the bytes, half-closes and resets
that were sent, in their order, and what is kept stays within its bounds.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.end import Early, Ending, join
from isthmus.tunnel.limits import KIB, MIB, Limits
from isthmus.tunnel.replaceable import ReplaceableCarrier
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.values import URGENT

LIMITS = Limits(
    batch_bytes=10_000,
    first_kept_bytes=16 * KIB,
    most_kept_bytes=64 * KIB,
    acknowledge_every_bytes=4 * KIB,
)
#: Two batches more may be kept than the bound: the one that reaches it and the one that is made at
#: that moment; and control frames.
MOST_BATCH = 2 * 10_000 + 4_000
PATTERN = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(65_521)) * 5


class Offsets(Early):
    """The peer of the control stream: eight bytes each, an acknowledgement."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side

    def write(self, data: bytes) -> bool:
        self.buffer += data
        while len(self.buffer) >= 8:
            self.side.session.quiet_bytes += 20  # with the header of its frame
            offset = int.from_bytes(self.buffer[:8], "big")
            del self.buffer[:8]
            self.side.carrier.acknowledge(offset)
        return True


class Tunnel:
    """One side of a tunnel: an end, and what it sent."""

    def __init__(self) -> None:
        self.end = MemoryEnd()
        self.sent = bytearray()
        self.said_eof = False
        self.did_reset = False


class Side:
    """A session, its replaceable carrier and the connection of the moment."""

    def __init__(self, machine: Cuts, *, client: bool, budget: Budget, room: int | None) -> None:
        self.room = room
        self.account = budget.account("peer")
        self.connection = MemoryCarrier(room_bytes=room)
        self.session = Session(
            self.connection, client=client, clock=machine.clock, on_stream=self.accept,
            limits=LIMITS,
        )  # fmt: skip
        self.machine = machine
        self.connection.session = self.session
        self.session.round_trip_s = 1.0  # or no more would be kept than at first
        self.carrier = ReplaceableCarrier(self.connection, self.session, self.account)
        self.session.acknowledged_low = self.carrier.acknowledge_low
        self.session.tell_received = self.tell
        self.session.tell_received_at = LIMITS.acknowledge_every_bytes
        self.told = self.epoch = 0

    def control(self, stream: Stream) -> None:
        stream.traffic = URGENT
        self.session.control = stream
        reader = Offsets(self)
        reader.peer = stream
        stream.peer = reader
        stream.start()

    def accept(self, stream: Stream) -> None:
        if self.session.control is None:
            self.control(stream)
        else:
            join(stream, self.machine.waiting.pop(stream.id).end)

    def tell(self) -> None:
        """Acknowledge what came."""
        session = self.session
        if session.control is None:
            return
        self.told = session.received_bytes
        session.quiet_bytes = 0
        session.tell_received_at = self.told + LIMITS.acknowledge_every_bytes
        session.control.write_now(self.told.to_bytes(8, "big"))

    def tick(self) -> None:
        if not self.carrier.suspended:
            if self.session.received_bytes - self.told > self.session.quiet_bytes:
                self.tell()
            assert self.session.tick()


class Cuts(RuleBasedStateMachine):
    """Random traffic, and connections that are cut, replaced and cut again."""

    tunnels: list[tuple[Tunnel, Tunnel]]
    client_has: int | None = None

    @initialize(room=st.sampled_from([None, 0, 20_000]), rich=st.booleans())
    def couple(self, room: int | None, rich: bool) -> None:
        self.clock = ManualClock()
        self.tunnels = []
        self.waiting: dict[int, Tunnel] = {}
        self.budget = Budget(100 * MIB if rich else 200_000)
        self.client = Side(self, client=True, budget=self.budget, room=room)
        self.server = Side(self, client=False, budget=self.budget, room=room)
        self.epoch = 0
        control = self.client.session.open()
        assert control is not None
        self.client.control(control)
        self.run()

    # The wire.

    def flush(self) -> None:
        self.client.connection.flush()
        self.server.connection.flush()

    def carry(self, source: Side, sink: Side, size: int | None = None) -> int:
        """Bytes of one connection: they reach the other side if that still listens to it."""
        data = source.connection.take(size)
        receiver = sink.connection.session
        if data and receiver is not None and source.epoch == sink.epoch:
            receiver.heard()
            receiver.receive(memoryview(data))
        return len(data)

    def run(self) -> None:
        for _ in range(100_000):
            self.flush()
            moved = self.carry(self.client, self.server) + self.carry(self.server, self.client)
            sides = (self.client.connection, self.server.connection)
            if not moved and not any(it.woken and it.session is not None for it in sides):
                return
        raise AssertionError("the two never came to rest")

    def new_connection(self, side: Side, epoch: int, offset: int) -> None:
        side.connection = MemoryCarrier(room_bytes=side.room)
        side.epoch = epoch
        side.carrier.attach(side.connection, offset)

    # Rules.

    def open_sides(self) -> list[Tunnel]:
        return [side for pair in self.tunnels for side in pair if side.end.ending is None]

    @precondition(lambda self: len(self.tunnels) < 6)
    @rule(by_client=st.booleans())
    def open(self, by_client: bool) -> None:
        near, far = Tunnel(), Tunnel()
        stream = (self.client if by_client else self.server).session.open()
        assert stream is not None
        self.waiting[stream.id] = far
        join(stream, near.end)
        self.tunnels.append((near, far))

    @precondition(lambda self: self.open_sides())
    @rule(data=st.data(), size=st.sampled_from([1, 700, 65_536, 200_000]))
    def write(self, data: st.DataObject, size: int) -> None:
        side = data.draw(st.sampled_from(self.open_sides()))
        if not side.said_eof:
            block = PATTERN[len(side.sent) % 65_521 :][:size]
            side.sent += block
            side.end.feed(block)

    @precondition(lambda self: self.open_sides())
    @rule(data=st.data(), act=st.sampled_from(["eof", "reset", "fill", "room", "room"]))
    def act(self, data: st.DataObject, act: str) -> None:
        side = data.draw(st.sampled_from(self.open_sides()))
        if act == "eof":
            side.said_eof = True
            side.end.feed_eof()
        elif act == "reset":
            side.did_reset = True
            side.end.reset()
        elif act == "fill":
            side.end.fill()
        else:
            side.end.make_room()

    @rule()
    def end_batch(self) -> None:
        self.flush()

    @rule(to_server=st.booleans(), size=st.sampled_from([None, 1, 11, 13, 5_000, 50_000]))
    def deliver(self, to_server: bool, size: int | None) -> None:
        pair = (self.client, self.server) if to_server else (self.server, self.client)
        self.carry(*pair, size)

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.client.tick()
        self.server.tick()
        self.run()

    @rule(client=st.booleans(), hours=st.booleans())
    def cut(self, client: bool, hours: bool) -> None:
        """One side notices that the connection is gone; what is under way never arrives."""
        (self.client if client else self.server).carrier.detach()
        self.epoch += 1
        if hours:  # both stand still for as long: no stream is reset for being quiet
            self.client.carrier.detach()
            self.server.carrier.detach()
            self.clock.advance(3600)

    @rule(late=st.booleans())
    def ask(self, late: bool) -> None:
        """The client says on a new connection how far it got, also while the old one works.

        What the old one brings ``late`` must not reach the session any more.
        """
        self.epoch += 1
        self.client_has = self.client.carrier.detach()
        if late:
            self.flush()
            self.carry(self.server, self.client)

    @precondition(lambda self: self.client_has is not None)
    @rule(arrives=st.booleans(), early=st.booleans())
    def answer(self, arrives: bool, early: bool) -> None:
        """The server goes on by the new connection; its answer may be lost, and what it sends."""
        assert self.client_has is not None
        client_has, self.client_has = self.client_has, None
        server_has = self.server.carrier.detach()
        self.new_connection(self.server, self.epoch, client_has)
        if early:
            self.flush()
        if arrives:
            self.new_connection(self.client, self.epoch, server_has)

    @rule()
    def settle(self) -> None:
        self.run()

    # What holds.

    @invariant()
    def bytes_arrive_in_order_and_ends_once(self) -> None:
        for near, far in getattr(self, "tunnels", []):
            for source, sink in ((near, far), (far, near)):
                assert source.sent.startswith(sink.end.received)
                assert sink.end.eofs <= 1
                if sink.end.eofs:
                    assert source.said_eof
                    assert sink.end.received == source.sent
                if sink.end.aborted is not None:
                    assert source.did_reset and sink.end.aborted is Ending.RESET

    @invariant()
    def what_is_kept_is_bounded_and_charged(self) -> None:
        if not hasattr(self, "tunnels"):
            return
        for side in (self.client, self.server):
            carrier = side.carrier
            assert carrier.kept_bytes == sum(len(it) + 48 for it in carrier._pieces)
            assert carrier.sent - carrier._start == sum(map(len, carrier._pieces))
            assert carrier._start <= carrier.acknowledged <= carrier.sent
            assert carrier.kept_bytes <= carrier.limit_bytes + MOST_BATCH
            assert carrier.limit_bytes <= LIMITS.most_kept_bytes
            missing = carrier.kept_bytes - carrier._charged_bytes
            assert -128 * KIB <= missing <= 2 * KIB
        charged = self.client.carrier._charged_bytes + self.server.carrier._charged_bytes
        assert self.client.account.used_bytes == charged

    def teardown(self) -> None:
        if not hasattr(self, "tunnels"):
            return
        self.ask(late=False)
        self.answer(arrives=True, early=False)
        for side in self.open_sides():
            side.end.make_room()
        self.run()
        for side in self.open_sides():
            side.end.make_room()
            side.said_eof = True
            side.end.feed_eof()
        for _ in range(3):
            self.wait(1.0)
        self.bytes_arrive_in_order_and_ends_once()
        for near, far in self.tunnels:
            for side, other in ((near, far), (far, near)):
                assert side.end.ending is not None
                if side.end.ending is Ending.CLEAN:
                    assert (side.end.eofs, side.end.received) == (1, other.sent)
        for side in (self.client, self.server):
            assert list(side.session.streams) == [1]
            assert not side.session.holds_back
            assert side.carrier.kept_bytes <= 2 * KIB, "an idle link keeps next to nothing"
            side.carrier.close()
        assert self.client.account.used_bytes == 0


Cuts.TestCase.settings = settings(stateful_step_count=40)
TestCuts = Cuts.TestCase
