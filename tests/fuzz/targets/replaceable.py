"""Two sessions whose connection is cut and replaced, as the input says; every byte arrives once.

Each byte of the input is one step: bytes are written on a stream, some cross the connection, one
side loses it, the client says how far it got, the server answers, or the answer is lost.
"""

from __future__ import annotations

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.end import join
from isthmus.tunnel.limits import KIB, MIB, Limits
from isthmus.tunnel.replaceable import ReplaceableCarrier
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream

LIMITS = Limits(batch_bytes=4096, first_kept_bytes=512 * KIB, most_kept_bytes=512 * KIB)
MOST_STEPS = 400
PATTERN = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(65_521))


class Side:
    """A session and its connection of the moment."""

    def __init__(self, *, client: bool, budget: Budget, room: int | None) -> None:
        self.room = room
        self.epoch = 0
        self.end = MemoryEnd()
        self.fed = bytearray()
        self.connection = MemoryCarrier(room_bytes=room)
        self.session = self.connection.session = Session(
            self.connection, client=client, clock=ManualClock(), on_stream=self.accept,
            limits=LIMITS,
        )  # fmt: skip
        self.carrier = ReplaceableCarrier(self.connection, self.session, budget.account("peer"))
        self.session.acknowledged_low = self.carrier.acknowledge_low

    def accept(self, stream: Stream) -> None:
        """Join the only stream."""
        join(stream, self.end)

    def attach(self, epoch: int, offset: int) -> None:
        """Go on by a new connection."""
        self.epoch = epoch
        self.connection = MemoryCarrier(room_bytes=self.room)
        self.carrier.attach(self.connection, offset)

    def feed(self, size: int) -> None:
        """Write a piece."""
        piece = PATTERN[len(self.fed) % 60_000 :][:size]
        self.fed += piece
        self.end.feed(piece)


class Pair:
    """Both sides, and what is under way."""

    def __init__(self, room: int | None) -> None:
        self.budget = Budget(100 * MIB)
        self.client = Side(client=True, budget=self.budget, room=room)
        self.server = Side(client=False, budget=self.budget, room=room)
        self.epoch = 0
        self.client_has: int | None = None
        stream = self.client.session.open()
        assert stream is not None
        self.client.accept(stream)

    def carry(self, source: Side, sink: Side, size: int | None) -> int:
        """Carry bytes of one connection."""
        source.connection.flush()
        data = source.connection.take(size)
        receiver = sink.connection.session
        if data and receiver is not None and source.epoch == sink.epoch:
            receiver.heard()
            receiver.receive(memoryview(data))
        return len(data)

    def settle(self) -> None:
        """Carry everything."""
        for _ in range(10_000):
            moved = self.carry(self.client, self.server, None)
            moved += self.carry(self.server, self.client, None)
            if not moved:
                return
        raise AssertionError("the two never came to rest")

    def ask(self) -> None:
        """The client says how far it got."""
        self.epoch += 1
        self.client_has = self.client.carrier.detach()

    def answer(self, *, arrives: bool) -> None:
        """The server goes on, and the client too if it hears of it."""
        if self.client_has is None:
            return
        client_has, self.client_has = self.client_has, None
        server_has = self.server.carrier.detach()
        self.server.attach(self.epoch, client_has)
        if arrives:
            self.client.attach(self.epoch, server_has)

    def step(self, byte: int) -> None:
        """Do what one byte of the input says."""
        what, number = byte & 7, byte >> 3
        side, other = (self.client, self.server) if number & 1 else (self.server, self.client)
        if what <= 1:
            side.feed(1 + 37 * number)
        elif what <= 3:
            self.carry(side, other, 1 + 53 * number)
        elif what == 4:
            side.session.ping()
        elif what == 5:
            side.carrier.detach()
        elif what == 6:
            self.ask()
        else:
            self.answer(arrives=bool(number & 2))

    def check(self) -> None:
        """What arrived is the beginning of what was sent; what is kept is charged."""
        assert self.server.fed.startswith(self.client.end.received)
        assert self.client.fed.startswith(self.server.end.received)
        charged = sum(it.carrier._charged_bytes for it in (self.client, self.server))
        assert self.budget.used_bytes == charged


def check(data: bytes) -> None:
    """Follow the input, then let everything arrive."""
    pair = Pair(None if not data or data[0] & 1 else 100)
    for byte in data[1 : 1 + MOST_STEPS]:
        pair.step(byte)
        pair.check()
    pair.ask()
    pair.answer(arrives=True)
    pair.settle()
    assert pair.server.end.received == pair.client.fed
    assert pair.client.end.received == pair.server.fed
