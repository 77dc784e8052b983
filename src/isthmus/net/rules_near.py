"""Which agents are near a destination: on its node, in its zone, or in the server's own. Pure.

Here are the indexes that dial/rules_agents.py asks for every dial, so nothing here looks at all
agents: a group keeps its members by the hosts, the networks and the zones that they stand for. How
much more a near agent may have to do than another before it is no longer preferred is
``is_worth_it``.
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
#: A near agent is chosen while its weight is at most this many times that of another, and so many
#: tunnels more: a far one costs every byte a way between zones, a busy one costs every tunnel.
NEAR_TIMES = 2.0
NEAR_MORE = 64.0
#: How many members are drawn before all of them are looked at.
_DRAWS = 8

V = TypeVar("V")


class NearLink(Protocol):
    """What these indexes need to know of a link to an agent."""

    @property
    def identifiers(self) -> Identifiers:
        """What the agent stands for."""

    @property
    def zone(self) -> str:
        """The agent's zone, if it says one."""

    @property
    def can_open(self) -> bool:
        """A stream can be opened on it."""

    @property
    def takes_dials(self) -> bool:
        """Besides, it is neither draining nor stuck."""

    @property
    def weight(self) -> float:
        """How much it has to do, in tunnels: unsent bytes and a long way count as some."""


B = TypeVar("B", bound=NearLink)


def is_worth_it(near_weight: float, other_weight: float) -> bool:
    """Tell whether a near agent is still to be preferred to another one, by what both have to do.

    So a near agent that gets every dial has at most NEAR_TIMES what the others have on average,
    and NEAR_MORE tunnels: from there on the next dial goes to the others.
    """
    return near_weight <= NEAR_MORE + NEAR_TIMES * other_weight


class DialHost(NamedTuple):
    """A destination as the indexes have it; ``version`` is 0 for a name."""

    text: str
    version: int
    number: int
    bits: int


@short_cache(2048, 512)
def host_of(text: str) -> DialHost:
    """Read a target's host; the same targets are dialed again and again."""
    if not is_address(text):
        return DialHost(text.lower().removesuffix("."), 0, 0, 0)
    address = reached_address(text)
    return DialHost(str(address), address.version, int(address), address.max_prefixlen)


class CidrTable(Generic[V]):
    """Values by network: the narrowest that holds an address is found, as in a routing table."""

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
        """Forget a network."""
        place, number = _place(cidr)
        table = self._tables.get(place, {})
        table.pop(number, None)
        if not table:
            self._tables.pop(place, None)

    def narrowest(self, host: DialHost) -> V | None:
        """The value of the narrowest network that holds an address; None for names."""
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
    """Some links, and those of each zone among them; adding and removing look at one only."""

    __slots__ = ("_at", "by_zone", "members")

    def __init__(self) -> None:
        self.members: list[B] = []
        self._at: dict[B, int] = {}
        self.by_zone: dict[str, LinkPool[B]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def add(self, link: B, zone: str = "") -> None:
        """A link is up; one that is here already is not added again."""
        if link not in self._at:
            self._at[link] = len(self.members)
            self.members.append(link)
            if zone:
                self.by_zone.setdefault(zone, LinkPool()).add(link)

    def remove(self, link: B, zone: str = "") -> None:
        """A link is gone."""
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
        """The zone of all that say one, if it is the same; else empty."""
        return next(iter(self.by_zone)) if len(self.by_zone) == 1 else ""

    def draw(self, pick: Callable[[int], int], tried: Collection[B] = ()) -> B | None:
        """Two that take dials, by chance; the less loaded of them, or None if there is none."""
        members = self.members
        number = len(members)
        # Nearly always the first two will do: with a thousand agents, looking at all of them for
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
        """The same of those that can be opened, though they drain or are stuck."""
        return self._two([it for it in self.members if it.can_open and it not in tried], pick)

    @staticmethod
    def _two(usable: list[B], pick: Callable[[int], int]) -> B | None:
        if len(usable) <= 1:
            return usable[0] if usable else None
        return min(usable[pick(len(usable))], usable[pick(len(usable))], key=_weight)


def _weight(link: NearLink) -> float:
    return link.weight


class LinkGroup(Generic[B]):
    """The links that one strategy may choose, by all that makes one of them near."""

    def __init__(self) -> None:
        self.all: LinkPool[B] = LinkPool()
        self._by_host: dict[str, LinkPool[B]] = {}
        self._by_cidr: CidrTable[LinkPool[B]] = CidrTable()

    def add(self, link: B) -> None:
        """A link is up."""
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
        """A link is gone."""
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
        """Those of every host and network that somebody stands for."""
        yield from self._by_host.values()
        yield from self._by_cidr.values()

    def naming(self, host: DialHost) -> LinkPool[B] | None:
        """Those that stand for a host: by its name or address, or the narrowest network."""
        exact = self._by_host.get(host.text)
        # The narrowest network is the best informed, as in a routing table.
        return exact if exact is not None else self._by_cidr.narrowest(host)

    @property
    def tells_near(self) -> bool:
        """Something is known by which one member is nearer than another."""
        return bool(self._by_host or self._by_cidr or self.all.by_zone)


@dataclass(frozen=True, slots=True)
class Nearness:
    """What a server knows of zones: its own, and those of networks (``--zone-cidr``)."""

    zone: str = ""
    cidrs: CidrTable[str] = field(default_factory=CidrTable)

    @classmethod
    def of(cls, zone: str, cidrs: Mapping[str, str]) -> Nearness:
        """Take the server's zone, and zones by network."""
        table: CidrTable[str] = CidrTable()
        for cidr, name in cidrs.items():
            table.put(cidr, name)
        return cls(zone, table)

    def zone_of(self, host: DialHost, naming: LinkPool[B] | None) -> str:
        """The zone of a destination: as it was said, or that of the agents that stand for it."""
        said = self.cidrs.narrowest(host) if self.cidrs else None
        if said is not None:
            return said
        return naming.zone if naming is not None else ""
