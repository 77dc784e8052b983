"""Which agent serves a dial: the set of links and the strategies. Pure: randomness is passed in.

Konnectivity's strategies: ``default`` any agent, ``destHost`` one that names the target's host,
``defaultRoute`` one that offers the default route; tried in the given order. Among those that a
strategy allows, a near one is preferred unless it is much busier than others (net/rules_near.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from isthmus.net.rules_near import (
    DialHost,
    LinkGroup,
    LinkPool,
    NearLink,
    Nearness,
    host_of,
    is_worth_it,
)
from isthmus.values import AgentId, HostPort


class ChoosableLink(NearLink, Protocol):
    """The part of a link that the choice needs."""

    @property
    def agent_id(self) -> AgentId:
        """The agent of the link."""


B = TypeVar("B", bound=ChoosableLink)


class Agents(Generic[B]):
    """The links that may carry dials."""

    def __init__(
        self,
        strategies: Sequence[str],
        pick: Callable[[int], int],
        near: Nearness | None = None,
    ) -> None:
        """``pick(n)`` returns a random number below n; without ``near`` all are equally far."""
        self._strategies = tuple(strategies)
        self._pick = pick
        self._near = near
        self._all: LinkGroup[B] = LinkGroup()
        self._default_route: LinkGroup[B] = LinkGroup()

    def __len__(self) -> int:
        return len(self._all.all)

    def __iter__(self) -> Iterator[B]:
        return iter(list(self._all.all.members))

    def add(self, backend: B) -> None:
        self._all.add(backend)
        if backend.identifiers.default_route:
            self._default_route.add(backend)

    def remove(self, backend: B) -> None:
        self._all.remove(backend)
        self._default_route.remove(backend)

    def ready_by_strategy(self) -> dict[str, int]:
        """How many agents each configured strategy could choose from, as ``choose`` does."""
        pools: dict[str, Iterable[LinkPool[B]]] = {
            "default": (self._all.all,),
            "defaultRoute": (self._default_route.all,),
            "destHost": self._all.pools(),
        }
        return {name: _count_usable(pools[name]) for name in self._strategies}

    def choose(self, target: HostPort, tried: Collection[B] = ()) -> B | None:
        """Choose a link for a dial, or None; ``tried`` have failed this dial already.

        A draining or stuck one is chosen only if no strategy finds another.
        """
        host = host_of(target.host)
        for strategy in self._strategies:
            found = self._best(strategy, host, tried)
            if found is not None:
                return found
        for strategy in self._strategies:
            pool = self._allowed(strategy, host)
            found = pool.last_resort(self._pick, tried) if pool is not None else None
            if found is not None:
                return found
        return None

    def _allowed(self, strategy: str, host: DialHost) -> LinkPool[B] | None:
        if strategy == "default":
            return self._all.all
        if strategy == "defaultRoute":
            return self._default_route.all
        return self._all.naming(host)

    def _best(self, strategy: str, host: DialHost, tried: Collection[B]) -> B | None:
        """The nearest of those that a strategy allows and that take dials."""
        allowed = self._allowed(strategy, host)
        if not allowed:
            return None
        near = self._near
        if near is not None and self._all.tells_near and len(allowed) > 1:
            for pool in self._nearer(near, strategy, host, allowed):
                found = pool.draw(self._pick, tried)
                if found is None:
                    continue
                if is_worth_it(found.weight, 0.0):
                    return found
                others = (*tried, found)
                other = allowed.draw(self._pick, others)
                if other is None or is_worth_it(found.weight, other.weight):
                    return found
                tried = others  # it is busy, and there are others, so it is left out
        return allowed.draw(self._pick, tried)

    def _nearer(
        self, near: Nearness, strategy: str, host: DialHost, allowed: LinkPool[B]
    ) -> Iterator[LinkPool[B]]:
        """Those of a pool that are near a destination, the nearest first."""
        naming = self._all.naming(host)
        if naming is not None and naming is not allowed:
            # Agents that serve it need not offer the default route.
            own = naming if strategy == "default" else self._default_route.naming(host)
            if own is not None:
                yield own
        zones = allowed.by_zone
        if zones:
            there = near.zone_of(host, naming)
            if there in zones:
                yield zones[there]
            if near.zone != there and near.zone in zones:
                yield zones[near.zone]

    def stand_for(self, host: str) -> bool:
        """Whether an agent names this host."""
        return self._all.naming(host_of(host)) is not None


def _count_usable(pools: Iterable[LinkPool[B]]) -> int:
    return len({link.agent_id for pool in pools for link in pool.members if link.can_open})
