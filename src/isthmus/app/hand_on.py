"""Handing on: an agent that asks for another server is joined to it, whichever server it met.

Where a balancer sends an agent to the same server every time, the others are reached through that
one. The agent names the server that it wants in its ClientHello (ALPN ``isthmus/1@ID``), which is
looked at before TLS; TLS itself is between the agent and that server, and passes through.

Every agent port that knows peers does this, so a wrong address could send a connection in circles.
In a circle nobody ever answers: connections that wait for their first byte are bounded in number
and in time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable

from isthmus.app.peers import Peers
from isthmus.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import DialFailure
from isthmus.links.carrier import keep_queue_short
from isthmus.links.link import HANDSHAKE_S
from isthmus.net.peek import HelloPeek
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.socket_end import SocketEnd
from isthmus.observe.logs import OncePer
from isthmus.observe.metrics import HandOn, ServerMetrics
from isthmus.tunnel.end import End, Ending, join
from isthmus.values import HostPort, ServerId
from isthmus.wire.link import asked_for

DIAL_S = 5.0
MOST_WAITING = 256
# Links ping after 10 s of silence and give up after 20: who is quiet for longer has gone.
_SILENCE_S = 60.0
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.server")

#: Serves a connection here: the socket, events for its owner, and the time left for its handshake.
Serve = Callable[[socket.socket, int, float], None]


class Passing:
    """One connection that is handed on, from the dial to the last byte."""

    __slots__ = ("_bytes", "_dial", "_far", "_handing", "_left", "_timer", "client", "peer_id")

    def __init__(self, handing: HandingOn, sock: socket.socket, peer_id: ServerId) -> None:
        self._handing = handing
        self._far: SocketEnd | None = None
        self._dial: DirectDial | None = None
        self._left = 1
        self._bytes = 0
        self.peer_id = peer_id
        self.client = SocketEnd(sock, handing.poller)
        self.client.on_done = self._end_done
        self._timer = handing.loop.call_later(HANDSHAKE_S, self._look)

    def dial(self, address: HostPort) -> None:
        """Dial the server that was asked for."""
        dial = self._handing.dialer.dial(
            address, timeout_s=DIAL_S, reached=self._reached, failed=self._failed
        )
        if self._far is None and self._left:
            self._dial = dial

    @property
    def answered(self) -> bool:
        """The server that was asked for has said something."""
        return self.client.bytes_written > 0

    def abort(self, reason: Ending) -> None:
        """Reset both sides."""
        self.client.abort(reason)
        if self._far is not None:
            self._far.abort(reason)

    def _reached(self, far: SocketEnd) -> None:
        self._dial = None
        if self._handing.leads_here(far.sock):
            far.abort(Ending.CANCELLED)
            self._give_up(HandOn.LOOP, "its address is our own")
            return
        self._far = far
        self._left += 1
        far.on_done = self._end_done
        for end in (self.client, far):
            keep_queue_short(end.sock)
        self._handing.count(HandOn.JOINED, self.peer_id)
        join(self.client, far)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        self._dial = None
        self._give_up(HandOn.UNREACHED, detail or failure.value)

    def _give_up(self, result: HandOn, why: str) -> None:
        # Not served here instead: we are not whom it asked for, and it will try again.
        self._handing.count(result, self.peer_id, why)
        self.client.abort(Ending.CANCELLED)

    def _look(self) -> None:
        """Once the handshake's time is over, and then now and then: end what has gone silent."""
        carried = self.client.bytes_written + (self._far.bytes_written if self._far else 0)
        if not self.answered or carried == self._bytes:
            if not self.answered:
                self._handing.say(self.peer_id, "no answer in time")
            self.abort(Ending.TIMED_OUT)
            return
        self._bytes = carried
        self._timer = self._handing.loop.call_later(_SILENCE_S, self._look)

    def _end_done(self, end: End, ending: Ending) -> None:
        if self._dial is not None:  # it left before its server was reached
            self._dial.cancel()
            self._dial = None
            self._handing.count(HandOn.LEFT, self.peer_id)
        self._left -= 1
        if not self._left:
            self._timer.cancel()
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
    ) -> None:
        """``lost(sock, late)`` hears of those that broke off, or were late, before their hello."""
        self.loop = loop
        self.poller = poller
        self._resolver = Resolver(loop)
        self.dialer = DirectDialer(loop, poller, self._resolver)
        self._peers = peers
        self._metrics = metrics
        self._once = once
        self._lost = lost
        self._looking: set[HelloPeek] = set()
        self._waiting: set[Passing] = set()
        self._passing: set[Passing] = set()
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

        def seen(look: HelloPeek, names: tuple[str, ...], events: int) -> None:
            self._looking.discard(look)
            wanted = asked_for(names)
            address = self._peers.address_of(wanted) if wanted else None
            if address is None:
                serve(look.sock, events, max(0.0, look.due_at - self.loop.time()))
            else:
                self._hand_on(look.sock, events, ServerId(wanted), address)

        self._looking.add(
            HelloPeek(
                self.loop, self.poller, sock, timeout_s=HANDSHAKE_S, seen=seen, lost=self._gone
            )
        )

    def _gone(self, look: HelloPeek, late: bool) -> None:
        self._looking.discard(look)
        self._lost(look.sock, late)

    def _hand_on(
        self, sock: socket.socket, events: int, peer_id: ServerId, address: HostPort
    ) -> None:
        passing = Passing(self, sock, peer_id)
        self._passing.add(passing)
        if len(self._waiting) >= MOST_WAITING:
            self._waiting = {each for each in self._waiting if not each.answered}
        if len(self._waiting) >= MOST_WAITING:
            self.count(HandOn.TOO_MANY, peer_id, f"{MOST_WAITING} wait for an answer already")
            passing.abort(Ending.CANCELLED)
            return
        self._waiting.add(passing)
        passing.dial(address)
        passing.client.on_events(events)

    def leads_here(self, sock: socket.socket) -> bool:
        """Tell whether a connection that we made has come to our own agent port."""
        try:
            here, there = sock.getsockname(), sock.getpeername()
        except OSError:
            return False  # it is gone already
        far = _plain(there[0])
        for host, port in self.listening:
            bound = _plain(host)
            if port != there[1]:
                continue
            # Nobody else can listen at any address with the port that we have at all of them.
            if bound == far or (
                bound.is_unspecified and (far == _plain(here[0]) or far.is_loopback)
            ):
                return True
        return False

    def over(self, passing: Passing) -> None:
        """A connection has ended."""
        self._passing.discard(passing)
        self._waiting.discard(passing)

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
            look.close()
        self._looking.clear()
        for passing in list(self._passing):
            passing.abort(Ending.DRAINED)
        self._resolver.close()


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without its zone; IPv4 as such also on a dual-stack socket."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
