"""Other servers: which there are, and handing agents that ask for one of them on to it.

Where a load balancer sends an agent to the same server every time, the agent reaches the others
through that one. It names the server that it wants in its ClientHello (ALPN ``isthmus/1@ID``),
which this server reads before TLS; TLS itself is between the agent and that server, and passes
through.

An agent that asks has proved nothing yet, so everything is bounded: how many wait for one peer, how
many pass through in all, and how long one stays when either side is done. Every agent port that
knows peers hands on, so a wrong address could send a connection in circles: the random of its
ClientHello tells one that comes back.
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

_MOST_TOLD = 128  # agents believe no more


class Peers:
    """Every other server by its id: those that flags name, and those that have a Lease.

    ``siblings`` are other workers of this one: agents are told of them, but those that ask for one
    do not come here, for its parent hands them over.
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
        """The ids of all servers, our own included, sorted; empty when we know no other."""
        others = {*self._all, *self._siblings}
        return tuple(sorted({self._own, *others})[:_MOST_TOLD]) if others else ()

    @property
    def addresses(self) -> Mapping[ServerId, HostPort]:
        """Every other server whose agent port is known."""
        return self._all

    def address_of(self, server_id: str) -> HostPort | None:
        """Where another server's agent port is; None for ourselves and for strangers."""
        return self._all.get(ServerId(server_id))

    def views(self) -> tuple[KnownServerView, ...]:
        """Show every other server that is known, and from what."""
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
        """Take the servers that have a Lease; True if the addresses changed. Flags win."""
        before = self._all
        self._leased = dict(found)
        there = {server_id: address for server_id, address in found.items() if address is not None}
        self._all = {**there, **self._named}
        for known in (self._own, *self._siblings):
            self._all.pop(known, None)
        return self._all != before


DIAL_S = 5.0
#: That wait for the first byte of one peer; at most a quarter of all that may pass.
MOST_WAITING = 256
#: Of the descriptors that this process may have; each that passes takes two.
_SHARE = 4
_UNLIMITED = 65_536
#: A peer that could not be dialed is not dialed again for so long: agents come in crowds.
FAILED_FOR_S = 1.0
# Links ping after 10 s of silence and give up after 20: who is quiet for longer has gone.
_SILENCE_S = 60.0
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.server")

#: Serves a connection here: the socket, events for its owner, and the time left for its handshake.
Serve = Callable[[socket.socket, int, float], None]


def most_passing() -> int:
    """How many may pass through in all: with them, half of the descriptors are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (_UNLIMITED if soft == resource.RLIM_INFINITY else soft) // _SHARE)


def _unheard() -> None:
    """Nobody asks any more."""


class _Client(SocketEnd):
    """The agent's side of a connection that passes; it hears first when either side is done."""

    __slots__ = ("on_eof",)

    def __init__(self, sock: socket.socket, poller: Poller, on_eof: Callable[[], None]) -> None:
        self.on_eof = on_eof
        super().__init__(sock, poller)

    def got_eof(self) -> None:
        """The agent is done; see SocketEnd."""
        super().got_eof()
        self.on_eof()

    def write_eof(self) -> None:
        """The server is done; see SocketEnd."""
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
        # Until it is joined its hello stays where it is: it may turn out that TLS is done here.
        self.client.pause_reading()

    def dial(self, address: HostPort, serve: Serve) -> None:
        """Dial the server that was asked for; ``serve`` gets the agent if that is ourselves."""
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
        """The server that was asked for has said something."""
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
        """Our own address is listed under another id: we are whom it means, if anybody is."""
        self._handing.count(HandOn.LOOP, self.peer_id, "its address is our own")
        client, serve = self.client, self._serve
        assert serve is not None
        shut = (RDHUP if client.peer_shut else 0) | (HUP if client.hung_up else 0)
        client.on_done = nobody_listens
        client.closed = True  # for us; the socket lives on, and nothing has been read from it
        self._end_done(client, Ending.CLEAN)
        left_s = max(0.0, self._due_at - self._handing.loop.time())
        serve(client.sock, IN | OUT | shut, left_s)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        self._dial = None
        self._handing.not_reached(self.peer_id)
        # Not served here instead: we are not whom it asked for, and it will try again.
        self._handing.count(HandOn.UNREACHED, self.peer_id, detail or failure.value)
        self.client.abort(Ending.CANCELLED)

    def _look(self) -> None:
        """Once the handshake's time is over, and then now and then: end what has gone silent."""
        carried = self._carried
        if not self.answered or carried == self._bytes:
            if not self.answered:
                self._handing.say(self.peer_id, "no answer in time")
            self.abort(Ending.TIMED_OUT)
            return
        self._bytes = carried
        self._timer = self._handing.loop.call_later(_SILENCE_S, self._look)

    def _one_is_done(self) -> None:
        """One side sent its end of file. A link never half-closes: the other has little time."""
        if not self._leaving and self._left:
            self._leaving = True
            self._timer.cancel()
            self._timer = self._handing.loop.call_later(GOODBYE_S, self._let_go)

    def _let_go(self) -> None:
        """Close both sides, as soon as what waits has been written, which is soon or never."""
        for end in (self.client, self._far):
            if end is not None:
                end.write_eof()
                end.let_go()
        if self._left:
            self._timer = self._handing.loop.call_later(GOODBYE_S, self.abort, Ending.TIMED_OUT)

    def _end_done(self, end: End, ending: Ending) -> None:
        if self._dial is not None:  # it left before its server was reached
            self._dial.cancel()
            self._dial = None
            self._handing.count(HandOn.LEFT, self.peer_id)
        self._left -= 1
        if not self._left:
            self._timer.cancel()
            self.client.on_eof = _unheard  # else only a collection would free us
            self._handing.over(self)


class HandingOn:
    """Looks at what agents ask for, and hands on those that ask for another server."""

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
        """``lost(sock, late)`` hears of those that broke off, or were late, before their hello.

        Those that are looked at are among the ``strangers``.
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
        #: Where our own agent port listens.
        self.listening: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._passing)

    @property
    def looking(self) -> int:
        """How many connections have not said yet what they want."""
        return len(self._looking)

    def accept(self, sock: socket.socket, serve: Serve) -> None:
        """Look at a new connection; ``serve`` gets it unless it asks for a peer."""

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
                # Not served here instead: we are not whom it asked for, and it will try again.
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
        """Another needs its place more."""
        self._no_longer(look)
        look.close()

    def _refusal(
        self, hello: ClientHello, peer_id: ServerId
    ) -> tuple[HandOn, ServerId, str] | None:
        """Why a connection cannot be handed on now; None if it can."""
        if hello.random in self._passing:
            # It came to us before, and was handed on: its way is a circle.
            return HandOn.LOOP, peer_id, "its address leads back here"
        if self.loop.time() < self._failed_until.get(peer_id, 0.0):
            return HandOn.UNREACHED, peer_id, ""  # why was said a moment ago
        most = most_passing()
        if len(self._passing) >= most:
            return HandOn.TOO_MANY, peer_id, f"{most} pass through already"
        most = min(MOST_WAITING, max(1, most // 4))
        waiting = self._waiting.get(peer_id, set())
        if len(waiting) >= most:
            waiting -= {each for each in waiting if each.answered}
        if len(waiting) >= most:
            return HandOn.TOO_MANY, peer_id, f"{most} wait for its answer already"
        return None

    def not_reached(self, peer_id: ServerId) -> None:
        """A peer could not be dialed: whoever asks for it now need not wait to hear the same."""
        now = self.loop.time()
        self._failed_until = {k: until for k, until in self._failed_until.items() if until > now}
        self._failed_until[peer_id] = now + FAILED_FOR_S

    def drain(self) -> None:
        """Hand nobody on any more: what passes through us ends with us.

        Agents hear that we drain by their own links, and make those that may pass here anew.
        """
        self._draining = True

    def leads_here(self, sock: socket.socket) -> bool:
        """Tell whether a connection that we made has come to our own agent port."""
        try:
            here, there = sock.getsockname(), sock.getpeername()
        except OSError:
            return False  # it is gone already
        far = plain_address(there[0])
        for host, port in self.listening:
            bound = plain_address(host)
            if port != there[1]:
                continue
            # Nobody else can listen at any address with the port that we have at all of them.
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
        """Count what became of one, and say it now and then."""
        self._metrics.handed_on(result)
        if result is HandOn.JOINED:
            self._once.log(
                ("handed on", peer_id), _QUIET_S, _log, logging.INFO, "agent handed on",
                server_id=peer_id, passing=len(self),
            )  # fmt: skip
        elif why:
            self.say(peer_id, why)

    def say(self, peer_id: ServerId, why: str) -> None:
        """Say now and then that a server cannot be reached."""
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
