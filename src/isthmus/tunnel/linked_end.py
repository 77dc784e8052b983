"""One of many konnectivity connections in a call, as an end; see packet_link.py.

Also the records a call keeps about its connections: their ids, and the replies that it awaits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Protocol

from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early, Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.values import NORMAL, TrafficClass
from isthmus.wire.packet import CLOSE_RSP, DATA, DataHead, close_response, end_of_data

Told = Callable[[str | None], None]
#: The first id that a server assigns, which no agent reaches: below it DATA is read without
#: protobuf (wire/packet.py).
FIRST_OF_SERVER, PAST_OF_SERVER = 2**32, 2**35
_MOST_CLOSING = 4096
#: How long a reply may pause after its client half-closed. Konnectivity cannot signal a half-close,
#: and its close loses the reply.
REPLY_PAUSE_S = 10.0


class LinkOwner(Protocol):
    """Receives the events of a call's packets (packet_link.py)."""

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The peer requests a dial; ``accept`` or ``refuse`` answers it.

        ``ours`` is what an Isthmus program adds to the request.

        Raises:
            ProtocolError: ``ours`` is malformed.
        """

    def taken_back(self, random: int) -> None:
        """The peer cancelled the dial."""

    def told_to_drain(self) -> None:
        """The peer is draining: it accepts no new dials."""

    def call_over(self, text: str) -> None:
        """The call ended or was reset, which ends the link."""

    def ease_later(self, delay_s: float) -> None:
        """Call ``ease`` after ``delay_s``."""

    def broke_rules(self, what: str) -> None:
        """The peer violated the protocol."""


class LinkedCall(Protocol):
    """The interface of the call (PacketLink) for its connections and its brake."""

    stream: Http2Stream
    owner: LinkOwner
    clock: Callable[[], float]
    account: Account
    ends: dict[int, LinkedEnd]
    dials: dict[int, LinkedEnd]
    #: Counts sent data packets, by type.
    sent: list[int]
    #: Both programs are Isthmus's and agreed on a packet for half-close.
    half_closes: bool
    #: The stream is full: connections take turns.
    blocked: bool
    #: The brake wants to know about the next connection that sends something.
    watching: bool

    def want_turn(self, end: LinkedEnd) -> None: ...
    def take_turns(self) -> None: ...
    def took_turn(self, end: LinkedEnd, size: int) -> None: ...
    def say(self, kind: int, message: bytes) -> None: ...
    def say_ended(self, end: LinkedEnd, reason: Ending) -> None: ...
    def spoke(self, end: LinkedEnd | None) -> None: ...
    def relieved(self, end: LinkedEnd) -> None: ...
    def nothing_more(self, end: LinkedEnd) -> None: ...
    def await_reply(self, end: LinkedEnd) -> None: ...
    def reply_unwanted(self, end: LinkedEnd) -> None: ...
    def departed(self, end: LinkedEnd) -> None: ...
    def forget(self, end: LinkedEnd, ending: Ending) -> None: ...
    def give_credit(self) -> None: ...


class LinkedEnd(BaseEnd):
    """One connection of a call; ``opener``: we requested it, and the other program accepted."""

    __slots__ = (
        *END_SLOTS,
        "_backlog",
        "_eof_in",
        "_eof_out",
        "_eof_sent",
        "_head",
        "_left",
        "account",
        "backlog_bytes",
        "connect_id",
        "in_turn",
        "link",
        "opener",
        "pieces",
        "random",
        "reached",
        "told",
        "traffic",
    )

    def __init__(
        self, link: LinkedCall, random: int, early: Early | None = None, *, opener: bool
    ) -> None:
        self.init_end(early)
        self.link = link
        self.opener = opener
        self.random = random
        self.connect_id = 0
        self.told: Told | None = None
        #: Pays for what its full sink keeps; None: the link's account.
        self.account: Account | None = None
        self.reached = ""  # the address, if the acceptor reports it
        self.pieces: list[memoryview | bytes] | None = None
        self.backlog_bytes = 0
        self.in_turn = False
        self.traffic: TrafficClass = NORMAL
        self._head: DataHead | None = None
        self._backlog: deque[bytes | memoryview] | None = None
        self._eof_in = False  # the other program sends nothing more
        self._eof_out = False  # nothing more may be written to the other program
        self._eof_sent = False  # and the other program was told
        self._left = False  # the other program closed: it no longer reads

    def __repr__(self) -> str:
        state = self.ending.value if self.ending else "open" if self.connect_id else "dialing"
        return f"<LinkedEnd {self.connect_id} {state}, {self.backlog_bytes} waiting>"

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self._eof_in != self._eof_out

    @property
    def reading(self) -> bool:
        """Whether bytes may still arrive."""
        return self.ending is None and not self._eof_in

    def opened(self, connect_id: int) -> None:
        """The dial succeeded."""
        self.connect_id = connect_id
        self._head = DataHead(connect_id)

    # Towards the other program.

    def write(self, data: bytes) -> bool:
        """Send one DATA packet now, or wait for a turn."""
        size = len(data)
        if self.ending is not None or self._eof_out or not size:
            return True
        if self._left:
            self._nobody_reads()
            return True
        self.bytes_written += size
        link = self.link
        if link.watching:
            link.spoke(self)
        if self._backlog is None and not link.blocked and size <= TURN_BYTES:
            assert self._head is not None
            link.sent[DATA] += 1
            if link.stream.write(self._head.of(size), data):
                return True
            link.blocked = True
            link.want_turn(self)
            return False
        if self._backlog is None:
            self._backlog = deque()
        self._backlog.append(data)
        self.backlog_bytes += size
        link.want_turn(self)
        if not link.blocked:
            link.take_turns()  # more than a turn: nothing else would start the turns
        return self._backlog is None

    def take_turn(self) -> bool:
        """Send one packet of the waiting data; False when nothing is left."""
        backlog = self._backlog
        if self.ending is not None:
            return False
        if backlog:
            parts: list[bytes | memoryview] = []
            size = 0
            while backlog and size < TURN_BYTES:
                part = backlog.popleft()
                if len(part) > TURN_BYTES - size:
                    view = memoryview(part)
                    backlog.appendleft(view[TURN_BYTES - size :])
                    part = view[: TURN_BYTES - size]
                parts.append(part)
                size += len(part)
            self.backlog_bytes -= size
            self.link.took_turn(self, size)
            assert self._head is not None
            self.link.sent[DATA] += 1
            data = b"".join(parts) if len(parts) > 1 else bytes(parts[0])
            if not self.link.stream.write(self._head.of(size), data):
                self.link.blocked = True
            if backlog:
                return True
        self._backlog = None
        if self._eof_out:
            if not self._eof_sent:
                self._send_eof()
        else:
            self.peer.resume_reading()
        return self._backlog is not None

    def write_eof(self) -> None:
        """Signal the half-close as far as the protocol can."""
        if self.ending is not None or self._eof_out:
            return
        self._eof_out = True
        if self._backlog is None:
            self._send_eof()

    def _send_eof(self) -> None:
        link = self.link
        self._eof_sent = True
        if self._left:
            self.over(Ending.CLEAN)
        elif link.half_closes:
            link.say(DATA, end_of_data(self.connect_id))
            if self._eof_in:
                self.over(Ending.CLEAN)
        elif not self.opener:
            # The target has ended: Go then closes both directions.
            link.say(CLOSE_RSP, close_response(self.connect_id))
            if not self._eof_in:
                self.peer.write_eof()
            self.over(Ending.CLEAN)
        else:
            link.await_reply(self)

    def abort(self, reason: Ending) -> None:
        """Cancel a dial, or end the connection with an error."""
        if self.ending is not None:
            return
        if not self._left:
            self.link.say_ended(self, reason)
        self.over(reason)

    def _nobody_reads(self) -> None:
        """Reset a sender that still writes after the other program closed."""
        peer = self.peer
        self.over(Ending.RESET)
        peer.abort(Ending.RESET)

    def over(self, ending: Ending) -> None:
        """Finish the end, once."""
        if self.ending is None:
            self._backlog = None
            self.backlog_bytes = 0
            self.pieces = None
            self.told = None
            self.link.forget(self, ending)
            if self.account is not None:
                self.account.close()
            self.finish(ending)

    def pause_reading(self) -> None:
        """Do nothing: False returned by the sink already withholds credit."""

    def resume_reading(self) -> None:
        """The sink has room again: stop braking."""
        self.link.relieved(self)

    # From the other program.

    def ended_by_peer(self) -> None:
        """The other program half-closed; only Isthmus programs signal this."""
        if not self._eof_in:
            self._eof_in = True
            self.link.nothing_more(self)
            self.peer.write_eof()
            if self._eof_sent:
                self.over(Ending.CLEAN)

    def closed_by_peer(self, error: str) -> None:
        """The other program closed both directions; an error makes it a reset."""
        if error:
            self.lost(Ending.RESET)
            return
        self._left = True
        self._backlog = None
        self.backlog_bytes = 0
        if not self._eof_in:
            self._eof_in = True
            self.link.nothing_more(self)
            self.peer.write_eof()
        if self._eof_out:
            self.over(Ending.CLEAN)
            return
        self.link.departed(self)
        self.peer.resume_reading()  # anything it sends now resets it
        if not self.opener:
            self.peer.let_go()

    def let_go(self) -> None:
        """The client no longer reads: stop waiting for a reply."""
        self.link.reply_unwanted(self)

    def lost(self, reason: Ending) -> None:
        """The connection was reset remotely, or the link is gone: reset the peer end."""
        if self.ending is None:
            peer = self.peer
            self.over(reason)
            peer.abort(reason)


class AwaitedReplies:
    """The connections of one call whose clients have half-closed."""

    __slots__ = ("_clock", "_seen")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The size of the reply when it last grew, and the time of that.
        self._seen: dict[LinkedEnd, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, end: LinkedEnd) -> bool:
        return end in self._seen

    def await_(self, end: LinkedEnd) -> None:
        """Wait for the reply to this connection."""
        self._seen[end] = (-1, self._clock())

    def forget(self, end: LinkedEnd) -> None:
        """Stop waiting for this connection."""
        self._seen.pop(end, None)

    def paused(self) -> list[LinkedEnd]:
        """The connections whose reply has paused for too long."""
        now = self._clock()
        late = []
        for end, (seen, since) in self._seen.items():
            moved = end.peer.bytes_written
            if moved != seen:
                self._seen[end] = (moved, now)
            elif now - since > REPLY_PAUSE_S:
                late.append(end)
        return late


class ConnectIds:
    """The ids of the connections in one call: which side assigns them, and which were closed.

    The side that accepts a connection assigns its id. Agents count from 1, as konnectivity's do. A
    server accepts only what Isthmus agents open, and counts from 2**32: no id ever means two
    connections, and each shows which side opened its connection.
    """

    __slots__ = ("_agent", "_closing", "_first", "_next", "_past")

    def __init__(self, *, agent: bool) -> None:
        self._agent = agent
        self._first = 1 if agent else FIRST_OF_SERVER
        self._past = FIRST_OF_SERVER if agent else PAST_OF_SERVER
        self._next = self._first
        self._closing: set[int] = set()

    def give(self, used: Container[int]) -> int:
        """Assign an id to a connection that we accept."""
        while True:
            number = self._next
            self._next = number + 1 if number + 1 < self._past else self._first
            if number not in used:
                return number

    def is_ours(self, number: int) -> bool:
        """Whether our side assigns this id, which means that the peer opened the connection."""
        return (number < FIRST_OF_SERVER) is self._agent

    def first_close(self, number: int) -> bool:
        """Whether to tell the peer that a connection is closed: once, whatever still arrives."""
        if number in self._closing:
            return False
        if len(self._closing) >= _MOST_CLOSING:
            self._closing.clear()
        self._closing.add(number)
        return True

    def closed(self, number: int) -> None:
        """The peer knows, or has reused the id for another connection."""
        self._closing.discard(number)

    @property
    def closing(self) -> int:
        """The number of closes that the peer was told about."""
        return len(self._closing)
