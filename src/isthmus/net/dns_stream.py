"""DNS over one byte stream (RFC 1035 §4.2.2, RFC 7766): several questions at once, in any order.

The stream is any end: that of a tunnel, as a rule. Which stream is asked is tunnel_dns.py.
"""

from __future__ import annotations

import asyncio

from isthmus.net.dns_messages import Answer, DnsError, Question, read_answer, wire_id
from isthmus.tunnel.end import GONE, Early, End, Ending, join

_HEADER_BYTES = 12
_LENGTH_BYTES = 2
#: Answers that nobody waits for any more are passed over; a server that sends nothing else is not.
_MOST_UNASKED = 16
_GOODBYE_S = 2.0


class StreamOverError(DnsError):
    """The stream ended before this answer; ``again`` says whether another one may do better."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class DnsStream(Early):
    """The peer of an end that leads to a DNS server."""

    __slots__ = ("_answered", "_idle", "_idle_s", "_loop", "_unasked", "_waiting", "over", "tired")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, idle_s: float) -> None:
        super().__init__(limit=_LENGTH_BYTES + 65535)
        self._loop = loop
        self._idle_s = idle_s
        self._waiting: dict[int, tuple[Question, asyncio.Future[Answer]]] = {}
        self._answered = 0
        self._unasked = 0
        self._idle: asyncio.TimerHandle | None = None
        self.over = False
        #: Nothing new is to be asked here: it ends with its last question.
        self.tired = False

    @property
    def usable(self) -> bool:
        """A new question may be asked here."""
        return not (self.over or self.tired)

    def attach(self, end: End) -> None:
        """Take the end that leads to the server."""
        join(end, self)
        self.rest()

    def has(self, number: int) -> bool:
        """A question with this id is waiting."""
        return number in self._waiting

    def ask(self, asked: Question) -> asyncio.Future[Answer]:
        """Send a question whose id is not in use; the future may be cancelled.

        It gets StreamOverError when the stream ends first, and DnsError for what is no answer.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.over:
            future.set_exception(StreamOverError("the connection is over", again=True))
            return future
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._waiting[asked.id] = (asked, future)
        future.add_done_callback(lambda _: self._forget(asked.id))
        self.peer.write(len(asked.wire).to_bytes(_LENGTH_BYTES, "big") + asked.wire)
        return future

    def _forget(self, number: int) -> None:
        found = self._waiting.get(number)
        if found is not None and found[1].done():
            del self._waiting[number]
            self.rest()

    def rest(self) -> None:
        """Close soon, when there is nothing to wait for; at once if nothing more will be asked."""
        if self._waiting or self.over:
            return
        if self.tired:
            self.close()
        elif self._idle is None:
            self._idle = self._loop.call_later(self._idle_s, self.close)

    def close(self) -> None:
        """Say goodbye; whoever still waits hears that it is over."""
        end = self.peer
        self._finish("the connection was closed here", again=True)
        end.write_eof()
        end.let_go()
        # Some ends close only when the other side does; a no-op for the others.
        self._loop.call_later(_GOODBYE_S, end.abort, Ending.CANCELLED)

    def cut(self) -> None:
        """End it now."""
        end = self.peer
        self._finish("the connection was closed here", again=False)
        end.abort(Ending.CANCELLED)

    # What the end says.

    def write(self, data: bytes) -> bool:
        """Take what the server sent: a length, a message, and so on."""
        if self.over:
            return True
        self.buffer += data
        while len(self.buffer) >= _LENGTH_BYTES and not self.over:
            size = int.from_bytes(self.buffer[:_LENGTH_BYTES], "big")
            if size < _HEADER_BYTES:
                self._broken(f"sent a message of {size} bytes, shorter than any")
                break
            if len(self.buffer) < _LENGTH_BYTES + size:
                break
            wire = bytes(self.buffer[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self.buffer[: _LENGTH_BYTES + size]
            self._take(wire)
        return True  # a message is never longer than the bound

    def write_eof(self) -> None:
        """The server closes: it may do so at any time (RFC 7766 §6.2.4)."""
        end = self.peer
        self._finish("closed the connection before it had answered", again=self._answered > 0)
        end.write_eof()
        end.let_go()

    def abort(self, reason: Ending) -> None:
        """The tunnel broke."""
        self._finish(f"the connection broke: {reason.value}", again=self._answered > 0)

    def _take(self, wire: bytes) -> None:
        found = self._waiting.get(wire_id(wire))
        if found is None:
            self._unasked += 1
            if self._unasked > _MOST_UNASKED:
                self._broken("sends answers to what was not asked")
            return
        asked, future = found
        try:
            answer = read_answer(asked, wire)
        except DnsError as exc:
            if not future.done():
                future.set_exception(exc)
            if not exc.answered:
                # Who answers nonsense once is not asked again in the same breath.
                self._broken(str(exc))
            return
        self._answered += 1
        self._unasked = 0
        if not future.done():
            future.set_result(answer)

    def _broken(self, why: str) -> None:
        end = self.peer
        self._finish(why, again=False)
        end.abort(Ending.PROTOCOL)

    def _finish(self, why: str, *, again: bool) -> None:
        self.over = True
        self.peer = GONE
        self.buffer.clear()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(StreamOverError(why, again=again))
