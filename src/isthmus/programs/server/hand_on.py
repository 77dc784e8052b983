"""Other servers: which there are, and handing agents on to them.

If a load balancer always sends an agent to the same server, the agent reaches the others
through that one. It names the requested server in its ClientHello (ALPN ``isthmus/1@ID``),
which this server reads before TLS; TLS itself is between the agent and that server, and passes
through.

The agent is not authenticated at this point, so everything is limited: how many connections wait
for one peer, how many pass through in total, and how long one stays after either side is done.
Every agent port that knows peers hands on, so a wrong address could cause a loop: the random of the
ClientHello identifies a connection that returns.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import DialFailure
from isthmus.frame.model.snapshot import KnownServerView
from isthmus.links.link import GOODBYE_S, HANDSHAKE_S, keep_queue_short
from isthmus.logs import OncePer
from isthmus.net.connection_gate import source_of
from isthmus.net.peek import HelloPeek
from isthmus.net.poller import HUP, IN, OUT, RDHUP, Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_slots import Strangers
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.server.metrics import HandOn, ServerMetrics
from isthmus.text.addresses import plain_address
from isthmus.tunnel.end import End, Ending, join, nobody_listens
from isthmus.values import HostPort, ServerId
from isthmus.wire.alpn import asked_for
from isthmus.wire.client_hello import ClientHello

_MOST_TOLD = 128  # agents accept no more


class Peers:
    """Every other server by its id: those named by flags, and those with a Lease.

    ``siblings`` are other workers of this server: agents learn their ids, but requests for one
    do not come here, because the parent hands them over.
    """

    def __init__(
        self,
        own: ServerId,
        named: Mapping[ServerId, HostPort],
        siblings: Collection[ServerId] = (),
    ) -> None:
        self._own = own
        self._siblings = frozenset(siblings)
        self._named = dict(named)
        self._all = dict(named)
        self._leased: Mapping[ServerId, HostPort | None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Peers of {self._own}: {', '.join(sorted(self._all)) or 'none'}>"

    @property
    def ids(self) -> tuple[ServerId, ...]:
        """The ids of all servers, including our own, sorted; empty if we know no other."""
        others = {*self._all, *self._siblings}
        return tuple(sorted({self._own, *others})[:_MOST_TOLD]) if others else ()

    @property
    def addresses(self) -> Mapping[ServerId, HostPort]:
        """Every other server whose agent port is known."""
        return self._all

    def address_of(self, server_id: str) -> HostPort | None:
        """The address of another server's agent port; None for ourselves and for unknown ids."""
        return self._all.get(ServerId(server_id))

    def views(self) -> tuple[KnownServerView, ...]:
        """The other known servers, and how each is known."""
        found = dict.fromkeys(self._leased, "lease")
        found.update(dict.fromkeys(self._named, "flag"))
        found.pop(self._own, None)
        found.update(dict.fromkeys(self._siblings, "worker"))
        return tuple(
            KnownServerView(
                server_id=server_id,
                known_by=known_by,
                address=str(self._named.get(server_id) or self._leased.get(server_id) or ""),
            )
            for server_id, known_by in sorted(found.items())[:_MOST_TOLD]
        )

    def leased(self, found: Mapping[ServerId, HostPort | None]) -> bool:
        """Set the servers found by Leases; True if the addresses changed. Flags win."""
        before = self._all
        self._leased = dict(found)
        there = {server_id: address for server_id, address in found.items() if address is not None}
        self._all = {**there, **self._named}
        for known in (self._own, *self._siblings):
            self._all.pop(known, None)
        return self._all != before


DIAL_S = 5.0
#: Connections waiting for the first byte of one peer; at most a quarter of all.
MOST_WAITING = 256
#: The part of the descriptors for connections that pass through; each takes two.
_SHARE = 4
_UNLIMITED = 65_536
#: The pause after a failed dial to a peer: agents arrive in large numbers.
FAILED_FOR_S = 1.0
# Links ping after 10 s of silence and give up after 20: a longer silence means a dead link.
_SILENCE_S = 60.0
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.server")

#: Serves a connection here: the socket, events for its owner, and the time left for its handshake.
Serve = Callable[[socket.socket, int, float], None]


def most_passing() -> int:
    """The limit of connections that pass through, which leaves half of the descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // _SHARE)


def _unheard() -> None:
    """Do nothing: replaces a callback."""


class _Client(SocketEnd):
    """The agent's side of a connection; notified first when either side is done."""

    __slots__ = ("on_eof",)

    def __init__(self, sock: socket.socket, poller: Poller, on_eof: Callable[[], None]) -> None:
        self.on_eof = on_eof
        super().__init__(sock, poller)

    def got_eof(self) -> None:
        """The agent half-closed; see SocketEnd."""
        super().got_eof()
        self.on_eof()

    def write_eof(self) -> None:
        """The server half-closed; see SocketEnd."""
        super().write_eof()
        self.on_eof()


class Passing:
    """One connection that is handed on, from the dial to the last byte."""

    __slots__ = (
        "_bytes", "_dial", "_due_at", "_far", "_handing", "_leaving", "_left", "_serve", "_timer",
        "client", "peer_id", "random",
    )  # fmt: skip

    def __init__(
        self, handing: HandingOn, look: HelloPeek, hello: ClientHello, peer_id: ServerId
    ) -> None:
        self._handing = handing
        self._far: SocketEnd | None = None
        self._dial: DirectDial | None = None
        self._serve: Serve | None = None
        self._left = 1
        self._leaving = False
        self._bytes = 0
        self._due_at = look.due_at
        self.peer_id = peer_id
        self.random = hello.random
        self._timer = handing.loop.call_later(HANDSHAKE_S, self._look)
        self.client = _Client(look.sock, handing.poller, self._one_is_done)
        self.client.on_done = self._end_done
        # Until it is joined its hello is not consumed: TLS may turn out to be done here.
        self.client.pause_reading()

    def dial(self, address: HostPort, serve: Serve) -> None:
        """Dial the requested server; ``serve`` is called if that is ourselves."""
        if not self._left:
            self._handing.count(HandOn.LEFT, self.peer_id)
            return
        self._serve = serve
        dial = self._handing.dialer.dial(
            address, timeout_s=DIAL_S, reached=self._reached, failed=self._failed
        )
        if self._far is None and self._left:
            self._dial = dial

    @property
    def answered(self) -> bool:
        """Whether the requested server has sent anything."""
        return self.client.bytes_written > 0

    @property
    def _carried(self) -> int:
        return self.client.bytes_written + (self._far.bytes_written if self._far else 0)

    def abort(self, reason: Ending) -> None:
        """Reset both sides."""
        self.client.abort(reason)
        if self._far is not None:
            self._far.abort(reason)

    def _reached(self, far: SocketEnd) -> None:
        self._dial = None
        if self._handing.leads_here(far.sock):
            far.abort(Ending.CANCELLED)
            self._serve_here()
            return
        self._far = far
        self._left += 1
        far.on_done = self._end_done
        for end in (self.client, far):
            keep_queue_short(end.sock)
        self._handing.count(HandOn.JOINED, self.peer_id)
        join(self.client, far)

    def _serve_here(self) -> None:
        """Our own address is listed under another id: serve the agent here."""
        self._handing.count(HandOn.LOOP, self.peer_id, "its address is our own")
        client, serve = self.client, self._serve
        assert serve is not None
        shut = (RDHUP if client.peer_shut else 0) | (HUP if client.hung_up else 0)
        client.on_done = nobody_listens
        client.closed = True  # for us; the socket stays open, and nothing has been read from it
        self._end_done(client, Ending.CLEAN)
        left_s = max(0.0, self._due_at - self._handing.loop.time())
        serve(client.sock, IN | OUT | shut, left_s)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        self._dial = None
        self._handing.not_reached(self.peer_id)
        # Not served here instead: the agent requested another server, and will retry.
        self._handing.count(HandOn.UNREACHED, self.peer_id, detail or failure.value)
        self.client.abort(Ending.CANCELLED)

    def _look(self) -> None:
        """After the handshake's time, and then periodically: end silent connections."""
        carried = self._carried
        if not self.answered or carried == self._bytes:
            if not self.answered:
                self._handing.say(self.peer_id, "no answer in time")
            self.abort(Ending.TIMED_OUT)
            return
        self._bytes = carried
        self._timer = self._handing.loop.call_later(_SILENCE_S, self._look)

    def _one_is_done(self) -> None:
        """One side sent its end of file. A link never half-closes, so the other has little time."""
        if not self._leaving and self._left:
            self._leaving = True
            self._timer.cancel()
            self._timer = self._handing.loop.call_later(GOODBYE_S, self._let_go)

    def _let_go(self) -> None:
        """Close both sides once waiting data is written, within a time limit."""
        for end in (self.client, self._far):
            if end is not None:
                end.write_eof()
                end.let_go()
        if self._left:
            self._timer = self._handing.loop.call_later(GOODBYE_S, self.abort, Ending.TIMED_OUT)

    def _end_done(self, end: End, ending: Ending) -> None:
        if self._dial is not None:  # the agent left before its server was reached
            self._dial.cancel()
            self._dial = None
            self._handing.count(HandOn.LEFT, self.peer_id)
        self._left -= 1
        if not self._left:
            self._timer.cancel()
            self.client.on_eof = _unheard  # breaks the reference cycle
            self._handing.over(self)


class HandingOn:
    """Reads which server agents request, and hands on requests for other servers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        *,
        peers: Peers,
        metrics: ServerMetrics,
        once: OncePer,
        lost: Callable[[socket.socket, bool], None],
        strangers: Strangers[Any] | None = None,
    ) -> None:
        """``lost(sock, late)`` is called for connections that broke off or timed out before their
        hello.

        Connections that are being read count as ``strangers``.
        """
        self._strangers: Strangers[Any] = strangers if strangers is not None else Strangers(0)
        self.loop = loop
        self.poller = poller
        self._resolver = Resolver(loop)
        self.dialer = DirectDialer(loop, poller, self._resolver)
        self._peers = peers
        self._metrics = metrics
        self._once = once
        self._lost = lost
        self._looking: set[HelloPeek] = set()
        self._passing: dict[bytes, Passing] = {}  # by the random of the hello
        self._waiting: dict[ServerId, set[Passing]] = {}
        self._failed_until: dict[ServerId, float] = {}
        self._draining = False
        #: The addresses of our own agent port.
        self.listening: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._passing)

    @property
    def looking(self) -> int:
        """The number of connections without a complete hello."""
        return len(self._looking)

    def accept(self, sock: socket.socket, serve: Serve) -> None:
        """Read a new connection's hello; ``serve`` gets it unless it requests a peer."""

        def seen(look: HelloPeek, hello: ClientHello, events: int) -> None:
            self._no_longer(look)
            wanted = asked_for(hello.alpn)
            address = self._peers.address_of(wanted) if wanted and not self._draining else None
            if address is None:
                serve(look.sock, events, max(0.0, look.due_at - self.loop.time()))
                return
            peer_id = ServerId(wanted)
            refusal = self._refusal(hello, peer_id)
            if refusal is None:
                passing = Passing(self, look, hello, peer_id)
                self._passing[hello.random] = passing
                self._waiting.setdefault(peer_id, set()).add(passing)
                passing.client.on_events(events)
                passing.dial(address, serve)
            else:
                # Not served here instead: the agent requested another server, and will retry.
                self.count(*refusal)
                SocketEnd(look.sock, self.poller).abort(Ending.CANCELLED)

        look = HelloPeek(
            self.loop, self.poller, sock, timeout_s=HANDSHAKE_S, seen=seen, lost=self._gone
        )
        self._looking.add(look)
        self._strangers.add(look, source_of(sock))

    def _gone(self, look: HelloPeek, late: bool) -> None:
        self._no_longer(look)
        self._lost(look.sock, late)

    def _no_longer(self, look: HelloPeek) -> None:
        self._looking.discard(look)
        self._strangers.remove(look)

    def forget(self, look: HelloPeek) -> None:
        """Drop it in favour of another connection."""
        self._no_longer(look)
        look.close()

    def _refusal(
        self, hello: ClientHello, peer_id: ServerId
    ) -> tuple[HandOn, ServerId, str] | None:
        """Why a connection cannot be handed on now; None if it can."""
        if hello.random in self._passing:
            # The same connection was handed on before: a loop.
            return HandOn.LOOP, peer_id, "its address leads back here"
        if self.loop.time() < self._failed_until.get(peer_id, 0.0):
            return HandOn.UNREACHED, peer_id, ""  # the reason was just logged
        most = most_passing()
        if len(self._passing) >= most:
            return HandOn.TOO_MANY, peer_id, f"{most} connections already pass through"
        most = min(MOST_WAITING, max(1, most // 4))
        waiting = self._waiting.get(peer_id, set())
        if len(waiting) >= most:
            waiting -= {each for each in waiting if each.answered}
        if len(waiting) >= most:
            return HandOn.TOO_MANY, peer_id, f"{most} connections already wait for its answer"
        return None

    def not_reached(self, peer_id: ServerId) -> None:
        """A peer could not be dialed: fail further requests for it at once, for a while."""
        now = self.loop.time()
        self._failed_until = {k: until for k, until in self._failed_until.items() if until > now}
        self._failed_until[peer_id] = now + FAILED_FOR_S

    def drain(self) -> None:
        """Stop handing on: connections that pass through us end with us.

        Agents learn of the drain by their own links, and remake those that may pass here.
        """
        self._draining = True

    def leads_here(self, sock: socket.socket) -> bool:
        """Whether a connection that we made reached our own agent port."""
        try:
            here, there = sock.getsockname(), sock.getpeername()
        except OSError:
            return False  # already gone
        far = plain_address(there[0])
        for host, port in self.listening:
            bound = plain_address(host)
            if port != there[1]:
                continue
            # No other program can listen on a port that we have at all addresses.
            if bound == far or (
                bound.is_unspecified and (far == plain_address(here[0]) or far.is_loopback)
            ):
                return True
        return False

    def over(self, passing: Passing) -> None:
        """A connection has ended."""
        self._passing.pop(passing.random, None)
        waiting = self._waiting.get(passing.peer_id)
        if waiting is not None:
            waiting.discard(passing)
            if not waiting:
                del self._waiting[passing.peer_id]

    def count(self, result: HandOn, peer_id: ServerId, why: str = "") -> None:
        """Count a result, and log it at a limited rate."""
        self._metrics.handed_on(result)
        if result is HandOn.JOINED:
            self._once.log(
                ("handed on", peer_id), _QUIET_S, _log, logging.INFO, "agent handed on",
                server_id=peer_id, passing=len(self),
            )  # fmt: skip
        elif why:
            self.say(peer_id, why)

    def say(self, peer_id: ServerId, why: str) -> None:
        """Log at a limited rate that a server cannot be reached."""
        self._once.log(
            ("not handed on", peer_id, why), _QUIET_S, _log, logging.WARNING,
            "cannot hand an agent on", server_id=peer_id,
            address=str(self._peers.address_of(peer_id) or "unknown"), reason=why,
        )  # fmt: skip

    def close(self) -> None:
        """Reset everything that passes through."""
        for look in list(self._looking):
            self.forget(look)
        for passing in list(self._passing.values()):
            passing.abort(Ending.DRAINED)
        self._resolver.close()
