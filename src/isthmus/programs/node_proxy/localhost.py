"""Node ports on localhost: listens, and forwards connections to endpoints in this process.

rules/localhost.py decides which ports exist and which endpoint a connection gets. Clients are on
this machine; limits apply per user, as the kernel reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pwd
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import ConfigError, DialFailure
from isthmus.frame.forwarding import ForwardedConnection, ForwardedConnections
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.resources import most_connections
from isthmus.frame.tunnels import TunnelTable
from isthmus.logs import log
from isthmus.net.charging import PaidEarly
from isthmus.net.connect import Dialing
from isthmus.net.connection_gate import admitted, endpoint, reset
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.resolver import Resolver
from isthmus.net.rules_slots import AdmissionRefusal, ConnectionSlots
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.node_proxy.kernel.sockets import client_owner, listener_owner, processes_of
from isthmus.programs.node_proxy.metrics import LocalhostRefusal, NodeProxyMetrics
from isthmus.programs.node_proxy.rules.localhost import Affinity, LocalhostPort, localhost_ports
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.view import LocalhostPortView
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import IpPort

#: The time limit for reaching an endpoint, including those tried before it.
DIAL_TIMEOUT_S = 10.0
#: Clients whose user the kernel does not know any more, since their socket is closed.
UNKNOWN_USER = "unknown user"
#: Their share of all connections is one in this many. A user who uses up their own share may use up
#: this one: it is smaller than what the own share leaves to others.
_UNKNOWN_OF = 8
_QUIET_S = 30.0
_NO_PLACE = {
    AdmissionRefusal.TOO_MANY: LocalhostRefusal.TOO_MANY,
    AdmissionRefusal.TOO_MANY_OF_SOURCE: LocalhostRefusal.TOO_MANY_OF_SOURCE,
    AdmissionRefusal.MEMORY: LocalhostRefusal.MEMORY,
}
_log = logging.getLogger("isthmus.node_proxy")


class EndpointConnections:
    """The number of connections to each endpoint, including dials in progress."""

    def __init__(self) -> None:
        self.counts: Counter[HostPort] = Counter()

    def took(self, at: HostPort, /) -> None:
        self.counts[at] += 1

    def reached(self, at: HostPort, /) -> None:
        pass

    def failed(self, at: HostPort, /, *, now: float) -> None:
        self.let_go(at)

    def let_go(self, at: HostPort, /) -> None:
        self.counts[at] -= 1
        if not self.counts[at]:
            del self.counts[at]


class LocalhostConnection(ForwardedConnection[LocalhostRefusal]):
    """A client of this machine to be joined to an endpoint."""

    __slots__ = ("service", "user")

    #: The user, and the Service port that the client connected to.
    user: str
    service: str


class LocalhostConnections(ForwardedConnections[LocalhostConnection, LocalhostRefusal]):
    """Every connection to a node port on localhost, from accept to the end."""

    gone = LocalhostRefusal.LEFT
    all_failed = LocalhostRefusal.ENDPOINTS_DOWN

    def __init__(
        self, ground: Ground[NodeProxySettings, NodeProxyMetrics], tunnels: TunnelTable
    ) -> None:
        settings = ground.settings
        self.most = most_connections(settings.max_connections)
        places = ConnectionSlots(self.most, settings.max_connections_per_source)
        self.endpoints = EndpointConnections()
        super().__init__(ground, tunnels, places, self.endpoints)
        self._metrics = ground.metrics
        self._resolver = Resolver(ground.loop)  # never used: endpoints are addresses
        self._dialer = DirectDialer(ground.loop, self.poller, self._resolver)
        self.affinity = Affinity(secrets.randbelow)

    # Part.

    @override
    def start(self) -> None:
        self._metrics.localhost.open = lambda: len(self)

    @override
    def close(self) -> None:
        for connection in list(self.dialing):
            connection.refuse(LocalhostRefusal.LEFT)
        self._resolver.close()

    # Accept.

    def accept(self, sock: socket.socket, port: LocalhostPort | None) -> None:
        """Accept a connection to a port; ``port`` is None if it no longer exists."""
        self._metrics.localhost.accepted += 1
        try:
            source, ours = endpoint(sock.getpeername()), endpoint(sock.getsockname())
        except OSError:  # the client has disconnected
            sock.close()
            self._count(LocalhostRefusal.LEFT, UNKNOWN_USER)
            return
        user = _user_of(source, ours)
        refusal = None
        if not source.ip.is_loopback:
            # With route_localnet set, neighbours of the node reach this socket.
            refusal = LocalhostRefusal.OUTSIDE
        elif port is None:
            refusal = LocalhostRefusal.NO_ENDPOINT
        elif user == UNKNOWN_USER and self.places.taken.get(user, 0) > self.most // _UNKNOWN_OF:
            refusal = LocalhostRefusal.TOO_MANY_OF_SOURCE
        if refusal is not None or port is None:
            SocketEnd(sock, self.poller).abort(Ending.CANCELLED)
            self._count(refusal or LocalhostRefusal.NO_ENDPOINT, user, str(source))
            return
        guest = admitted(sock, self.places, user, self._refuse)
        if guest is None:
            return
        connection = LocalhostConnection(self, guest, PaidEarly(), source=source, destination=ours)
        connection.user, connection.service = user, str(port.key)
        self.pay(connection, user)
        self.dialing.add(connection)
        order = self.affinity.order(port, str(source.ip), now=self.now())
        connection.try_each(order, timeout_s=DIAL_TIMEOUT_S)

    def _refuse(self, sock: socket.socket, why: AdmissionRefusal, source: str) -> None:
        """See connection_gate.Refuse; the client's protocol is unknown, so nothing is sent."""
        self._count(_NO_PLACE[why], source)
        reset(sock)

    # Called by connections.

    @override
    def dial(self, at: HostPort, **how: Any) -> Dialing:
        return self._dialer.dial(at, **how)

    @override
    def target_failed(
        self, connection: LocalhostConnection, at: HostPort, failure: DialFailure, detail: str
    ) -> None:
        self._metrics.dial_failed(failure, self.now() - connection.dialed_at)
        self.ground.once.log(
            ("endpoint", at), _QUIET_S, _log, logging.WARNING,
            "cannot reach endpoint from localhost", service=connection.service,
            endpoint=str(at), reason=detail or failure.value,
        )  # fmt: skip

    @override
    def joining(self, connection: LocalhostConnection, far: SocketEnd, at: HostPort) -> str:
        return connection.service

    @override
    def refused(self, connection: LocalhostConnection, why: LocalhostRefusal, detail: str) -> None:
        self.dialing.discard(connection)
        self._count(why, connection.user, detail)
        connection.client.abort(Ending.CANCELLED)

    def _count(self, why: LocalhostRefusal, user: str, detail: str = "") -> None:
        self._metrics.localhost.refusals[why] += 1
        if why is not LocalhostRefusal.LEFT:
            self.ground.once.log(
                ("refused", why), _QUIET_S, _log, logging.WARNING,
                "connection to localhost reset", reason=why.value, source=user,
                detail=detail,
            )  # fmt: skip


def _user_of(client: IpPort, ours: IpPort) -> str:
    """The account of a connection: the user of its client.

    The kernel lists a socket that its process has closed under user 0, with inode 0.
    """
    owner = client_owner(client, ours)
    return f"uid {owner.uid}" if owner is not None and owner.inode else UNKNOWN_USER


FLAG = "--nftables-localhost-nodeports"
#: The retry interval for a port that another program has.
RETRY_S = 1.0
#: The number of log lines about new unavailable ports at a time.
_MOST_LINES = 20
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class LocalhostListeners(Part):
    """Listens on the node ports of the views in force."""

    def __init__(
        self,
        ground: Ground[NodeProxySettings, NodeProxyMetrics],
        connections: LocalhostConnections,
    ) -> None:
        self._ground = ground
        self._connections = connections
        self._by_family: dict[IpFamily, dict[HostPort, LocalhostPort]] = {}
        self._wanted: Mapping[HostPort, LocalhostPort] = {}
        self._open: dict[HostPort, Listener] = {}
        #: Ports that cannot be opened, and why.
        self._taken: dict[HostPort, str] = {}
        self._changed = asyncio.Event()
        self._leaving = False

    def heard_view(self, view: ServiceView) -> None:
        """A family's rules are in force: follow its node ports."""
        found = localhost_ports(view)
        if found != self._by_family.get(view.family):
            self._by_family[view.family] = found
            self._changed.set()

    # Part.

    @override
    def start(self) -> None:
        ours = self._ground.metrics.localhost
        ours.listening = lambda: len(self._open)
        ours.taken = lambda: len(self._taken)

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "localhost", self._run()

    @override
    def drain(self) -> None:
        self._leaving = True
        for listener in self._open.values():
            listener.stop()
        self._open.clear()

    @override
    def close(self) -> None:
        self.drain()

    @override
    def listeners(self) -> Iterable[Listener]:
        return self._open.values()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        counts = self._connections.endpoints.counts
        return {
            "localhost_node_ports": tuple(
                LocalhostPortView(
                    address=str(at),
                    service=str(port.key),
                    endpoints=tuple(map(str, port.endpoints)),
                    connections=sum(counts[each] for each in port.endpoints),
                    trouble=self._taken.get(at, ""),
                )
                for at, port in self._wanted.items()
            )
        }

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._follow()
            await self._open_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._taken else None):
                    await self._changed.wait()

    def _follow(self) -> None:
        """Apply the wanted ports; open connections continue, as in the kernel."""
        self._wanted = {at: port for of in self._by_family.values() for at, port in of.items()}
        for at in [at for at in self._open if at not in self._wanted]:
            self._open.pop(at).stop()
        self._taken = {at: why for at, why in self._taken.items() if at in self._wanted}
        self._connections.affinity.forget({port.key: port for port in self._wanted.values()})

    async def _open_all(self) -> None:
        busy: list[HostPort] = []
        for at in self._wanted:
            if at in self._open or self._leaving:
                continue
            try:
                (sock,) = bind_tcp(at.host, at.port, flag=FLAG)
            except ConfigError as error:
                if at not in self._taken:
                    cause = error.__cause__
                    number = cause.errno if isinstance(cause, OSError) else None
                    self._taken[at] = str(error)
                    if number == errno.EADDRINUSE:
                        busy.append(at)
                    else:
                        self._log_refused(at, number)
                continue
            self._opened(at, sock)
        if busy:
            await self._log_busy(busy)

    def _opened(self, at: HostPort, sock: socket.socket) -> None:
        ground = self._ground
        self._open[at] = Listener(ground.loop, ground.poller, sock, partial(self._accept, at))
        if self._taken.pop(at, None) is not None:
            log(_log, logging.INFO, "node port on localhost opened", address=str(at))

    def _accept(self, at: HostPort, sock: socket.socket) -> None:
        self._connections.accept(sock, self._wanted.get(at))

    def _log_refused(self, at: HostPort, number: int | None) -> None:
        reason = (
            "this host has no such address: no node ports of this IP family on localhost"
            if number in _NO_FAMILY
            else self._taken[at]
        )
        self._ground.once.log(
            ("localhost", at.host, number), 3600.0, _log, logging.WARNING,
            "cannot open node port on localhost", address=str(at), reason=reason,
        )  # fmt: skip

    async def _log_busy(self, busy: list[HostPort]) -> None:
        owners = await asyncio.to_thread(_owners, busy)
        self._taken.update(owners)
        for at in busy[:_MOST_LINES]:
            log(
                _log, logging.WARNING, "node port on localhost is in use; retrying",
                address=str(at), service=str(self._wanted[at].key), by=owners[at],
            )  # fmt: skip
        if len(busy) > _MOST_LINES:
            log(
                _log, logging.WARNING, "more node ports on localhost are in use",
                number=len(busy) - _MOST_LINES,
            )  # fmt: skip


def _owners(busy: list[HostPort]) -> dict[HostPort, str]:
    """The owners of these ports, described; blocks."""
    found = {at: listener_owner(endpoint((at.host, at.port))) for at in busy}
    processes = processes_of({owner.inode for owner in found.values() if owner is not None})
    described = {}
    for at, owner in found.items():
        if owner is None:
            described[at] = "a bound socket that does not listen"
            continue
        names = processes.get(owner.inode, [])
        described[at] = f"{', '.join(names[:3]) or 'a hidden process'} of {_user(owner.uid)}"
    return described


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
