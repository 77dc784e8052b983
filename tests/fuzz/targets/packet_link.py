"""The packets of a konnectivity link, from a server or an agent that lies.

Nothing is raised; each dial is told once; an answer reaches only the dial that asked; data reach
only the connection that they name; and nothing is left when the link is lost.
"""

from cutting import cut, knobs
from sinks import ServerBed, sink

from isthmus.errors import ProtocolError
from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.linked_end import LinkedEnd
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.packet_link import PacketLink
from isthmus.wire.http2 import Headers

DIALS = (1, 2, 3)


class Program:
    """The owner of a link: it dials some, and answers what it is asked."""

    def __init__(self, role: int, behaviour: int) -> None:
        self.role, self.behaviour = role, behaviour
        self.told: dict[int, list[str | None]] = {random: [] for random in DIALS}
        self.ends: list[MemoryEnd] = []
        self.over = 0
        self.bed = ServerBed(self.request)

    def request(self, stream: Http2Stream, headers: Headers) -> PacketLink:
        """Make the link, and dial."""
        link = self.link = PacketLink(
            stream, self, agent=bool(self.role & 1), clock=lambda: 0.0,
            counts=PacketCounts(), half_closes=bool(self.role & 2),
        )  # fmt: skip
        self.dialed = {random: self._dial(random) for random in DIALS}
        return link

    def _dial(self, random: int) -> LinkedEnd:
        return self.link.dial(f"a:{random}", random, lambda error: self._answered(random, error))

    def _answered(self, random: int, error: str | None) -> None:
        self.told[random].append(error)
        if error is None:
            self._join(self.dialed[random])

    def _join(self, end: LinkedEnd) -> None:
        far = sink(self.behaviour)
        self.ends.append(far)
        join(end, far)

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """Accept, refuse, or leave it."""
        if random % 3 == 0:
            self._join(self.link.accept(random))
        elif random % 3 == 1:
            self.link.refuse(random, "no")
        elif ours:
            raise ProtocolError("not what we would say")

    def taken_back(self, random: int) -> None:
        """Nothing is pending here."""

    def told_to_drain(self) -> None:
        """Fine."""

    def call_over(self, text: str) -> None:
        """As links/grpc.py: the link is lost."""
        self.over += 1
        self.link.lost(Ending.LINK_LOST)

    def ease_later(self, delay_s: float) -> None:
        """Never, here."""

    def broke_rules(self, what: str) -> None:
        """It is only counted."""


def check(data: bytes) -> None:
    """Feed packets to a link."""
    (role, behaviour, *sizes), raw = knobs(data)
    program = Program(role, behaviour)
    link = program.link
    for piece in cut(raw, bytes(sizes)):
        program.bed.send(piece)
        assert all(len(told) <= 1 for told in program.told.values()), "told twice"
        assert program.over <= 1
        accepted = sum(told == [None] for told in program.told.values())
        ours = sum(link._ids.is_ours(connect_id) for connect_id in link.ends)
        assert len(link.ends) - ours <= accepted, "a connection that nobody asked for"
    program.bed.over()
    if not program.over:
        link.lost(Ending.LINK_LOST)
    assert not link.ends and not link.dials and not link.held
    assert all(len(told) == 1 for told in program.told.values())
    assert all(end.ending for end in program.ends)
