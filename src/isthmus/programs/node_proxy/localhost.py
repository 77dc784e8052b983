"""Node ports on localhost: connections to them, which this process carries to endpoints.

Which ports there are and who gets which endpoint is rules/localhost.py; where they listen is
localhost_ports.py. Clients are on this machine and are told apart by their user, as the kernel
knows it.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter
from typing import Any

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import DialFailure
from isthmus.frame.forwarding import ForwardedConnection, ForwardedConnections
from isthmus.frame.part import Ground
from isthmus.frame.resources import most_connections
from isthmus.frame.tunnels import TunnelTable
from isthmus.net.charging import PaidEarly
from isthmus.net.connect import Dialing
from isthmus.net.connection_gate import admitted, endpoint, reset
from isthmus.net.resolver import Resolver
from isthmus.net.rules_slots import AdmissionRefusal, ConnectionSlots
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.node_proxy.kernel.sockets import client_owner
from isthmus.programs.node_proxy.metrics import LocalhostRefusal, NodeProxyMetrics
from isthmus.programs.node_proxy.rules.localhost import Affinity, LocalhostPort
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import IpPort

#: What an endpoint has to be reached in, with all that are tried before it.
DIAL_TIMEOUT_S = 10.0
#: Clients whose user nobody knows, since they have closed their socket already.
UNKNOWN_USER = "unknown user"
#: They have one place in so many. A user who has all of its own can have all of theirs: less than
#: what its own leave to others.
_UNKNOWN_OF = 8
_QUIET_S = 30.0
_NO_PLACE = {
    AdmissionRefusal.TOO_MANY: LocalhostRefusal.TOO_MANY,
    AdmissionRefusal.TOO_MANY_OF_SOURCE: LocalhostRefusal.TOO_MANY_OF_SOURCE,
    AdmissionRefusal.MEMORY: LocalhostRefusal.MEMORY,
}
_log = logging.getLogger("isthmus.node_proxy")


class EndpointConnections:
    """How many connections each endpoint has from here, dials under way included."""

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
    """A client of this machine that wants to be joined to an endpoint."""

    __slots__ = ("service", "user")

    #: Whose it is, and the port of the Service that it came to.
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
        self._resolver = Resolver(ground.loop)  # of which nothing is asked: endpoints are addresses
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

    # Accepting.

    def accept(self, sock: socket.socket, port: LocalhostPort | None) -> None:
        """Take a new connection to a port, which None says is gone by now."""
        self._metrics.localhost.accepted += 1
        try:
            source, ours = endpoint(sock.getpeername()), endpoint(sock.getsockname())
        except OSError:  # gone already
            sock.close()
            self._count(LocalhostRefusal.LEFT, UNKNOWN_USER)
            return
        user = _user_of(source, ours)
        refusal = None
        if not source.ip.is_loopback:
            # Where route_localnet is set, a neighbour gets here.
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
        """See connection_gate.Refuse; of what is spoken here nothing is known."""
        self._count(_NO_PLACE[why], source)
        reset(sock)

    # What connections ask.

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
            "an endpoint cannot be reached from localhost", service=connection.service,
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
                "a connection to localhost was reset", reason=why.value, source=user,
                detail=detail,
            )  # fmt: skip


def _user_of(client: IpPort, ours: IpPort) -> str:
    """Who pays for a connection: the user of its client.

    A socket that its process has closed belongs to nobody, and is listed under user 0.
    """
    owner = client_owner(client, ours)
    return f"uid {owner.uid}" if owner is not None and owner.inode else UNKNOWN_USER
