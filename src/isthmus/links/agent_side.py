"""The agent's side of a link: connects, says Hello, waits for Welcome, takes dials."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from isthmus.errors import LinkError, LinkStage, ProtocolError
from isthmus.links.grpc_agent import GrpcAgentTalk
from isthmus.links.link import Link
from isthmus.links.mux_agent import MuxAgentTalk
from isthmus.links.talk import Incoming, choose
from isthmus.net.connect import Address, Connecting
from isthmus.net.contexts import offer
from isthmus.net.poller import Poller
from isthmus.tunnel.budget import UNBOUNDED, Budget
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import AgentId, ServerId
from isthmus.wire.link import asked_for, is_askable

_CONNECT_S = 10.0
_MAX_IDS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What an agent says of itself; ``process`` is what its connection ids begin with."""

    agent_id: AgentId
    identifiers: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    token: str = field(default="", repr=False)
    features: tuple[str, ...] = ()
    process: str = ""


def _wanted(link: ServerLink) -> bool:
    """Want every link."""
    return True


def _unheard() -> None:
    """Nobody asked to hear it."""


class ServerLink(Link):
    """A link to a server, as an agent sees it.

    ``claim(link)`` is asked when the server has said its id, before any dial is taken; False
    makes the link ``spare``: it drains from the beginning, and what the server asked before it
    knew is reset without an answer, so that it asks again elsewhere; konnectivity's protocol
    cannot say that, there it is served. ``on_membership()`` hears that ``server_count`` or
    ``servers``, the ids of all of them as far as this one knows, changed, or that the server said
    that it drains, at ``drained_at``. ``alpn`` is what to offer this time; empty leaves it to the
    context. ``features`` is what the server says that it can do; None: it says nothing, as
    konnectivity's own, or it has not said welcome yet.
    """

    divides = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str,
        greeting: Greeting,
        on_dial: Callable[[Incoming], None],
        claim: Callable[[ServerLink], bool] = _wanted,
        on_membership: Callable[[], None] = _unheard,
        only: str = "auto",
        alpn: Sequence[str] = (),
        packets: PacketCounts | None = None,
        limits: Limits = Limits(),
        budget: Budget = UNBOUNDED,
    ) -> None:
        self.server_id = ServerId("")
        self.server_count = 1
        self.servers: frozenset[ServerId] = frozenset()
        self.features: frozenset[str] | None = None
        self.spare = False
        self.drained_at: float | None = None
        self.was_asked_for = False  # by its id, so that another server may have handed us on
        self.greeting = greeting
        self.authority = server_hostname
        self.packets = packets if packets is not None else PacketCounts()
        self._claim = claim
        self._only = only
        self._on_membership = on_membership
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        if alpn:
            offer(context, alpn)
        super().__init__(
            loop,
            poller,
            sock,
            context,
            server_hostname=server_hostname,
            on_dial=on_dial,
            on_closed=self._report,
            limits=limits,
            budget=budget,
        )
        self.carrier.begin()

    @property
    def peer_kind(self) -> str:
        """See Link."""
        return "server"

    @property
    def peer_id(self) -> str:
        """See Link."""
        return self.server_id

    def choose_talk(self, alpn: str | None) -> MuxAgentTalk | GrpcAgentTalk:
        """Our own protocol if the server knows it, else konnectivity's."""
        self.was_asked_for = alpn is not None and bool(asked_for([alpn]))
        return MuxAgentTalk(self) if choose(alpn, self._only) else GrpcAgentTalk(self)

    def welcome(
        self,
        server_id: str,
        server_count: int,
        servers: Iterable[str] = (),
        *,
        features: frozenset[str] | None,
        version: str = "",
    ) -> None:
        """The server said who it is, and how many there are, perhaps by their ids."""
        if not server_id:
            raise ProtocolError("link: welcome without a server id")
        self.server_id = ServerId(server_id)
        self.server_count = max(1, server_count)
        self.servers = _askable(servers)
        self.features = features
        self.version = version
        self.spare = not self._claim(self)
        if self.spare:
            # Before the first ping, so that its answer also says: no further dial is coming.
            self.drain(turn_away=True)
        self.be_ready()
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def members_changed(self, server_count: int, servers: Iterable[str] = ()) -> None:
        """There are more or fewer servers now, or others."""
        self.server_count = max(1, server_count)
        self.servers = _askable(servers)
        self._on_membership()

    def told_to_drain(self) -> None:
        """See Link."""
        super().told_to_drain()
        if self.drained_at is None:
            self.drained_at = self.loop.time()
            self._on_membership()

    def make_spare(self) -> None:
        """Another link takes its place: take no new dials, what is open goes on."""
        self.spare = True
        self.drain(turn_away=True)

    @property
    def unused(self) -> bool:
        """A spare link whose server knows that it is one, with nothing left to serve."""
        told = self.talk is not None and self.talk.round_trip_s > 0.0
        return self.spare and told and not self.load

    def _report(self, link: Link) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkError(self.closed_because, self.stage))
            self.welcomed.exception()  # whoever waits hears it; nobody waiting is no error
        if not self.over.done():
            self.over.set_result(self.closed_because)


def _askable(servers: Iterable[str]) -> frozenset[ServerId]:
    """The ids that can be asked for; no more of them than an agent looks for."""
    return frozenset(ServerId(each) for each in islice(filter(is_askable, servers), _MAX_IDS))


async def connect(
    loop: asyncio.AbstractEventLoop,
    poller: Poller,
    address: Address,
    context: ssl.SSLContext,
    *,
    server_hostname: str,
    greeting: Greeting,
    on_dial: Callable[[Incoming], None],
    claim: Callable[[ServerLink], bool] = _wanted,
    on_membership: Callable[[], None] = _unheard,
    only: str = "auto",
    alpn: Sequence[str] = (),
    packets: PacketCounts | None = None,
    limits: Limits = Limits(),
    budget: Budget = UNBOUNDED,
    through: Callable[[], Awaitable[socket.socket]] | None = None,
    kind: Callable[..., ServerLink] = ServerLink,
) -> ServerLink:
    """Connect to one address of a server and wait until it said Welcome; see ServerLink.

    ``through`` makes the connection instead, by way of a proxy; ``kind`` makes the link.

    Raises:
        LinkError: it could not be reached, is not a server of ours, or refused us.
    """
    sock = await (through() if through is not None else _reach(loop, poller, address))
    try:
        link = kind(
            loop,
            poller,
            sock,
            context,
            server_hostname=server_hostname,
            greeting=greeting,
            on_dial=on_dial,
            claim=claim,
            on_membership=on_membership,
            only=only,
            alpn=alpn,
            packets=packets,
            limits=limits,
            budget=budget,
        )
    except BaseException:
        poller.close(sock)
        raise
    link.carrier.read_again()  # what came while nobody owned the socket made its edge already
    try:
        await asyncio.shield(link.welcomed)
    except asyncio.CancelledError:
        link.close("cancelled")
        raise
    return link


async def _reach(
    loop: asyncio.AbstractEventLoop, poller: Poller, address: Address
) -> socket.socket:
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
        loop, poller, [address], timeout_s=_CONNECT_S, connected=connected, failed=failed,
        for_peer=False,
    )  # fmt: skip
    try:
        return await reached
    except asyncio.CancelledError:
        attempt.cancel()
        if reached.done() and not reached.cancelled() and reached.exception() is None:
            poller.close(reached.result())  # connected, and cancelled before we were told
        raise
