"""A dialed tunnel as asyncio streams: its end is joined to one side of a socket pair.

Everything that asyncio does with a socket, including TLS inside a tunnel, works with every dialer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from isthmus.net.connect import AnyDialer as Dialer
from isthmus.net.connect import TunnelResetError, reach_by
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import BaseEnd, End, Ending, join
from isthmus.values import HostPort

__all__ = ["Dialer", "Pipe", "TunnelResetError", "opened"]

#: How long a target may take to close its side after this side was closed.
GRACE_S = 1.0
_LIMIT_BYTES = 512 * 1024


class Pipe:
    """A tunnel to a target; ``reader`` and ``writer`` exist once it is open."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, end: BaseEnd, poller: Poller) -> None:
        try:
            self._given, kept = socket.socketpair()
        except OSError:
            end.abort(Ending.CANCELLED)
            raise
        self._given.setblocking(False)
        kept.setblocking(False)
        self._end = end
        self._inside = SocketEnd(kept, poller)
        self._opened = False
        #: How the tunnel's far end finished, once it has.
        self.ending = end.ending
        end.on_done = self._done
        join(end, self._inside)

    def _done(self, end: End, ending: Ending) -> None:
        self.ending = ending

    @property
    def broken(self) -> bool:
        """Whether the tunnel was reset, or lost."""
        return self.ending not in (None, Ending.CLEAN)

    async def open(self, context: ssl.SSLContext | None = None, name: str = "") -> None:
        """Open the streams, with TLS inside if there is a context."""
        self.reader, self.writer = await asyncio.open_connection(
            sock=self._given,
            limit=_LIMIT_BYTES,
            ssl=context,
            server_hostname=name if context is not None else None,
        )
        self._opened = True

    async def read(self, size: int = _LIMIT_BYTES) -> bytes:
        """Read some bytes; none at a clean end.

        Raises:
            OSError: the tunnel was reset.
        """
        data = await self.reader.read(size)
        if not data:
            self.check()
        return data

    def check(self) -> None:
        """Raise an error if the tunnel was reset.

        Raises:
            TunnelResetError: the tunnel was reset.
        """
        if self.ending is not None and self.broken:
            raise TunnelResetError(self.ending.value)

    def close(self, *, politely: bool) -> None:
        """Close the tunnel: by a half-close with a grace period, or at once."""
        if self._opened:
            # A transport that closes by itself, after an error or TLS's close_notify, must not be
            # aborted: CPython 3.11 raises an error if it has just finished.
            if not self.writer.transport.is_closing():
                self.writer.transport.abort()
        else:
            self._given.close()
        if not politely:
            self._abort()
        elif self._end.ending is None or self._inside.ending is None:
            asyncio.get_running_loop().call_later(GRACE_S, self._abort)

    def _abort(self) -> None:
        self._end.abort(Ending.CANCELLED)
        self._inside.abort(Ending.CANCELLED)


@asynccontextmanager
async def opened(
    dialer: Dialer,
    poller: Poller,
    target: HostPort,
    *,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
    name: str = "",
) -> AsyncIterator[Pipe]:
    """Open a tunnel to a target for the block; with a context, TLS is used inside.

    Raises:
        DialError: the target was not reached.
        OSError: TLS failed, or the tunnel was reset while it was used.
    """
    pipe = Pipe(await reach_by(dialer, target, timeout_s), poller)
    worked = False
    try:
        await pipe.open(context, name)
        yield pipe
        worked = True
    except Exception:
        pipe.check()  # whatever failed, a reset is the cause
        raise
    finally:
        pipe.close(politely=worked)
