"""The agent's side of a link: connects, says Hello, waits for Welcome, takes dials."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from isthmus import __version__
from isthmus.errors import LinkError, LinkStage, ProtocolError
from isthmus.links.dials import IncomingDial
from isthmus.links.link import Link
from isthmus.net.connect import Address, Connecting
from isthmus.net.poller import Poller
from isthmus.tunnel.limits import Limits
from isthmus.values import AgentId, ServerId
from isthmus.wire.link_pb2 import Control, Hello, Welcome

_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What an agent says of itself."""

    agent_id: AgentId
    identifiers: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    token: str = ""


def _wanted(link: ServerLink) -> bool:
    """Want every link."""
    return True


def _unheard() -> None:
    """Nobody asked to hear it."""


class ServerLink(Link):
    """A link to a server, as an agent sees it.

    ``claim(link)`` is asked when the server has said its id, before any dial is taken; False
    makes the link ``spare``: it drains from the beginning, and what the server asked before it
    knew is reset without an answer, so that it asks again elsewhere. ``on_membership()`` hears
    that ``server_count`` changed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str,
        greeting: Greeting,
        on_dial: Callable[[IncomingDial], None],
        claim: Callable[[ServerLink], bool] = _wanted,
        on_membership: Callable[[], None] = _unheard,
        limits: Limits = Limits(),
    ) -> None:
        self.server_id = ServerId("")
        self.server_count = 1
        self.spare = False
        self._claim = claim
        self._on_membership = on_membership
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self._greeting = greeting
        super().__init__(
            loop,
            poller,
            sock,
            context,
            server_hostname=server_hostname,
            on_dial=on_dial,
            on_closed=self._report,
            limits=limits,
        )
        self.carrier.begin()

    def begin(self) -> None:
        """Open the control stream and say who we are."""
        assert self.session is not None
        stream = self.session.open()
        assert stream is not None  # the first of a new session
        self.attach_control(stream)
        self.tell(
            Control(
                hello=Hello(
                    agent_id=self._greeting.agent_id,
                    identifiers=self._greeting.identifiers,
                    labels=self._greeting.labels,
                    token=self._greeting.token,
                    version=__version__,
                )
            )
        )

    def told(self, message: Control) -> None:
        """Take Welcome, once; a refusal; a change of membership; the rest both sides know."""
        kind = message.WhichOneof("message")
        if kind == "welcome":
            if self.ready:
                raise ProtocolError("link: second welcome")
            self._welcome(message.welcome)
        elif kind == "refusal":
            self.lost(f"refused by the server: {message.refusal.reason}", LinkStage.REFUSED)
        elif kind == "membership":
            self.server_count = max(1, message.membership.server_count)
            self._on_membership()
        else:
            super().told(message)

    def _welcome(self, welcome: Welcome) -> None:
        if not welcome.server_id:
            raise ProtocolError("link: welcome without a server id")
        self.server_id = ServerId(welcome.server_id)
        self.server_count = max(1, welcome.server_count)
        session = self.session
        assert session is not None
        if welcome.stream_window:
            session.first_window = min(session.first_window, welcome.stream_window)
        self.spare = not self._claim(self)
        if self.spare:
            # Before the first ping, so that its answer also says: no further dial is coming.
            self.drain()
        self.be_ready()
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    @property
    def unused(self) -> bool:
        """A spare link whose server knows that it is one, with nothing left to serve."""
        session = self.session
        told = session is not None and session.round_trip_s > 0.0
        return self.spare and told and self.load <= 1  # one is the control stream

    def _report(self, link: Link) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkError(self.closed_because, self.stage))
            self.welcomed.exception()  # whoever waits hears it; nobody waiting is no error
        if not self.over.done():
            self.over.set_result(self.closed_because)


async def connect(
    loop: asyncio.AbstractEventLoop,
    poller: Poller,
    address: Address,
    context: ssl.SSLContext,
    *,
    server_hostname: str,
    greeting: Greeting,
    on_dial: Callable[[IncomingDial], None],
    claim: Callable[[ServerLink], bool] = _wanted,
    on_membership: Callable[[], None] = _unheard,
    limits: Limits = Limits(),
) -> ServerLink:
    """Connect to one address of a server and wait until it said Welcome; see ServerLink.

    Raises:
        LinkError: it could not be reached, is not a server of ours, or refused us.
    """
    reached: asyncio.Future[socket.socket] = loop.create_future()

    def connected(sock: socket.socket, events: int) -> None:
        if reached.cancelled():
            poller.close(sock)
        else:
            reached.set_result(sock)

    def failed(failure: object, detail: str) -> None:
        if not reached.done():
            reached.set_exception(LinkError(detail, LinkStage.CONNECT))

    attempt = Connecting(
        loop, poller, [address], timeout_s=_CONNECT_S, connected=connected, failed=failed
    )
    try:
        sock = await reached
    except asyncio.CancelledError:
        attempt.cancel()
        if reached.done() and not reached.cancelled() and reached.exception() is None:
            poller.close(reached.result())  # connected, and cancelled before we were told
        raise
    link = ServerLink(
        loop,
        poller,
        sock,
        context,
        server_hostname=server_hostname,
        greeting=greeting,
        on_dial=on_dial,
        claim=claim,
        on_membership=on_membership,
        limits=limits,
    )
    link.carrier.read_again()  # what came while nobody owned the socket made its edge already
    try:
        await asyncio.shield(link.welcomed)
    except asyncio.CancelledError:
        link.close("cancelled")
        raise
    return link
