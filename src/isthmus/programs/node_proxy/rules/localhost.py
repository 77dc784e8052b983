"""Node ports on localhost: which ports exist, and which endpoint a connection gets.

Rules cannot translate packets to a loopback address without route_localnet, which exposes services
of this node to its neighbours. The choice here equals that of the rules for a connection from the
node to its own address: the same endpoints, at random or by session affinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServiceView,
)
from isthmus.text.addresses import reached_address
from isthmus.values import HostPort

#: The loopback address of each family's node ports.
LOOPBACK = {IpFamily.IPV4: "127.0.0.1", IpFamily.IPV6: "::1"}
#: How many endpoints a connection tries if its client has no affinity.
MOST_TRIES = 3
#: How many clients are remembered: a client may use any source address in 127.0.0.0/8.
MOST_BOUND = 10_000

#: Returns a random number from 0 to the argument, exclusive.
Chance = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalhostPort:
    """A node port on localhost with its endpoints, at least one."""

    key: PortKey
    at: HostPort
    endpoints: tuple[HostPort, ...]
    affinity_s: int = 0


def localhost_ports(view: ServiceView) -> dict[HostPort, LocalhostPort]:
    """The TCP node ports of a family that have an endpoint, by their listen address.

    A port without endpoints has no listener, so connections are refused, as rules do elsewhere.
    """
    found: dict[HostPort, LocalhostPort] = {}
    for key, backed in view.ports.items():
        if not backed.port.node_port or key.protocol is not PortProtocol.TCP:
            continue
        endpoints = _endpoints(backed)
        if endpoints:
            at = HostPort(LOOPBACK[view.family], backed.port.node_port)
            port = LocalhostPort(
                key=key, at=at, endpoints=endpoints, affinity_s=backed.port.affinity_s
            )
            found.setdefault(at, port)  # on a conflict the first port wins, as in the rules
    return found


def _endpoints(backed: BackedPort) -> tuple[HostPort, ...]:
    """The endpoints for traffic from the node: with policy Local also those on other nodes."""
    chosen = backed.backends.cluster
    if not chosen and backed.port.external_local:
        chosen = backed.backends.local
    return tuple(HostPort(each.ip, each.port) for each in chosen if not _is_here(each))


def _is_here(endpoint: Endpoint) -> bool:
    # No API server accepts such an endpoint: it would be a service of this node, or this listener.
    return reached_address(endpoint.ip).is_loopback


class Affinity:
    """The endpoint that each client of a port is bound to; the caller passes the time."""

    def __init__(self, chance: Chance, *, most: int = MOST_BOUND) -> None:
        self._chance = chance
        self._most = most
        self._bound: dict[tuple[PortKey, str], tuple[HostPort, float]] = {}  # least recent first

    def __len__(self) -> int:
        return len(self._bound)

    def order(self, port: LocalhostPort, client: str, *, now: float) -> list[HostPort]:
        """The endpoints to try for a connection of a client, which is bound from now on.

        A bound client gets one endpoint only: rules choose no other while that one exists.
        """
        if not port.affinity_s:
            return self._some(port.endpoints)
        key = port.key, client
        bound, until = self._bound.pop(key, (None, 0.0))
        if bound is None or until <= now or bound not in port.endpoints:
            bound = port.endpoints[self._chance(len(port.endpoints))]
        self._bound[key] = bound, now + port.affinity_s
        if len(self._bound) > self._most:
            del self._bound[next(iter(self._bound))]
        return [bound]

    def _some(self, endpoints: tuple[HostPort, ...]) -> list[HostPort]:
        """A few random endpoints; each is equally likely to be the first."""
        first = self._chance(len(endpoints))
        return [*endpoints[first:], *endpoints[:first]][:MOST_TRIES]

    def forget(self, keep: Mapping[PortKey, LocalhostPort]) -> None:
        """Forget clients of ports that no longer exist."""
        self._bound = {key: bound for key, bound in self._bound.items() if key[0] in keep}
