"""One konnectivity connection among the many of a call: an end; see packet_link.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.tunnel.classes import NORMAL, TURN_BYTES, TrafficClass
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early, Ending
from isthmus.wire.packet import CLOSE_RSP, DATA, DataHead, close_response, end_of_data

if TYPE_CHECKING:
    from isthmus.tunnel.budget import Account
    from isthmus.tunnel.packet_link import PacketLink

Told = Callable[[str | None], None]


class LinkedEnd(BaseEnd):
    """One connection of a call; ``opener``: we asked for it, and the other program accepted it."""

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
        self, link: PacketLink, random: int, early: Early | None = None, *, opener: bool
    ) -> None:
        self.init_end(early)
        self.link = link
        self.opener = opener
        self.random = random
        self.connect_id = 0
        self.told: Told | None = None
        #: Who pays for what its full sink keeps; None: the link's account.
        self.account: Account | None = None
        self.reached = ""  # the address, where the accepter says it
        self.pieces: list[memoryview | bytes] | None = None
        self.backlog_bytes = 0
        self.in_turn = False
        self.traffic: TrafficClass = NORMAL
        self._head: DataHead | None = None
        self._backlog: deque[bytes | memoryview] | None = None
        self._eof_in = False  # nothing more comes from the other program
        self._eof_out = False  # nothing more may be written to it
        self._eof_sent = False  # and it has been told
        self._left = False  # the other program closed: it reads nothing, either

    def __repr__(self) -> str:
        state = self.ending.value if self.ending else "open" if self.connect_id else "dialing"
        return f"<LinkedEnd {self.connect_id} {state}, {self.backlog_bytes} waiting>"

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self._eof_in != self._eof_out

    @property
    def reading(self) -> bool:
        """Bytes of it may still come."""
        return self.ending is None and not self._eof_in

    def opened(self, connect_id: int) -> None:
        """The dial succeeded."""
        self.connect_id = connect_id
        self._head = DataHead(connect_id)

    # Towards the other program.

    def write(self, data: bytes) -> bool:
        """Send one DATA packet now, or take turns; see End."""
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
            link.take_turns()  # more than a turn: nobody else would begin them
        return self._backlog is None

    def take_turn(self) -> bool:
        """Send one packet of what waits; False when nothing is left."""
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
        """Nothing more will be written: say so as far as the protocol can; see End."""
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
            # The target has ended: Go closes the connection then, both ways.
            link.say(CLOSE_RSP, close_response(self.connect_id))
            if not self._eof_in:
                self.peer.write_eof()
            self.over(Ending.CLEAN)
        else:
            link.await_reply(self)

    def abort(self, reason: Ending) -> None:
        """Take a dial back, or end the connection with an error; see End."""
        if self.ending is not None:
            return
        if not self._left:
            self.link.say_ended(self, reason)
        self.over(reason)

    def _nobody_reads(self) -> None:
        """The other program has closed, and still something is sent to it: reset the sender."""
        peer = self.peer
        self.over(Ending.RESET)
        peer.abort(Ending.RESET)

    def over(self, ending: Ending) -> None:
        """Finish, once."""
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
        """The sink's False answers do the work."""

    def resume_reading(self) -> None:
        """The sink has room again: it brakes no longer."""
        self.link.relieved(self)

    # From the other program.

    def ended_by_peer(self) -> None:
        """It half-closed, which only our own programs can say."""
        if not self._eof_in:
            self._eof_in = True
            self.link.nothing_more(self)
            self.peer.write_eof()
            if self._eof_sent:
                self.over(Ending.CLEAN)

    def closed_by_peer(self, error: str) -> None:
        """It closed both directions; with an error it was no clean end."""
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
        self.peer.resume_reading()  # what it sends now resets it
        if not self.opener:
            self.peer.let_go()

    def let_go(self) -> None:
        """Nobody waits for a reply: do not wait for it, either."""
        self.link.reply_unwanted(self)

    def lost(self, reason: Ending) -> None:
        """The connection was reset there, or the link is gone: reset the peer end."""
        if self.ending is None:
            peer = self.peer
            self.over(reason)
            peer.abort(reason)
