"""The connections of an apiserver proxy: the bounds, what is counted, and who is idle too long.

What happens to one of them is connection.py; the program around them
program.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial

from isthmus.errors import DialFailure
from isthmus.frame.descriptors import most_connections
from isthmus.frame.observe.tracing import Span, Tracing
from isthmus.frame.tunnels import TunnelTable
from isthmus.logs import OncePer, log
from isthmus.net.accepted import endpoint
from isthmus.net.gate import admitted, reset, source_elsewhere
from isthmus.net.poller import Poller
from isthmus.net.rules_places import Full, Places
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.apiserver_proxy.checks import Checker
from isthmus.programs.apiserver_proxy.connection import Connection
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics, ProxyRefusal
from isthmus.programs.apiserver_proxy.planning import Prepared
from isthmus.programs.apiserver_proxy.rules import Upstreams
from isthmus.programs.apiserver_proxy.ways import LOOK_AGAIN_S, Ways
from isthmus.tunnel.end import Ending
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import Asking, DialRequest, HostPort, Identity, TunnelId
from isthmus.wire.proxy_protocol import IpPort

_QUIET_S = 30.0
_LOOK_AGAIN_S = 0.05
_log = logging.getLogger("isthmus.apiserver_proxy")
_NO_PLACE = {
    Full.TOO_MANY: ProxyRefusal.TOO_MANY,
    Full.TOO_MANY_OF_SOURCE: ProxyRefusal.TOO_MANY_OF_SOURCE,
    Full.MEMORY: ProxyRefusal.TOO_MANY_OF_SOURCE,
}

#: Where a connection comes from and where it goes: there is one such at a time.
_Pair = tuple[IpPort, IpPort]


class ProxyTunnels(TunnelTable):
    """The table of open tunnels, which also knows who is idle."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: ApiserverProxyMetrics) -> None:
        super().__init__(loop, metrics)
        self._moved: dict[TunnelId, tuple[int, float]] = {}

    def reset_idle(self, *, now: float, idle_s: float) -> int:
        """Reset the tunnels that carried no byte for so long; how many those were.

        A byte is seen at the next look: look several times within the time.
        """
        before, self._moved = self._moved, {}
        idle = []
        for tunnel in self._open.values():
            carried = tunnel.client.bytes_written + tunnel.far.bytes_written
            seen, since = before.get(tunnel.id, (-1, now))
            if carried != seen:
                since = now
            self._moved[tunnel.id] = (carried, since)
            if now - since >= idle_s:
                idle.append(tunnel)
        for tunnel in idle:
            tunnel.abort(Ending.TIMED_OUT)
        return len(idle)


class Connections:
    """Every connection of a proxy, from accept to the end; the Owner that they ask."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        prepared: Prepared,
        *,
        metrics: ApiserverProxyMetrics,
        once: OncePer,
        uplink_of: Callable[[socket.socket], str],
    ) -> None:
        """``uplink_of`` names the uplink that a connection came in by, which none should."""
        self._loop = loop
        self._metrics = metrics
        self._once = once
        self._uplink_of = uplink_of
        self.plan = prepared.plan
        self._pairs = prepared.pairs
        self.places = Places(self.most, prepared.plan.max_connections_per_source)
        self.poller = Poller(loop)
        self.upstreams = Upstreams(prepared.plan.upstreams)
        self.ways = Ways(loop, self.poller, prepared)
        self.checker = Checker(loop, self.poller, self.ways, self.upstreams, metrics, prepared)
        self.tunnels = ProxyTunnels(loop, metrics)
        self.tracing: Tracing | None = None
        self._dialing: set[Connection] = set()
        # A connection that comes in as one of ours went out closes a circle.
        self._came: dict[_Pair, Connection] = {}
        self._went: dict[_Pair, HostPort] = {}
        self._plan_changed = asyncio.Event()
        self._look = asyncio.Event()

    def __len__(self) -> int:
        return len(self._dialing) + len(self.tunnels)

    @property
    def most(self) -> int:
        """How many there may be."""
        return max(1, most_connections(self.plan.max_connections * self._pairs) // self._pairs)

    @property
    def dialing(self) -> int:
        """How many wait for an upstream."""
        return len(self._dialing)

    def adopt(self, prepared: Prepared) -> None:
        """Do as this plan says from now on; what is open goes on."""
        self.plan = prepared.plan
        self._pairs = prepared.pairs
        self.places.resize(self.most, prepared.plan.max_connections_per_source)
        self.upstreams.replace(prepared.plan.upstreams)
        self.ways.adopt(prepared)
        self.checker.adopt(prepared)
        self._plan_changed.set()
        self._look.set()

    async def wait_empty(self) -> None:
        """Wait until there is none."""
        while len(self):
            await self.tunnels.wait_empty()
            if len(self):  # soon a tunnel, or gone
                await asyncio.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Reset them all."""
        for connection in list(self._dialing):
            connection.refuse(ProxyRefusal.LEFT)
        self.tunnels.abort_all(Ending.DRAINED)
        self.ways.close()

    # What is done now and then.

    async def watch_idle(self) -> None:
        """Reset idle connections for ever."""
        while True:
            self._plan_changed.clear()
            idle_s = self.plan.idle_timeout_s
            try:
                async with asyncio.timeout(min(idle_s / 8, 30.0) if idle_s else None):
                    await self._plan_changed.wait()
            except TimeoutError:
                self.tunnels.reset_idle(now=self.now(), idle_s=idle_s)

    async def watch_names(self) -> None:
        """Look names up for ever: now and then, and soon when an upstream cannot be reached."""
        while True:
            self._look.clear()
            failed = await self.ways.look_all_up(older_than_s=LOOK_AGAIN_S)
            for at, why in failed.items():
                self._once.log(
                    ("name", at), _QUIET_S, _log, logging.WARNING,
                    "an upstream's name cannot be looked up", upstream=str(at), reason=why,
                )  # fmt: skip
            try:
                async with asyncio.timeout(self.plan.resolve_every_s):
                    await self._look.wait()
                await asyncio.sleep(LOOK_AGAIN_S)  # one look for all that failed meanwhile
            except TimeoutError:
                pass

    # Accepting.

    def accept(self, sock: socket.socket) -> None:
        """Take a new connection."""
        self._metrics.accepted += 1
        try:
            source, destination = endpoint(sock.getpeername()), endpoint(sock.getsockname())
            counted_as = source_elsewhere(sock)
        except OSError:  # gone already
            sock.close()
            self._metrics.refusals[ProxyRefusal.LEFT] += 1
            return
        refusal, detail = None, ""
        upstream = self._went.get((source, destination))
        if upstream is not None:
            self.upstreams.avoid(upstream, now=self.now())
            refusal, detail = ProxyRefusal.CIRCLE, f"upstream {upstream}"
        elif self._uplink_of(sock):
            refusal = ProxyRefusal.OUTSIDE
        if refusal is not None:
            SocketEnd(sock, self.poller).abort(Ending.CANCELLED)
            self._count(refusal, str(source), detail)
            return
        guest = admitted(sock, self.places, counted_as, self._refuse)
        if guest is None:
            return
        if not self.upstreams.any_up:
            self._metrics.last_resort += 1
        connection = Connection(self, guest, source=source, destination=destination)
        account = self.places.account(counted_as)
        if account is not None:
            connection.client.charge_to(account)
            account.close()
        self._dialing.add(connection)
        self._came[source, destination] = connection
        connection.start()

    def _refuse(self, sock: socket.socket, why: Full, source: str) -> None:
        """See net.gate.Refuse; whatever is spoken here, a reset is all that there is to say."""
        self._count(_NO_PLACE[why], source, "")
        reset(sock)

    # What connections ask; see Owner.

    def now(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def trace(self, target: HostPort) -> Span | None:
        """A span for a dial, where somebody traces."""
        if self.tracing is None:
            return None
        return self.tracing.connect(Asking(), connection_id="", target=target)

    def upstream_failed(
        self, connection: Connection, at: HostPort, failure: DialFailure, detail: str
    ) -> None:
        """Count a dial that failed, say it now and then, and look what is wrong."""
        self._metrics.dial_failed(failure, self.now() - connection.dialed_at)
        self._metrics.upstream_failed(str(at))
        self.checker.hurry(at)
        self._look.set()
        self._once.log(
            ("upstream", at), _QUIET_S, _log, logging.WARNING, "an upstream cannot be reached",
            upstream=str(at), reason=detail or failure.value,
        )  # fmt: skip

    def reached(self, connection: Connection, far: SocketEnd, at: HostPort) -> None:
        """Join a connection to its upstream."""
        self._forget(connection)
        self._metrics.dial_succeeded(self.now() - connection.dialed_at)
        self._metrics.retried += connection.tried > 1
        self.tunnels.open_here(
            DialRequest(at, Identity(str(connection.source), kind="address"), "tcp"),
            client=connection.client,
            far=far,
            on_ended=partial(self._ended, at, self._note(far, at)),
            payer=connection.client.payer,
        )

    def _forget(self, connection: Connection) -> None:
        self._dialing.discard(connection)
        pair = connection.source, connection.destination
        if self._came.get(pair) is connection:  # a reset frees the pair before we hear of it
            del self._came[pair]

    def _note(self, far: SocketEnd, at: HostPort) -> _Pair | None:
        """Remember a connection of ours, and end the one that it is, if it came in here already."""
        if far.sock.family == socket.AF_UNIX:  # which is the inside of a proxy's TLS
            return None
        try:
            pair = endpoint(far.sock.getsockname()), endpoint(far.sock.getpeername())
        except OSError:  # gone already
            return None
        self._went[pair] = at
        again = self._came.get(pair)
        if again is not None:
            self.upstreams.avoid(at, now=self.now())
            again.refuse(ProxyRefusal.CIRCLE, f"upstream {at}")
        return pair

    def _ended(self, at: HostPort, pair: _Pair | None, _: Tunnel, _s: float) -> None:
        if pair is not None:
            self._went.pop(pair, None)
        self.upstreams.let_go(at)

    def refused(self, connection: Connection, why: ProxyRefusal, detail: str) -> None:
        """Count a connection that is over before it was joined, and reset it."""
        self._forget(connection)
        self._count(why, str(connection.source), detail)
        connection.client.abort(Ending.CANCELLED)

    def _count(self, why: ProxyRefusal, source: str, detail: str) -> None:
        self._metrics.refusals[why] += 1
        if why is ProxyRefusal.LEFT:
            log(_log, logging.DEBUG, "client left", source=source)
            return
        self._once.log(
            ("refused", why), _QUIET_S, _log, logging.WARNING, "connection reset",
            reason=why.value, source=source, detail=detail,
        )  # fmt: skip
