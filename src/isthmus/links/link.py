"""A link between a server and an agent: the TLS handshake, hello and welcome, dials, its end.

The protocol on it is a talk (talk.py): our own (mux.py) or konnectivity's
(grpc.py), as ALPN decides. This module has what both sides share; server_side.py and
agent_side.py add their halves. dial/rules_agents.py chooses links.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from isthmus.errors import LinkStage, ProtocolError
from isthmus.links.talk import Incoming, LastingTalk, Talk, Told
from isthmus.net.carriers import CarrierOwner, TlsCarrier
from isthmus.net.connection_gate import source_of
from isthmus.net.contexts import peer_identity
from isthmus.net.poller import Poller
from isthmus.tunnel.budget import HANDSHAKE_BYTES, UNBOUNDED, Account, Budget, Deposit
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import (
    ANONYMOUS,
    DialId,
    DialRequest,
    Identity,
)

HANDSHAKE_S = 10.0
GOODBYE_S = 2.0
_TICK_S = 1.0
_STUCK_TICKS = 2
#: A ping unanswered for longer means that the agent hardly runs, if at all.
_SILENT_S = 2.0
#: A ping that waits for longer, while nothing else is heard, is that of a connection that is gone.
SUSPECT_S = 5.0
#: The part of a slow round trip that counts a tick later: one quick answer proves little.
_REMEMBERED = 0.7
#: The most characters of the peer's client names, for their accounts.
_MOST_KEY_CHARS = 256
#: Keep the queue in this program, where streams take turns, not in the kernel, where they cannot.
NOTSENT_LOWAT_BYTES = 128 * 1024
_TCP_NOTSENT_LOWAT = 25
_numbers = itertools.count(1)


def keep_queue_short(sock: socket.socket) -> None:
    """Limit the unsent bytes in the kernel."""
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)


class ConnectionOwner(CarrierOwner, Protocol):
    """Who made a link's connection."""

    def disconnected(self, why: str) -> None:
        """The connection broke without a goodbye."""


class LinkSocket(TlsCarrier):
    """The connection of one link."""

    always_out = True
    owner: ConnectionOwner
    __slots__ = ()

    def __init__(
        self,
        owner: ConnectionOwner,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
    ) -> None:
        if sock.family != socket.AF_UNIX:  # a UNIX socket is used behind an https proxy
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_queue_short(sock)
        super().__init__(owner, sock, poller, context, server_hostname=server_hostname)

    @override
    def broken(self) -> None:
        self.owner.disconnected("connection lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTerms:
    """The common parameters of all links of a program.

    Memory use is charged to the peer's account in the ``budget``. ``only`` is the value of
    ``--link``; ``process`` is the prefix of connection ids, and ``packets`` counts those of
    konnectivity's protocol. ``resume_s`` is how long a link is kept without a connection: a
    server tells its agents, an agent only whether; 0 is not at all.
    """

    loop: asyncio.AbstractEventLoop
    poller: Poller
    limits: Limits = Limits()
    budget: Budget = UNBOUNDED
    only: str = "auto"
    process: str = ""
    resume_s: float = 0.0
    packets: PacketCounts = field(default_factory=PacketCounts)


class Link:
    """One side of a link; ``on_closed`` is called exactly once."""

    #: The peer acts for many clients, each of which has an account inside the peer's.
    divides = False

    def __init__(
        self,
        terms: LinkTerms,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
        on_dial: Callable[[Incoming], None],
        on_closed: Callable[[Link], None],
        handshake_s: float | None = None,
    ) -> None:
        """``handshake_s`` is the time from now to the welcome; ``HANDSHAKE_S`` if None."""
        self.id = next(_numbers)
        self.terms = terms
        self.loop = loop = terms.loop
        self.limits = terms.limits
        self.on_dial = on_dial
        self.peer_address = peer_of(sock)
        self.source = source_of(sock)
        self.account = terms.budget.account(self.source)
        self._handshake = Deposit(self.account, HANDSHAKE_BYTES)
        self.version = ""  # of the program at the other end, if known
        self.identity: Identity = ANONYMOUS
        self.opened_at = loop.time()
        self.ready = False
        self.was_ready = False
        self.draining = False
        #: For how long it can be without a connection, and since when it is.
        self.resume_s = 0.0
        self.suspended_at: float | None = None
        self.lasting: LastingTalk | None = None  # the talk, if both sides agreed to that
        self.resumes = 0
        self._bytes_before = (0, 0)  # in and out, by connections that were replaced
        self.stuck_ticks = 0
        self.closed_because = ""
        self._closing = ""
        self.stage = LinkStage.LOST
        self.failure: ssl.SSLError | None = None
        self.talk: Talk | None = None
        self._on_closed = on_closed
        self._progress = -1
        self._asked = False  # dialed since the last tick
        self._way_s = 0.0
        self._timer: asyncio.TimerHandle | None = loop.call_later(
            HANDSHAKE_S if handshake_s is None else handshake_s,
            self.lost, "handshake timed out", LinkStage.TIMED_OUT,
        )  # fmt: skip
        self.carrier = LinkSocket(
            self, sock, terms.poller, context, server_hostname=server_hostname
        )

    @property
    def peer_kind(self) -> str:
        """The kind of the peer: ``agent`` or ``server``."""
        raise NotImplementedError

    @property
    def peer_id(self) -> str:
        """The peer's id; empty until known."""
        raise NotImplementedError

    def __repr__(self) -> str:
        state = self.closed_because or ("ready" if self.ready else "opening")
        return f"<{type(self).__name__} #{self.id} {self.peer_address} {state}>"

    def payer(self, who: Identity) -> Account:
        """Open the account that pays for the peer's requests; the caller closes it."""
        if not self.divides:
            return self.account.join()
        return self.account.inside((who.kind[:_MOST_KEY_CHARS], who.name[:_MOST_KEY_CHARS]))

    def pays_as(self, peer: Hashable) -> None:
        """The peer is authenticated: charge it instead of its address."""
        before, self.account = self.account, self.account.budget.account(peer)
        if self.talk is not None:
            self.talk.pays_by(self.account)
        before.close()

    def choose_talk(self, alpn: str | None) -> Talk:
        """The talk for the negotiated protocol.

        Raises:
            ProtocolError: the protocol is not supported.
        """
        raise NotImplementedError

    # The carrier reports.

    def secured(self) -> None:
        """The TLS handshake is done: start the talk, if there is a common protocol."""
        self.identify()
        try:
            talk = self.talk = self.choose_talk(self.carrier.tls.selected_alpn_protocol())
        except ProtocolError as exc:
            self.lost(str(exc), LinkStage.TLS)
            return
        self.carrier.session = talk.session
        talk.begin()

    def identify(self) -> None:
        """The handshake has shown who the peer is."""
        self.identity = peer_identity(self.carrier.tls)
        if self.identity is not ANONYMOUS:
            self.pays_as(self.identity)

    def insecure(self, error: ssl.SSLError) -> None:
        """The TLS handshake failed."""
        self.failure = error
        self.lost(f"TLS handshake failed: {error.reason or error}", LinkStage.TLS)

    def violated(self, error: ProtocolError) -> None:
        """The peer violated the protocol: tell it and close this link; other links continue."""
        if not self.closed_because:
            if self.talk is not None:
                self.talk.violated()
                self.talk.flush()
            self.lost(str(error), LinkStage.PROTOCOL, Ending.PROTOCOL)

    def disconnected(self, why: str) -> None:
        """The connection broke: wait for another one, where both sides can."""
        if self.lasting is None or not self.ready or self._closing or self.closed_because:
            self.lost(why)
        elif self.suspended_at is None:
            self.suspend(why)

    def lost(
        self, why: str, stage: LinkStage = LinkStage.LOST, reason: Ending = Ending.LINK_LOST
    ) -> None:
        """The link is over: reset its tunnels, close the connection, report once."""
        if self.closed_because:
            return
        self.closed_because = self._closing or why
        if not self._closing or stage is not LinkStage.LOST:
            self.stage = stage
        self.ready = False
        self.suspended_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.talk is not None:
            self.talk.lost(reason)
        self._handshake.close()
        self.account.close()
        self.close_connection()
        self._on_closed(self)

    def close_connection(self) -> None:
        """Close the connection."""
        if self.lasting is not None and not self.carrier.closed:
            self.carrier.close_notify()  # or the peer would wait for another connection
        self.carrier.close()

    # Without a connection.

    @property
    def suspended(self) -> bool:
        """Whether the link has no connection and waits for another one."""
        return self.suspended_at is not None

    def suspend(self, why: str) -> None:
        """Keep the session; dials without an answer yet are tried elsewhere."""
        talk = self.lasting
        assert talk is not None
        self.suspended_at = self.loop.time()
        self._set_timer(self.resume_s, self.lost, f"{why}, and not resumed in time")
        talk.detach()
        self.carrier.close()
        self.on_suspended(why)
        talk.ask_elsewhere()

    def lasts(self, talk: LastingTalk, resume_s: float) -> None:
        """Both sides agreed that the link is kept for so long without a connection."""
        self.lasting = talk
        self.resume_s = resume_s

    def on_suspended(self, why: str) -> None:
        """Say that there is no connection now."""

    def on_resumed(self) -> None:
        """Say that there is one again."""

    def detach(self) -> int:
        """Hear nothing more by the present connection; gives how much of the session arrived."""
        assert self.lasting is not None
        return self.lasting.detach()

    def go_on(self, carrier: LinkSocket, offset: int) -> None:
        """Take another connection; the peer has everything before ``offset``.

        Raises:
            ProtocolError: that cannot be.
        """
        talk, before = self.lasting, self.carrier
        assert talk is not None
        self._bytes_before = (self.bytes_in, self.bytes_out)
        before.close()
        self.carrier = carrier
        carrier.owner = self
        self.peer_address = peer_of(carrier.sock)
        self.source = source_of(carrier.sock)
        self.suspended_at = None
        self.stuck_ticks, self._progress = 0, -1
        self.resumes += 1
        self._set_timer(_TICK_S, self._tick)
        talk.go_on(carrier, offset)
        self.on_resumed()

    @property
    def kept_bytes(self) -> int:
        """What was sent and is kept until the peer acknowledges it."""
        return self.lasting.kept_bytes if self.lasting is not None else 0

    @property
    def bytes_in(self) -> int:
        """What arrived, by all its connections."""
        return self._bytes_before[0] + self.carrier.bytes_in

    @property
    def bytes_out(self) -> int:
        """What was sent, by all its connections."""
        return self._bytes_before[1] + self.carrier.bytes_out

    def _set_timer(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(delay_s, call, *args)

    # Its life.

    def be_ready(self) -> None:
        """Hello and welcome are exchanged: dials may flow, and liveness is checked."""
        assert self.talk is not None
        self.ready = self.was_ready = True
        self._handshake.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_TICK_S, self._tick)
        self.talk.be_ready()

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask the peer for no new dials; open tunnels continue.

        A peer that has no other link may use this one until it closes, so that the restart of a
        lone server or agent fails no dial. ``turn_away`` resets such dials instead.
        """
        if self.talk is not None and not self.closed_because:
            self.talk.drain(turn_away=turn_away)

    def ignore_dials(self) -> None:
        """The link is about to close: start no more dials, and answer none.

        An unanswered dial was not done: the peer tries it elsewhere once the link is
        closed. A dial started now would become a tunnel that the end of the program resets.
        """
        self.on_dial = _ignore

    def told_to_drain(self) -> None:
        """The peer is draining: it accepts no new dials; open tunnels continue."""
        self.draining = True

    def refuse(self, reason: str) -> None:
        """Refuse the peer: tell it why, and close."""
        if self.talk is None or self.closed_because or self._closing:
            return
        self._closing = reason
        self.stage = LinkStage.REFUSED
        self.talk.refuse(reason)
        self._leave(reason)

    def close(self, why: str) -> None:
        """End the link in good order from our side: unsent data goes first, then the peer ends.

        It is closed when ``on_closed`` is called, at the latest after GOODBYE_S.
        """
        if self.talk is None or self.carrier.closed or not self.ready:
            self.lost(why)
        elif not self._closing:
            self._closing = why
            self.talk.go_away()
            self._leave(why)

    def _leave(self, why: str) -> None:
        assert self.talk is not None
        self.ready = False
        self.talk.flush()
        self.carrier.say_goodbye()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(GOODBYE_S, self.lost, why)

    @property
    def orderly(self) -> bool:
        """Whether one of the two sides ended the link deliberately."""
        if self.talk is not None and self.talk.peer_drains and self.stage is LinkStage.LOST:
            return True
        return bool(self._closing) and self.stage is not LinkStage.REFUSED

    @property
    def unsent(self) -> bool:
        """Whether data has not been passed to the kernel yet."""
        if self.suspended_at is not None:  # do not wait for a connection that may never come
            return False
        return self.carrier.out_bytes > 0 or (self.talk is not None and self.talk.unsent)

    # Dials.

    def open_dial(
        self,
        request: DialRequest,
        *,
        dial_id: DialId,
        timeout_s: float,
        told: Told,
        account: Account | None = None,
    ) -> BaseEnd | None:
        """Ask the peer to dial; None if the link is full.

        ``account`` pays for the tunnel; None: the peer's own.
        """
        if self.talk is None or not self.ready or self.suspended_at is not None:
            return None
        self._asked = True
        return self.talk.open_dial(
            request, dial_id=dial_id, timeout_s=timeout_s, told=told, account=account
        )

    @property
    def can_open(self) -> bool:
        """Whether a dial can be sent over this link."""
        if self.talk is None or self.suspended_at is not None:
            return False
        return self.ready and self.talk.can_open

    @property
    def full(self) -> bool:
        """Whether the link is at its limit of dials."""
        return self.ready and self.talk is not None and self.talk.full

    @property
    def takes_dials(self) -> bool:
        """Whether a dial should be sent over this link."""
        return not self.draining and not self.stuck and self.can_open

    @property
    def stuck(self) -> bool:
        """Whether it makes no progress or its peer does not answer: others are preferred."""
        return self.stuck_ticks >= _STUCK_TICKS

    @property
    def load(self) -> int:
        """The number of dials and tunnels on it."""
        return self.talk.load if self.talk is not None else 0

    @property
    def peer_host(self) -> str:
        return self.peer_address.rpartition(":")[0]

    @property
    def weight(self) -> float:
        """The load in tunnels: 64 KiB unsent, or 10 ms of latency, count as one more."""
        talk = self.talk
        if talk is None:
            return 0.0
        waiting = self.carrier.out_bytes + talk.waiting_bytes
        way_s = max(self._way_s, talk.round_trip_s, talk.unanswered_s)
        return talk.load + waiting / 65536 + way_s * 100

    @property
    def held_bytes(self) -> int:
        """Received bytes that full sinks have not taken."""
        return self.talk.held_bytes if self.talk is not None else 0

    @property
    def window_growth_bytes(self) -> int:
        """The total growth of its streams' windows."""
        return self.talk.window_growth_bytes if self.talk is not None else 0

    @property
    def window_growth_peak_bytes(self) -> int:
        """The largest total growth so far."""
        return self.talk.window_growth_peak_bytes if self.talk is not None else 0

    # Liveness.

    def _tick(self) -> None:
        talk = self.talk
        assert talk is not None
        self._timer = self.loop.call_later(_TICK_S, self._tick)
        if not talk.tick():
            self.lost("no byte heard for too long")
            return
        if self.closed_because:
            return
        lasting = self.lasting
        if lasting is not None and lasting.unanswered_s > SUSPECT_S < lasting.silent_s:
            self.disconnected(f"no answer for {SUSPECT_S:.0f} s")
            return
        if talk.worn:
            self.draining = True
            if not self.load or not talk.can_open:
                self.close("stream ids are used up")
                return
        # Liveness includes progress: a link whose unsent bytes do not move, or whose peer does not
        # answer while dials are sent there, is not chosen.
        self._way_s = max(talk.round_trip_s, self._way_s * _REMEMBERED)
        silent = talk.unanswered_s > _SILENT_S
        if self._asked:
            self._asked = False
            talk.probe()
        progress = self.carrier.bytes_out - self.carrier.out_bytes - talk.waiting_bytes
        unsent = self.carrier.out_bytes or talk.waiting_bytes
        if silent or (unsent and progress <= self._progress):
            self.stuck_ticks += 1
        else:
            self.stuck_ticks = 0
        self._progress = progress


def _ignore(incoming: Incoming) -> None:
    pass


def peer_of(sock: socket.socket) -> str:
    """The peer's address of a connection, for display."""
    if sock.family == socket.AF_UNIX:
        return "proxy"  # behind an https proxy, whose bridge has no address
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    host = str(host).removeprefix("::ffff:")  # an IPv4 peer of a dual-stack listener
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
