"""Which agents are near a destination: on its node, in its zone, or in the server's own. Pure.

dial/rules_agents.py queries these indexes for every dial, so nothing here visits all
agents: a group indexes its members by the hosts, networks and zones that they serve.
``is_worth_it`` decides how much more load a near agent may have before another is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Generic, NamedTuple, Protocol, TypeVar

from isthmus.settings.identifiers import Identifiers
from isthmus.text.addresses import reached_address
from isthmus.text.short_cache import short_cache
from isthmus.values import is_address

#: The label of a node, and of an agent on it, that names its zone.
ZONE_LABEL = "topology.kubernetes.io/zone"
#: A near agent is chosen while its weight is at most this many times that of another, plus this
#: many tunnels: a far agent costs cross-zone traffic for every byte, a busy one slows every tunnel.
NEAR_TIMES = 2.0
NEAR_MORE = 64.0
#: The members drawn at random before all of them are examined.
_DRAWS = 8

V = TypeVar("V")


class NearLink(Protocol):
    """The part of a link to an agent that these indexes use."""

    @property
    def identifiers(self) -> Identifiers:
        """The hosts and networks that the agent serves."""

    @property
    def zone(self) -> str:
        """The agent's zone, if known."""

    @property
    def can_open(self) -> bool:
        """Whether a stream can be opened on it."""

    @property
    def takes_dials(self) -> bool:
        """Whether it is also neither draining nor stuck."""

    @property
    def weight(self) -> float:
        """Its load in tunnels; unsent bytes and latency count as some."""


B = TypeVar("B", bound=NearLink)


def is_worth_it(near_weight: float, other_weight: float) -> bool:
    """Whether a near agent is still preferred to another one, by their loads.

    A near agent that gets every dial has at most NEAR_TIMES the average of the others,
    plus NEAR_MORE tunnels: beyond that the next dial goes to the others.
    """
    return near_weight <= NEAR_MORE + NEAR_TIMES * other_weight


class DialHost(NamedTuple):
    """A destination for the indexes; ``version`` is 0 for a name."""

    text: str
    version: int
    number: int
    bits: int


@short_cache(2048, 512)
def host_of(text: str) -> DialHost:
    """Read a target's host; cached, because the same targets are dialed again."""
    if not is_address(text):
        return DialHost(text.lower().removesuffix("."), 0, 0, 0)
    address = reached_address(text)
    return DialHost(str(address), address.version, int(address), address.max_prefixlen)


class CidrTable(Generic[V]):
    """Values by network: the narrowest that contains an address wins, as in a routing table."""

    def __init__(self) -> None:
        # By version and prefix length, longest first: a cluster has few lengths and many networks.
        self._tables: dict[tuple[int, int], dict[int, V]] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def values(self) -> Iterator[V]:
        """Every value."""
        for table in self._tables.values():
            yield from table.values()

    def get(self, cidr: str) -> V | None:
        """The value of exactly this network."""
        place, number = _place(cidr)
        return self._tables.get(place, {}).get(number)

    def put(self, cidr: str, value: V) -> None:
        """Set the value of a network."""
        place, number = _place(cidr)
        if place not in self._tables:
            tables = {**self._tables, place: {}}
            self._tables = dict(sorted(tables.items(), key=lambda it: -it[0][1]))
        self._tables[place][number] = value

    def drop(self, cidr: str) -> None:
        """Remove a network."""
        place, number = _place(cidr)
        table = self._tables.get(place, {})
        table.pop(number, None)
        if not table:
            self._tables.pop(place, None)

    def narrowest(self, host: DialHost) -> V | None:
        """The value of the narrowest network that contains an address; None for names."""
        version, number, bits = host.version, host.number, host.bits
        for (of, length), table in self._tables.items():
            if of == version:
                found = table.get(number >> (bits - length))
                if found is not None:
                    return found
        return None


def _place(cidr: str) -> tuple[tuple[int, int], int]:
    network: IPv4Network | IPv6Network = ip_network(cidr)
    length = network.prefixlen
    number = int(network.network_address) >> (network.max_prefixlen - length)
    return (network.version, length), number


class LinkPool(Generic[B]):
    """A set of links, also by zone; adding and removing take constant time."""

    __slots__ = ("_at", "by_zone", "members")

    def __init__(self) -> None:
        self.members: list[B] = []
        self._at: dict[B, int] = {}
        self.by_zone: dict[str, LinkPool[B]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def add(self, link: B, zone: str = "") -> None:
        """Add a link, once."""
        if link not in self._at:
            self._at[link] = len(self.members)
            self.members.append(link)
            if zone:
                self.by_zone.setdefault(zone, LinkPool()).add(link)

    def remove(self, link: B, zone: str = "") -> None:
        """Remove a link."""
        at = self._at.pop(link, None)
        if at is None:
            return
        last = self.members.pop()
        if last is not link:
            self.members[at] = last
            self._at[last] = at
        within = self.by_zone.get(zone)
        if within is not None:
            within.remove(link)
            if not within:
                del self.by_zone[zone]

    @property
    def zone(self) -> str:
        """The common zone of all links with a known zone; otherwise empty."""
        return next(iter(self.by_zone)) if len(self.by_zone) == 1 else ""

    def draw(self, pick: Callable[[int], int], tried: Collection[B] = ()) -> B | None:
        """The less loaded of two random links that take dials, or None."""
        members = self.members
        number = len(members)
        # Usually the first two will do: with a thousand agents, examining all of them for
        # every dial would cost more than the dial.
        if number > 1 and not tried:
            first, second = members[pick(number)], members[pick(number)]
            if first.takes_dials and second.takes_dials:
                return second if second.weight < first.weight else first
        if number > _DRAWS:
            some = [members[pick(number)] for _ in range(_DRAWS)]
            usable = [it for it in some if it.takes_dials and it not in tried]
            if len(usable) > 1:
                return min(usable[:2], key=_weight)
        return self._two([it for it in members if it.takes_dials and it not in tried], pick)

    def last_resort(self, pick: Callable[[int], int], tried: Collection[B] = ()) -> B | None:
        """The same among links that can be opened, although they are draining or stuck."""
        return self._two([it for it in self.members if it.can_open and it not in tried], pick)

    @staticmethod
    def _two(usable: list[B], pick: Callable[[int], int]) -> B | None:
        if len(usable) <= 1:
            return usable[0] if usable else None
        return min(usable[pick(len(usable))], usable[pick(len(usable))], key=_weight)


def _weight(link: NearLink) -> float:
    return link.weight


class LinkGroup(Generic[B]):
    """The links that one strategy may choose, indexed for nearness."""

    def __init__(self) -> None:
        self.all: LinkPool[B] = LinkPool()
        self._by_host: dict[str, LinkPool[B]] = {}
        self._by_cidr: CidrTable[LinkPool[B]] = CidrTable()

    def add(self, link: B) -> None:
        """Add a link."""
        ids, zone = link.identifiers, link.zone
        self.all.add(link, zone)
        for host in (*ids.ipv4, *ids.ipv6, *ids.host):
            self._by_host.setdefault(host, LinkPool()).add(link, zone)
        for cidr in ids.cidr:
            pool = self._by_cidr.get(cidr)
            if pool is None:
                pool = LinkPool()
                self._by_cidr.put(cidr, pool)
            pool.add(link, zone)

    def remove(self, link: B) -> None:
        """Remove a link."""
        ids, zone = link.identifiers, link.zone
        self.all.remove(link, zone)
        for host in (*ids.ipv4, *ids.ipv6, *ids.host):
            pool = self._by_host.get(host)
            if pool is not None:
                pool.remove(link, zone)
                if not pool:
                    del self._by_host[host]
        for cidr in ids.cidr:
            pool = self._by_cidr.get(cidr)
            if pool is not None:
                pool.remove(link, zone)
                if not pool:
                    self._by_cidr.drop(cidr)

    def pools(self) -> Iterator[LinkPool[B]]:
        """The pools of all served hosts and networks."""
        yield from self._by_host.values()
        yield from self._by_cidr.values()

    def naming(self, host: DialHost) -> LinkPool[B] | None:
        """The links that serve a host: by its name or address, or the narrowest network."""
        exact = self._by_host.get(host.text)
        # The narrowest network is the most specific, as in a routing table.
        return exact if exact is not None else self._by_cidr.narrowest(host)

    @property
    def tells_near(self) -> bool:
        """Whether nearness can differ between members."""
        return bool(self._by_host or self._by_cidr or self.all.by_zone)


@dataclass(frozen=True, slots=True)
class Nearness:
    """A server's zone, and the zones of networks (``--zone-cidr``)."""

    zone: str = ""
    cidrs: CidrTable[str] = field(default_factory=CidrTable)

    @classmethod
    def of(cls, zone: str, cidrs: Mapping[str, str]) -> Nearness:
        """Build it from the server's zone and zones by network."""
        table: CidrTable[str] = CidrTable()
        for cidr, name in cidrs.items():
            table.put(cidr, name)
        return cls(zone, table)

    def zone_of(self, host: DialHost, naming: LinkPool[B] | None) -> str:
        """The zone of a destination: as configured, or that of the agents that serve it."""
        said = self.cidrs.narrowest(host) if self.cidrs else None
        if said is not None:
            return said
        return naming.zone if naming is not None else ""
