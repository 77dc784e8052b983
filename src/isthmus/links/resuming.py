"""Resuming a link on another connection: the messages before the session's own bytes.

The agent connects with ALPN ``isthmus/1r@ID``, authenticates as always, and sends ``Resume``: which
link, its token, and how many bytes arrived. The server answers ``Resumed``, and both send again
what the other has not received (tunnel/replaceable.py). programs/server/resuming.py decides which
links a server keeps, and for whom; programs/agent/resuming.py decides when and where an agent
tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from google.protobuf.message import Message

from isthmus.errors import ProtocolError
from isthmus.links.link import HANDSHAKE_S, LinkSocket, LinkTerms
from isthmus.net.contexts import offer
from isthmus.wire.alpn import alpn_resuming
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Resume, Resumed

if TYPE_CHECKING:
    from isthmus.links.agent_side import ServerLink

_LINK_BYTES, _TOKEN_BYTES = 16, 32
_MOST_EPOCH = 2**32 - 1
M = TypeVar("M", bound=Message)


class ResumeKey:
    """What an agent has to show to resume one link: its number and a token, which changes each
    time."""

    __slots__ = ("_before", "_received_bytes", "_token", "epoch", "link")

    def __init__(self) -> None:
        self.link = secrets.token_bytes(_LINK_BYTES)
        self.epoch = 0
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._before = b""
        self._received_bytes = -1

    def __repr__(self) -> str:
        return f"<ResumeKey, epoch {self.epoch}>"  # never the token

    @property
    def token(self) -> bytes:
        """The token for the next time."""
        return self._token

    def opens(self, message: Resume, received_bytes: int) -> bool:
        """Whether this message may resume the link, of which this many bytes have arrived.

        The previous token is valid until something has arrived on the connection that it opened:
        the answer with the current one may have been lost.
        """
        if not self.epoch < message.epoch <= _MOST_EPOCH:
            return False
        good = hmac.compare_digest(message.token, self._token)
        unused = self._received_bytes == received_bytes and len(self._before) > 0
        return good or (unused and hmac.compare_digest(message.token, self._before))

    def turn(self, message: Resume, received_bytes: int) -> None:
        """The link was resumed by this message: change the token."""
        self.epoch = message.epoch
        self._before = message.token
        self._received_bytes = received_bytes
        self._token = secrets.token_bytes(_TOKEN_BYTES)


class FirstMessage(Generic[M]):
    """Reads the one message with which a resuming connection begins; stands for the session."""

    __slots__ = ("_buffer", "_kind", "_told")

    def __init__(self, kind: type[M], told: Callable[[M, bytes], None]) -> None:
        """``told(message, rest)`` is called once, with the message and the bytes after it."""
        self._buffer = bytearray()
        self._kind = kind
        self._told = told

    def heard(self) -> None:
        """Bytes arrived."""

    def receive(self, view: memoryview) -> None:
        """Look for the message.

        Raises:
            ProtocolError: it is invalid.
        """
        self._buffer += view
        message = take_message(self._buffer, self._kind)
        if message is not None:
            rest = bytes(self._buffer)
            self._buffer.clear()
            self._told(message, rest)

    def flush(self) -> None:
        """Nothing waits here."""

    def resume(self) -> None:
        """Nothing waits here."""


class NotResumedError(Exception):
    """A connection did not resume its link; ``final``: no other one will."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class ResumeAttempt:
    """An agent's connection on which one of its links may continue."""

    def __init__(
        self,
        terms: LinkTerms,
        link: ServerLink,
        sock: socket.socket,
        *,
        context: ssl.SSLContext,
        server_hostname: str,
        bearer_token: str,
    ) -> None:
        """``done`` is set when the link continues, or fails with NotResumedError."""
        self._link = link
        self._bearer_token = bearer_token
        self._alpn = alpn_resuming(link.server_id)
        self.done: asyncio.Future[None] = terms.loop.create_future()
        self._timer = terms.loop.call_later(HANDSHAKE_S, self._fail, "no answer in time")
        offer(context, (self._alpn,))
        self.carrier = LinkSocket(
            self, sock, terms.poller, context, server_hostname=server_hostname
        )
        self.carrier.begin()

    def secured(self) -> None:
        """Name the link to resume, if the right server is at the other end."""
        if self.carrier.tls.selected_alpn_protocol() != self._alpn:
            self._fail("another server answered, or one that cannot resume links")
            return
        link = self._link
        received = link.detach()
        link.resume_epoch += 1
        self.carrier.session = FirstMessage(Resumed, self._answered)
        message = Resume(
            link=link.resume_link,
            token=link.resume_token,
            epoch=link.resume_epoch,
            received=received,
            bearer_token=self._bearer_token,
        )
        self.carrier.send(to_bytes(message))

    def _answered(self, answer: Resumed, rest: bytes) -> None:
        link = self._link
        if answer.refusal:
            self._fail(answer.refusal, final=not answer.later)
            return
        if not link.suspended:  # it ended meanwhile, or another attempt was faster
            self._fail("the link is not waiting any more", final=True)
            return
        self._timer.cancel()
        link.resume_token = answer.next_token
        try:
            link.go_on(self.carrier, answer.received)
        except ProtocolError as exc:
            self._fail(str(exc), final=True)
            return
        if not self.done.done():
            self.done.set_result(None)
        if rest and not self.carrier.closed:
            self.carrier.feed(memoryview(rest))

    def _fail(self, why: str, *, final: bool = False) -> None:
        self._timer.cancel()
        self.carrier.session = None
        self.carrier.close()
        if not self.done.done():
            self.done.set_exception(NotResumedError(why, final=final))
            self.done.exception()  # a waiter gets it; without one it is not an error

    # The carrier reports.

    def insecure(self, error: ssl.SSLError) -> None:
        """The TLS handshake failed."""
        self._fail(f"TLS handshake failed: {error.reason or error}")

    def violated(self, error: ProtocolError) -> None:
        """The bytes that came are not an answer."""
        self._fail(str(error), final=True)

    def disconnected(self, why: str) -> None:
        """The connection broke."""
        self._fail(why)

    def lost(self, why: str) -> None:
        """The server closed the connection."""
        self._fail(why)

    def cancel(self) -> None:
        """End the attempt; its result is no longer wanted."""
        if not self.done.done():
            self._fail("cancelled")


async def resume_by(attempt: ResumeAttempt) -> None:
    """Wait until the link continues on this connection.

    Raises:
        NotResumedError: it does not.
    """
    attempt.carrier.read_again()  # bytes that came before this had their edge already
    with contextlib.ExitStack() as stack:
        stack.callback(attempt.cancel)
        await asyncio.shield(attempt.done)
