"""Properties of a call that carries connections both ways: any order, any split of the bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from isthmus.testing import Http2Pair, ManualClock, MemoryEnd, Recorder
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.linked_end import FIRST_OF_SERVER, ConnectIds, LinkedEnd
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.packet_link import PacketLink
from isthmus.wire.http2 import Headers

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))


@dataclass
class Program:
    """One side: an owner that keeps what it is asked until the test answers."""

    link: PacketLink = field(init=False)
    asked_for: dict[int, str] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        assert random not in self.asked_for
        self.asked_for[random] = address

    def taken_back(self, random: int) -> None:
        self.taken.append(random)
        self.asked_for.pop(random, None)

    def told_to_drain(self) -> None:
        raise AssertionError("nobody drains")

    def call_over(self, text: str) -> None:
        raise AssertionError(text)

    def ease_later(self, delay_s: float) -> None:
        """No sink here is ever full."""

    def broke_rules(self, what: str) -> None:
        raise AssertionError(what)


class Connection:
    """One connection, and what was done to it."""

    def __init__(self, opener: Program, accepter: Program, random: int) -> None:
        self.random, self.accepter = random, accepter
        self.told: list[str | None] = []
        self.client, self.target = MemoryEnd(), MemoryEnd()
        self.sent = {"client": bytearray(), "target": bytearray()}
        self.ended: set[str] = set()  # who has half-closed
        self.cancelled = self.refused = self.was_reset = False
        self.far: LinkedEnd | None = None
        self.near = opener.link.dial(f"a:{random}", random, self._answered)

    def _answered(self, error: str | None) -> None:
        self.told.append(error)
        if error is None:
            join(self.near, self.client)

    @property
    def sides(self) -> dict[str, MemoryEnd]:
        open_ = {}
        if self.far is not None:
            open_["target"] = self.target
            if self.told == [None]:
                open_["client"] = self.client
        return open_

    def accept(self) -> None:
        if self.accepter.asked_for.pop(self.random, None) is not None:
            self.far = self.accepter.link.accept(self.random)
            join(self.far, self.target)

    def refuse(self) -> None:
        if self.accepter.asked_for.pop(self.random, None) is not None:
            self.refused = True
            self.accepter.link.refuse(self.random, "refused")

    def cancel(self) -> None:
        if not self.told and not self.cancelled:
            self.cancelled = True
            self.near.abort(Ending.CANCELLED)

    def send(self, who: str, size: int) -> None:
        side = self.sides.get(who)
        if side is not None and who not in self.ended and side.ending is None:
            data = bytes((self.random + at) % 251 for at in range(size))
            self.sent[who] += data
            side.feed(data)

    def end(self, who: str) -> None:
        side = self.sides.get(who)
        if side is not None and side.ending is None:
            self.ended.add(who)
            side.feed_eof()

    def reset(self, who: str) -> None:
        side = self.sides.get(who)
        if side is not None and side.ending is None:
            self.was_reset = True
            side.reset()

    def check(self) -> None:
        """All is over: what has to hold of it."""
        client, target = bytes(self.client.received), bytes(self.target.received)
        assert self.sent["client"].startswith(target)
        assert self.sent["target"].startswith(client)
        assert self.near.ending is not None
        if self.cancelled:
            assert self.told == [] and self.near.ending is Ending.CANCELLED
            assert self.far is None or self.far.ending is not None
        elif self.refused:
            assert self.told == ["refused"] and self.far is None
        elif self.was_reset:
            assert self.told == [None]
            assert self.client.eofs + self.target.eofs <= 1
            assert Ending.RESET in (self.client.ending, self.target.ending)
        else:
            assert (bytes(self.sent["client"]), bytes(self.sent["target"])) == (target, client)
            assert (self.client.eofs, self.target.eofs) == (1, 1)
            assert self.client.ending is self.target.ending is Ending.CLEAN


class World:
    """Two programs and a call between them; each opens its own connections."""

    def __init__(self) -> None:
        self.programs = {"server": Program(), "agent": Program()}
        self.pair = Http2Pair(clock=ManualClock(), on_request=self._request)
        stream = self.pair.client.open(Recorder())
        assert stream is not None
        stream.handler = self._link("agent", stream)
        stream.send_headers(REQUEST)
        self.pair.run()
        self.programs["server"].link.stream.send_headers(((b":status", b"200"),))
        self.connections: list[Connection] = []

    def _request(self, stream: Http2Stream, headers: Headers) -> PacketLink:
        return self._link("server", stream)

    def _link(self, name: str, stream: Http2Stream) -> PacketLink:
        program = self.programs[name]
        program.link = PacketLink(
            stream, program, agent=name == "agent", clock=self.pair.clock,
            counts=PacketCounts(), half_closes=True,
        )  # fmt: skip
        return program.link

    def open(self, by: str) -> None:
        """Both count from 1: the numbers of the two directions are no concern of each other."""
        to = "agent" if by == "server" else "server"
        opened = sum(it.accepter is self.programs[to] for it in self.connections)
        made = Connection(self.programs[by], self.programs[to], opened + 1)
        self.connections.append(made)

    def begin(self, openers: list[str], accepted: int) -> None:
        """Open some, and accept the first of them."""
        for by in openers:
            self.open(by)
        self.pair.run()
        for connection in self.connections[:accepted]:
            connection.accept()
        self.pair.run()

    def finish(self, piece_bytes: int | None) -> None:
        """Answer whatever waits, end whatever is open, and let everything arrive."""
        self.pair.run(piece_bytes=piece_bytes)
        for connection in self.connections:
            connection.accept()
        self.pair.run(piece_bytes=piece_bytes)
        for who in ("client", "target"):
            for connection in self.connections:
                connection.end(who)
            self.pair.run(piece_bytes=piece_bytes)


WHO = st.sampled_from(["client", "target"])
OPENERS = st.lists(st.sampled_from(["server", "agent"]), max_size=6)
PICK = st.integers(0, 7)
PIECES = st.sampled_from([1, 2, 7, 50, 1000, None])
ACTS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(["server", "agent"])),
    st.tuples(st.just("open"), st.sampled_from(["server", "agent"])),
    st.tuples(st.just("accept"), PICK),
    st.tuples(st.just("accept"), PICK),
    st.tuples(st.just("refuse"), PICK),
    st.tuples(st.just("cancel"), PICK),
    st.tuples(st.just("send"), PICK, WHO, st.integers(1, 300)),
    st.tuples(st.just("send"), PICK, WHO, st.sampled_from([1, 70_000])),
    st.tuples(st.just("end"), PICK, WHO),
    st.tuples(st.just("reset"), PICK, WHO),
    st.tuples(st.just("deliver"), st.booleans(), st.integers(1, 400)),
    st.tuples(st.just("run"), PIECES),
)


def act(world: World, name: str, *how: object) -> None:
    if name == "open":
        if len(world.connections) < 8:
            world.open(str(how[0]))
    elif name == "run":
        size = how[0]
        assert size is None or isinstance(size, int)
        world.pair.run(piece_bytes=size)
    elif name == "deliver":
        to_server, size = how
        assert isinstance(size, int)
        world.pair.flush()
        world.pair.deliver(to_server=bool(to_server), size=size)
    else:
        pick, *more = how
        assert isinstance(pick, int)
        if pick < len(world.connections):
            getattr(world.connections[pick], name)(*more)


@given(OPENERS, PICK, st.lists(ACTS, max_size=40), st.sampled_from([33, 1000, None]))
def test_connections_of_both_directions_keep_out_of_each_others_way(
    openers: list[str], accepted: int, acts: list[tuple[object, ...]], piece_bytes: int | None
) -> None:
    world = World()
    world.begin(openers, accepted)
    for name, *how in acts:
        act(world, str(name), *how)
    world.finish(piece_bytes)
    for connection in world.connections:
        connection.check()
    for name, program in world.programs.items():
        link = program.link
        assert not link.ends and not link.dials and not link.held and not program.asked_for, name
        assert not link._departed
        # Every request to close was answered; what was told of itself is not, and is bounded.
        assert all(link._ids.is_ours(number) for number in link._ids._closing)


@given(
    st.booleans(),
    st.sets(st.integers(0, 6)),
    st.integers(0, 12),
)
def test_numbers_are_given_in_turn_and_never_twice(agent: bool, used: set[int], times: int) -> None:
    ids = ConnectIds(agent=agent)
    first = 1 if agent else FIRST_OF_SERVER
    taken = {first + offset for offset in used}
    for _ in range(times):
        number = ids.give(taken)
        assert number not in taken and ids.is_ours(number)
        assert not ConnectIds(agent=not agent).is_ours(number)
        taken.add(number)
