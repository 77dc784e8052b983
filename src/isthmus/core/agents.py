"""Which agent takes a dial: the set of links and the strategies over it. Pure: chance comes in.

Konnectivity's strategies: ``default`` any agent, ``destHost`` one that names the target's host,
``defaultRoute`` one that offers the default route; tried in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Generic, Protocol, TypeVar

from isthmus.config.identifiers import Identifiers
from isthmus.values import AgentId, HostPort, is_address


class Backend(Protocol):
    """What choosing needs to know of a link to an agent."""

    @property
    def agent_id(self) -> AgentId:
        """Whose link it is."""

    @property
    def identifiers(self) -> Identifiers:
        """What the agent stands for."""

    @property
    def can_open(self) -> bool:
        """A stream can be opened on it."""

    @property
    def takes_dials(self) -> bool:
        """Besides, it is neither draining nor stuck."""

    @property
    def weight(self) -> float:
        """How much it has to do: tunnels, unsent bytes and a long way all count."""


B = TypeVar("B", bound=Backend)


class Agents(Generic[B]):
    """The links that may carry dials."""

    def __init__(self, strategies: Sequence[str], pick: Callable[[int], int]) -> None:
        """``pick(n)`` gives a random number below n."""
        self._strategies = tuple(strategies)
        self._pick = pick
        self._all: list[B] = []
        self._default_route: list[B] = []
        self._by_host: dict[str, list[B]] = {}
        self._by_cidr: dict[IPv4Network | IPv6Network, list[B]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[B]:
        return iter(list(self._all))

    def add(self, backend: B) -> None:
        """A link is up."""
        for group in self._groups(backend, create=True):
            group.append(backend)

    def remove(self, backend: B) -> None:
        """A link is gone."""
        for group in self._groups(backend, create=False):
            if backend in group:
                group.remove(backend)

    def _groups(self, backend: B, *, create: bool) -> list[list[B]]:
        ids = backend.identifiers
        groups = [self._all]
        if ids.default_route:
            groups.append(self._default_route)
        for host in (*ids.ipv4, *ids.ipv6, *ids.host):
            groups.append(self._by_host.setdefault(host, []))
        for cidr in ids.cidr:
            groups.append(self._by_cidr.setdefault(ip_network(cidr), []))
        if not create:
            self._by_host = {host: group for host, group in self._by_host.items() if group}
            self._by_cidr = {cidr: group for cidr, group in self._by_cidr.items() if group}
        return groups

    def ready_by_strategy(self) -> dict[str, int]:
        """How many agents each configured strategy could choose from, as ``choose`` does."""
        groups = {
            "default": [self._all],
            "defaultRoute": [self._default_route],
            "destHost": [*self._by_host.values(), *self._by_cidr.values()],
        }
        return {name: _count_usable(groups[name]) for name in self._strategies}

    def choose(self, target: HostPort, tried: Collection[B] = ()) -> B | None:
        """Choose a link for a dial, or None; ``tried`` have failed this dial already."""
        for strategy in self._strategies:
            if strategy == "default":
                group = self._all
            elif strategy == "defaultRoute":
                group = self._default_route
            else:
                group = self._naming(target.host)
            found = self._best(group, tried)
            if found is not None:
                return found
        return None

    def _naming(self, host: str) -> list[B]:
        exact = self._by_host.get(host.lower().removesuffix("."))
        if exact or not self._by_cidr or not is_address(host):
            return exact or []
        address = ip_address(host)
        holding = [cidr for cidr in self._by_cidr if address in cidr]
        # The narrowest network is the best informed, as in a routing table.
        return self._by_cidr[max(holding, key=lambda cidr: cidr.prefixlen)] if holding else []

    def _best(self, group: list[B], tried: Collection[B]) -> B | None:
        """Two random ones, the less loaded; those that take no dials only if no other is left."""
        # Nearly always the first two will do: with a thousand agents, looking at all of them for
        # every dial would cost more than the dial.
        if len(group) > 1 and not tried:
            first = group[self._pick(len(group))]
            second = group[self._pick(len(group))]
            if first.takes_dials and second.takes_dials:
                return second if second.weight < first.weight else first
        usable = [b for b in group if b.takes_dials and b not in tried]
        if not usable:
            usable = [b for b in group if b.can_open and b not in tried]
        if len(usable) <= 1:
            return usable[0] if usable else None
        first = usable[self._pick(len(usable))]
        second = usable[self._pick(len(usable))]
        return second if second.weight < first.weight else first


def _count_usable(groups: Iterable[Iterable[Backend]]) -> int:
    return len({backend.agent_id for group in groups for backend in group if backend.can_open})
