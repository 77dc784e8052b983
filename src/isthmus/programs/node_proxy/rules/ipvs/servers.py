"""Virtual servers and their destinations as values, and what leads from one set to another.

The kernel keeps no note with a virtual server, and others may have some, too: ours are those that
our own sets tell of. How servers travel to the kernel is
``isthmus.programs.node_proxy.kernel.ipvs_netlink``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from ipaddress import ip_address, ip_network
from typing import assert_never

from isthmus.programs.node_proxy.rules.ipvs.sets import NODE_PORTS, IpSet
from isthmus.programs.node_proxy.rules.model import PortProtocol


class IpvsFlags(IntFlag):
    """linux/ip_vs.h: what a virtual server does besides balancing."""

    NONE = 0
    PERSISTENT = 0x1  # session affinity
    HASHED = 0x2  # every one in the kernel's table has it
    SOURCE_PORT = 0x10  # for "mh": the source's port counts, too


@dataclass(frozen=True, slots=True)
class ServerKey:
    """What the kernel knows a virtual server by."""

    address: str
    port: int
    protocol: PortProtocol

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServer:
    """An address and port that are balanced over destinations."""

    key: ServerKey
    scheduler: str
    flags: IpvsFlags = IpvsFlags.NONE
    timeout_s: int = 0


@dataclass(frozen=True, slots=True, order=True)
class IpvsDestination:
    """An address and port behind a virtual server."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationState:
    """A destination as the kernel has it; ``connections`` are active and inactive ones."""

    weight: int = 1
    connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelServer:
    """A virtual server of the kernel with its destinations."""

    server: VirtualServer
    destinations: Mapping[IpvsDestination, DestinationState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddServer:
    """Make a virtual server."""

    server: VirtualServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeServer:
    """Change scheduler, flags or timeout; it goes on serving meanwhile."""

    server: VirtualServer


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveServer:
    """Remove a virtual server with its destinations."""

    key: ServerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AddDestination:
    """Add a destination, with weight 1."""

    key: ServerKey
    destination: IpvsDestination


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighDestination:
    """Give a destination that is there another weight; 0 takes no new connections."""

    key: ServerKey
    destination: IpvsDestination
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDestination:
    """Remove a destination; its connections end."""

    key: ServerKey
    destination: IpvsDestination


IpvsCommand = (
    AddServer | ChangeServer | RemoveServer | AddDestination | WeighDestination | RemoveDestination
)
Wanted = Mapping[VirtualServer, frozenset[IpvsDestination]]


def removal(
    key: ServerKey, destination: IpvsDestination, state: DestinationState
) -> IpvsCommand | None:
    """How a destination that is not wanted goes, now; None if it has to wait.

    One with connections waits at weight 0 until they end, but only by TCP: a UDP or SCTP
    "connection" ends only when the destination is gone.
    """
    if key.protocol is PortProtocol.TCP and state.connections:
        if state.weight == 0:
            return None
        return WeighDestination(key=key, destination=destination, weight=0)
    return RemoveDestination(key=key, destination=destination)


def difference(
    wanted: Wanted, present: Collection[KernelServer], *, excluded: Collection[str] = ()
) -> list[IpvsCommand]:
    """Give what has to be done so that exactly the wanted servers are there.

    Servers whose address is in one of the ``excluded`` CIDRs are not ours to remove.
    """
    held = {each.server.key: each for each in present}
    commands: list[IpvsCommand] = []
    for server, destinations in wanted.items():
        there = held.get(server.key)
        if there is None:
            commands.append(AddServer(server=server))
        elif there.server != server:
            commands.append(ChangeServer(server=server))
        has = there.destinations if there is not None else {}
        commands += _destinations(server.key, destinations, has)
    nets = [ip_network(cidr, strict=False) for cidr in excluded]
    gone = held.keys() - {server.key for server in wanted}
    for key in sorted(gone, key=str):
        address = ip_address(key.address)
        if not any(address.version == net.version and address in net for net in nets):
            commands.append(RemoveServer(key=key))
    return commands


def in_order(commands: Iterable[IpvsCommand]) -> tuple[list[IpvsCommand], list[IpvsCommand]]:
    """What brings servers and destinations, and what takes some away: that comes last.

    No packet then finds a server without an endpoint that had one before and has one after.
    """
    bring: list[IpvsCommand] = []
    take: list[IpvsCommand] = []
    for each in commands:
        match each:
            case RemoveServer() | RemoveDestination() | WeighDestination(weight=0):
                take.append(each)
            case _:
                bring.append(each)
    return bring, take


def inverse(command: IpvsCommand, before: Mapping[ServerKey, KernelServer]) -> list[IpvsCommand]:
    """What takes a command back, on servers that were so before it.

    Connections that ended with a destination do not come back.
    """
    match command:
        case AddServer(server=server):
            return [RemoveServer(key=server.key)]
        case ChangeServer(server=server):
            return [ChangeServer(server=before[server.key].server)]
        case AddDestination(key=key, destination=destination):
            return [RemoveDestination(key=key, destination=destination)]
        case WeighDestination(key=key, destination=destination):
            return _weighed(key, destination, before[key].destinations[destination])
        case RemoveDestination(key=key, destination=destination):
            return _added(key, destination, before[key].destinations[destination])
        case RemoveServer(key=key):
            gone = before[key]
            behind = (_added(key, each, state) for each, state in gone.destinations.items())
            return [AddServer(server=gone.server), *(each for more in behind for each in more)]
        case _:
            assert_never(command)


def _added(
    key: ServerKey, destination: IpvsDestination, state: DestinationState
) -> list[IpvsCommand]:
    add = AddDestination(key=key, destination=destination)
    return [add, *(_weighed(key, destination, state) if state.weight != 1 else ())]


def _weighed(
    key: ServerKey, destination: IpvsDestination, state: DestinationState
) -> list[IpvsCommand]:
    return [WeighDestination(key=key, destination=destination, weight=state.weight)]


def _destinations(
    key: ServerKey,
    wanted: frozenset[IpvsDestination],
    present: Mapping[IpvsDestination, DestinationState],
) -> Iterator[IpvsCommand]:
    for each in sorted(wanted):
        state = present.get(each)
        if state is None:
            yield AddDestination(key=key, destination=each)
        elif state.weight != 1:  # it came back before its connections had ended
            yield WeighDestination(key=key, destination=each, weight=1)
    for each in sorted(present.keys() - wanted):
        command = removal(key, each, present[each])
        if command is not None:
            yield command


class TerminatingDestinations:
    """Remembers which destinations wait, from the commands that were carried out."""

    def __init__(self) -> None:
        self._waiting: dict[ServerKey, set[IpvsDestination]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def keys(self) -> list[ServerKey]:
        """The virtual servers with destinations that wait."""
        return list(self._waiting)

    def done(self, commands: Iterable[IpvsCommand]) -> None:
        for command in commands:
            match command:
                case WeighDestination(weight=0):
                    self._waiting.setdefault(command.key, set()).add(command.destination)
                case AddDestination() | WeighDestination() | RemoveDestination():
                    self._forget(command.key, command.destination)
                case RemoveServer():
                    self._waiting.pop(command.key, None)
                case _:
                    pass

    def ended(
        self, key: ServerKey, present: Mapping[IpvsDestination, DestinationState]
    ) -> list[IpvsCommand]:
        """Give the removals of those whose connections have ended, as the kernel has them now.

        What the kernel does not have any more is forgotten.
        """
        commands: list[IpvsCommand] = []
        for each in sorted(self._waiting.get(key, ())):
            state = present.get(each)
            if state is None:
                self._forget(key, each)
                continue
            command = removal(key, each, state)
            if command is not None:
                commands.append(command)
        return commands

    def _forget(self, key: ServerKey, destination: IpvsDestination) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.discard(destination)
            if not waiting:
                del self._waiting[key]


_ADDRESSED = (IpSet.CLUSTER_IP, IpSet.EXTERNAL_IP, IpSet.EXTERNAL_IP_LOCAL, IpSet.LOAD_BALANCER)


def owned(
    present: Iterable[KernelServer], sets: Mapping[IpSet, frozenset[str]]
) -> list[KernelServer]:
    """Give those of the servers that entries of the sets are about."""
    places = {entry for each in _ADDRESSED for entry in sets.get(each, ())}
    ports = {
        (protocol, _port(entry))
        for protocol, (every, _) in NODE_PORTS.items()
        for entry in sets.get(every, ())
    }
    return [each for each in present if _is_ours(each, places, ports)]


def _is_ours(each: KernelServer, places: set[str], ports: set[tuple[PortProtocol, str]]) -> bool:
    key = each.server.key
    place = f"{key.address},{key.protocol.value}:{key.port}"
    return place in places or (key.protocol, str(key.port)) in ports


def _port(entry: str) -> str:
    """The port of a node port's entry: a bare number, or the end of address and protocol."""
    return entry.rpartition(":")[2]
