"""The socket pair between a parent and a worker, and its messages.

Messages go both ways, each after its length. Both sides have the same version: a worker runs its
parent's executable. If one ends, so does the other: when the channel closes, the parent is gone.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from isthmus.errors import ProtocolError
from isthmus.frame.model.history import Tally

_LENGTH = 4
#: A snapshot of 100,000 tunnels takes about half of it.
MOST_BYTES = 64 * 1024 * 1024
#: Most bytes that may wait for the other side; beyond that it is stuck.
MOST_UNSENT_BYTES = 2 * MOST_BYTES
_encode = msgspec.msgpack.Encoder().encode


class Begin(Struct, frozen=True, kw_only=True, tag=True):
    """The first message to a worker: its number, and how many workers there are."""

    index: int
    count: int
    program_id: str


class Bound(Struct, frozen=True, kw_only=True, tag=True):
    """Where the parent listens, by flag."""

    where: dict[str, list[tuple[str, int]]]


class WorkerQuestion(Struct, frozen=True, kw_only=True, tag=True):
    """A question; the answer has the same number."""

    number: int
    what: str
    given: dict[str, str] = {}


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Let open connections finish, for a limited time, then end."""

    timeout_s: float


class Stop(Struct, frozen=True, kw_only=True, tag=True):
    """End now."""


class Hangup(Struct, frozen=True, kw_only=True, tag=True):
    """The parent was told to reload its files."""


class Audit(Struct, frozen=True, kw_only=True, tag=True):
    """Whether the parent fails to write the audit records of workers."""

    failing: bool


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The worker takes connections now."""


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The worker cannot start, and the reason."""

    sentence: str


class WorkerReport(Struct, frozen=True, kw_only=True, tag=True):
    """A worker's report on itself, about once a second.

    ``taken`` is how many connections it was handed so far, ``load`` how many sockets and gRPC calls
    it has open. Checks are names and failures; an empty failure means that the check passed.
    ``lines`` are those logged since the last report. ``has_peers``: it knows other servers, apart
    from its parent's workers. ``metrics`` and ``view``, a snapshot without tunnels, come less
    often, and in the last report: they are kept when the worker dies.
    """

    taken: int = 0
    load: int = 0
    live: list[tuple[str, str]] = []
    ready: list[tuple[str, str]] = []
    status: str = ""
    has_peers: bool = False
    cpu_s: float = 0.0
    tally: Tally = Tally()
    lines: list[bytes] = []
    metrics: bytes = b""
    view: bytes = b""


class WorkerAnswer(Struct, frozen=True, kw_only=True, tag=True):
    """The answer to a question: an HTTP status, and headers if they matter."""

    number: int
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}


ToWorker = Begin | Bound | WorkerQuestion | Drain | Stop | Hangup | Audit


ToParent = Started | Failed | WorkerReport | WorkerAnswer


S = TypeVar("S", bound=ToWorker | ToParent)
R = TypeVar("R", bound=ToWorker | ToParent)


class Channel(Generic[S, R]):
    """One side: sends messages of type S and receives those of type R."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: object
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._size: int | None = None  # bytes of the message whose length was read

    @classmethod
    async def of_parent(cls, sock: socket.socket) -> Channel[ToWorker, ToParent]:
        """Make the parent's side of a connected socket."""
        return Channel(*await asyncio.open_connection(sock=sock), ToParent)

    @classmethod
    async def of_worker(cls, sock: socket.socket) -> Channel[ToParent, ToWorker]:
        """Make the worker's side of a connected socket."""
        return Channel(*await asyncio.open_connection(sock=sock), ToWorker)

    def send(self, message: S) -> bool:
        """Send without waiting; False if the other side does not read, or is gone."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            return False
        body = _encode(message)
        if len(body) > MOST_BYTES:
            return False
        self._writer.write(len(body).to_bytes(_LENGTH, "big") + body)
        return True

    async def receive(self) -> R | None:
        """Wait for a message; None at the end. A cancelled call may be repeated.

        Raises:
            ProtocolError: the message is invalid.
        """
        try:
            if self._size is None:
                self._size = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            if self._size > MOST_BYTES:
                raise ProtocolError(f"a message of {self._size} bytes between parent and worker")
            body = await self._reader.readexactly(self._size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._size = None
        try:
            message: R = self._decode(body)
        except msgspec.MsgspecError as exc:
            raise ProtocolError(f"a message between parent and worker: {exc}") from exc
        return message

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent or the other side is gone, for a limited time."""
        self._writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except (TimeoutError, ConnectionError):
            return

    def close(self) -> None:
        """Close; nothing is received after that."""
        self._writer.close()
