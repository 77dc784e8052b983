"""Cluster networks: which one a target belongs to, and which one an agent is in.

Routing is by the destination's address alone, so networks may not overlap. A name has no address
here: names are resolved where they are dialed, and which network that is, is said by the client or
by the agents that stand for the name, never guessed. What may be dialed at all is policy.py; the
dialer that follows is dial/dialers/by_network.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import Protocol, TypeVar

from isthmus.dial.rules_agents import Agents, Backend
from isthmus.dial.rules_connectivity import Connection
from isthmus.net.rules_near import Nearness
from isthmus.settings.identifiers import Identifiers
from isthmus.text.addresses import (
    IpAddress,
    IpNetwork,
    as_ipv4,
    is_ipv4_range,
    plain_network,
    reached,
)
from isthmus.values import HostPort, is_address

_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNetwork:
    """A named set of addresses, and the way there; ``via`` None is through its agents.

    ``keeps_half_close`` is False for a server on the way that keeps none, as konnectivity's; None:
    it is asked.
    """

    name: str
    cidrs: tuple[IpNetwork, ...]
    via: Connection | None = None
    keeps_half_close: bool | None = None

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.cidrs))})"

    def holds(self, host: str) -> bool:
        """Tell whether an address, not a name, is one of the network's."""
        where = reached(host)
        if any(where.address in cidr for cidr in self.cidrs):
            return True
        return bool(where.translated) and all(
            any(each in cidr for cidr in self.cidrs) for each in where.translated
        )


@dataclass(frozen=True, slots=True)
class Nowhere:
    """A target has no network that it may be dialed in; the sentence says why."""

    why: str


class Networks:
    """All networks of a server; each address is in one of them at most."""

    def __init__(self, networks: Iterable[ClusterNetwork]) -> None:
        """Take the networks.

        Raises:
            ValueError: two have the same name or share addresses; the sentence names both.
        """
        self._by_name: dict[str, ClusterNetwork] = {}
        # By version and prefix length, longest first; few networks have few lengths.
        self._tables: dict[tuple[int, int], dict[int, ClusterNetwork]] = {}
        for network in networks:
            if network.name in self._by_name:
                raise ValueError(f"network {network.name} is there twice")
            self._check_overlaps(network)
            self._by_name[network.name] = network
            for cidr in network.cidrs:
                table = self._tables.setdefault((cidr.version, cidr.prefixlen), {})
                table[int(cidr.network_address) >> (cidr.max_prefixlen - cidr.prefixlen)] = network

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ClusterNetwork]:
        return iter(self._by_name.values())

    def __str__(self) -> str:
        shown = [str(network) for network in list(self)[:_MOST_SHOWN]]
        more = len(self) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def _check_overlaps(self, new: ClusterNetwork) -> None:
        for cidr in new.cidrs:
            if isinstance(cidr, IPv6Network) and is_ipv4_range(cidr):
                raise ValueError(
                    f"{cidr} of network {new.name} is a range of IPv4 addresses, list it as"
                    f" {as_ipv4(cidr)}"
                )
        seen = [(network, cidr) for network in self for cidr in network.cidrs]
        for cidr in new.cidrs:
            for other, theirs in seen:
                if cidr.version == theirs.version and cidr.overlaps(theirs):
                    raise ValueError(
                        f"{cidr} of network {new.name} and {theirs} of network {other.name}"
                        " overlap, and a destination is routed by its address alone"
                    )
            seen.append((new, cidr))

    def named(self, name: str) -> ClusterNetwork | None:
        """Find a network by its name, without regard to case."""
        return self._by_name.get(name.lower())

    def holding(self, host: str) -> ClusterNetwork | None:
        """Find the network of an address, which must not be a name."""
        where = reached(host)
        found = self._holding(where.address)
        if found is None and where.translated:
            # Which of them a translator means is not known: one network has to have them all.
            several = {self._holding(each) for each in where.translated}
            found = several.pop() if len(several) == 1 else None
        return found

    def _holding(self, address: IpAddress) -> ClusterNetwork | None:
        number, bits = int(address), address.max_prefixlen
        for (version, length), table in self._tables.items():
            if version == address.version:
                network = table.get(number >> (bits - length))
                if network is not None:
                    return network
        return None

    @property
    def only(self) -> ClusterNetwork | None:
        """The network, if there is just one."""
        return next(iter(self)) if len(self) == 1 else None

    def route(
        self, target: HostPort, asked: str, claimed: Callable[[str], Collection[str]]
    ) -> ClusterNetwork | Nowhere:
        """Find the network of a target.

        ``asked`` is the network that the client named, or empty; ``claimed(host)`` are the names
        of the networks in which agents stand for a host name.
        """
        # A client has names of its own: with an egress selector every network here is cluster.
        wanted = self.named(asked) if asked else None
        if not is_address(target.host):
            return wanted or self.only or self._by_claim(target.host, asked, claimed(target.host))
        found = self.holding(target.host)
        if found is None:
            return Nowhere(f"{target.host} is in none of the networks {self}")
        if wanted is not None and wanted is not found:
            return Nowhere(
                f"{target.host} is in network {found}, and the client asked for {wanted}"
            )
        return found

    def _by_claim(self, host: str, asked: str, claims: Collection[str]) -> ClusterNetwork | Nowhere:
        if len(claims) == 1:
            return self._by_name[next(iter(claims))]
        names = ", ".join(sorted(claims or self._by_name)[:_MOST_SHOWN])
        if claims:
            return Nowhere(f"agents of several networks stand for {host}: {names}")
        said = f"said {asked!r} and not" if asked else "did not say"
        return Nowhere(
            f"{host} is a name, no agent stands for it (host={host}), and the client {said} in"
            f" which of the networks {names} it is"
        )

    def network_of_agent(self, network: str, identifiers: Identifiers) -> ClusterNetwork | Nowhere:
        """Find the one network that an agent may be asked in.

        The one that it names. If it names none, the only one there is; with several, the one in
        which its addresses are: some have to be inside, and none may be in another.
        """
        if network:
            found = self.named(network)
            return found or Nowhere(f"there is no network {network!r} here, only {self}")
        if self.only is not None:
            return self.only
        claims = list(_addresses(identifiers))
        touched = [it for it in self if any(_overlap(claim, it.cidrs) for claim in claims)]
        if len(touched) > 1:
            names = ", ".join(it.name for it in touched[:_MOST_SHOWN])
            return Nowhere(
                f"its identifiers have addresses of several networks: {names}; say which one it is"
                " in by --agent-network"
            )
        inside = [it for it in touched if any(_inside(claim, it.cidrs) for claim in claims)]
        if inside:
            return inside[0]
        return Nowhere(
            f"it names no network, and none of {self} has the addresses of its identifiers; say"
            " which one it is in by --agent-network"
        )


def _addresses(identifiers: Identifiers) -> Iterator[IpNetwork]:
    hosts = (host for host in identifiers.host if is_address(host))
    for text in (*identifiers.ipv4, *identifiers.ipv6, *identifiers.cidr, *hosts):
        if "%" in text:
            continue  # a zone means something on one machine only
        yield plain_network(text)


def _overlap(claim: IpNetwork, cidrs: Sequence[IpNetwork]) -> bool:
    return any(claim.version == cidr.version and claim.overlaps(cidr) for cidr in cidrs)


def _inside(claim: IpNetwork, cidrs: Sequence[IpNetwork]) -> bool:
    return any(_overlap(claim, (cidr,)) and claim.prefixlen >= cidr.prefixlen for cidr in cidrs)


class NetworkBackend(Backend, Protocol):
    """A link to an agent that may have named its network."""

    @property
    def network(self) -> str:
        """What the agent calls its network; empty when it named none."""


B = TypeVar("B", bound=NetworkBackend)


class AgentsByNetwork(Agents[B]):
    """The links that may carry dials, those of each network apart.

    As a whole it answers for all of them, but it never chooses: that would cross networks. A link
    that is in no network is counted here and chosen nowhere; ``strayed(link, why)`` hears of it.
    """

    def __init__(
        self,
        strategies: Sequence[str],
        pick: Callable[[int], int],
        *,
        networks: Networks,
        strayed: Callable[[B, str], None],
        near: Nearness | None = None,
    ) -> None:
        super().__init__(strategies, pick, near)
        self._networks = networks
        self._strayed = strayed
        self._within: dict[str, Agents[B]] = {
            network.name: Agents(strategies, pick, near) for network in networks
        }

    def within(self, network: str) -> Agents[B]:
        """The links into a network, by its name."""
        return self._within[network]

    def standing_for(self, host: str) -> list[str]:
        """The networks that are reached through agents in which one names this host."""
        return [name for name, agents in self._within.items() if agents.stand_for(host)]

    def add(self, backend: B) -> None:
        """A link is up."""
        super().add(backend)
        found = self._networks.network_of_agent(backend.network, backend.identifiers)
        if isinstance(found, Nowhere):
            self._strayed(backend, found.why)
        elif found.via is not None:
            self._strayed(backend, f"network {found.name} is not reached through agents")
        else:
            self._within[found.name].add(backend)

    def remove(self, backend: B) -> None:
        """A link is gone."""
        super().remove(backend)
        for agents in self._within.values():
            agents.remove(backend)

    def choose(self, target: HostPort, tried: Collection[B] = ()) -> B | None:
        """Choose nobody: ask ``within`` a network."""
        return None

    def ready_by_strategy(self) -> dict[str, int]:
        """How many agents each strategy could choose from, in all networks together."""
        counts: dict[str, int] = {}
        for agents in self._within.values():
            for strategy, count in agents.ready_by_strategy().items():
                counts[strategy] = counts.get(strategy, 0) + count
        return counts
