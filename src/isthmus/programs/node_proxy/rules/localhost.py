"""Node ports on localhost: which there are, and which endpoint a connection to one gets.

Rules cannot translate what goes to a loopback address without route_localnet, which opens services
of this node to its neighbours. What is here says of a connection what the rules say of one from
the node to its own address: the same endpoints, by chance, or the one that a client is bound to.
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

#: The address at which each family has its node ports.
LOOPBACK = {IpFamily.IPV4: "127.0.0.1", IpFamily.IPV6: "::1"}
#: Endpoints that one connection tries, where its client is bound to none.
MOST_TRIES = 3
#: Clients that are remembered: a client may choose its address from all of 127.0.0.0/8.
MOST_BOUND = 10_000

#: A number from 0 up to, and without, the one that is given.
Chance = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalhostPort:
    """A node port on localhost, and what is behind it; there is an endpoint at least."""

    key: PortKey
    at: HostPort
    endpoints: tuple[HostPort, ...]
    affinity_s: int = 0


def localhost_ports(view: ServiceView) -> dict[HostPort, LocalhostPort]:
    """The TCP node ports of a family that have an endpoint, by where they are reached.

    One that has none is refused by nobody listening, as rules refuse it at other addresses.
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
            found.setdefault(at, port)  # two that claim one: as in the rules, the first has it
    return found


def _endpoints(backed: BackedPort) -> tuple[HostPort, ...]:
    """Those that the rules have for traffic of the node: also with policy Local those elsewhere."""
    chosen = backed.backends.cluster
    if not chosen and backed.port.external_local:
        chosen = backed.backends.local
    return tuple(HostPort(each.ip, each.port) for each in chosen if not _is_here(each))


def _is_here(endpoint: Endpoint) -> bool:
    # No API server takes one. It would be a service of this node, or this very listener.
    return reached_address(endpoint.ip).is_loopback


class Affinity:
    """Which endpoint each client of a port is bound to; time is the caller's."""

    def __init__(self, chance: Chance, *, most: int = MOST_BOUND) -> None:
        self._chance = chance
        self._most = most
        self._bound: dict[tuple[PortKey, str], tuple[HostPort, float]] = {}  # the latest last

    def __len__(self) -> int:
        return len(self._bound)

    def order(self, port: LocalhostPort, client: str, *, now: float) -> list[HostPort]:
        """The endpoints to try for a connection of a client, which is bound from now on.

        A client that is bound has one: the rules give it no other while that is there.
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
        """A few of them, each as likely as the others to be the first."""
        first = self._chance(len(endpoints))
        return [*endpoints[first:], *endpoints[:first]][:MOST_TRIES]

    def forget(self, keep: Mapping[PortKey, LocalhostPort]) -> None:
        """Forget clients of ports that are gone."""
        self._bound = {key: bound for key, bound in self._bound.items() if key[0] in keep}
