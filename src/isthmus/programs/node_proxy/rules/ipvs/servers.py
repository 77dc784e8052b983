"""Virtual servers and destinations as values, and the commands between two states.

The kernel stores no owner with a virtual server, and other programs may have some: the node proxy
owns those that its ipsets list. ``isthmus.programs.node_proxy.kernel.ipvs_netlink`` sends commands
to the kernel.
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
    """linux/ip_vs.h: flags of a virtual server."""

    NONE = 0
    PERSISTENT = 0x1  # session affinity
    HASHED = 0x2  # set for every virtual server in the kernel's table
    SOURCE_PORT = 0x10  # for "mh": hash the source port as well


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The kernel's key of a virtual server."""

    address: str
    port: int
    protocol: PortProtocol

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServer:
    """An address and port, balanced over destinations."""

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
    """The kernel's state of a destination; ``connections`` are active plus inactive ones."""

    weight: int = 1
    connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelServer:
    """A virtual server in the kernel with its destinations."""

    server: VirtualServer
    destinations: Mapping[IpvsDestination, DestinationState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddServer:
    """Create a virtual server."""

    server: VirtualServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeServer:
    """Change scheduler, flags or timeout without interrupting the server."""

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
    """Set the weight of an existing destination; with 0 it takes no new connections."""

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
    """The command that removes an unwanted destination, or None if it has to wait.

    A TCP destination waits at weight 0 until its connections end. UDP and SCTP destinations are
    removed at once: their "connections" end only with the destination.
    """
    if key.protocol is PortProtocol.TCP and state.connections:
        if state.weight == 0:
            return None
        return WeighDestination(key=key, destination=destination, weight=0)
    return RemoveDestination(key=key, destination=destination)


def difference(
    wanted: Wanted, present: Collection[KernelServer], *, excluded: Collection[str] = ()
) -> list[IpvsCommand]:
    """The commands after which exactly the wanted servers exist.

    Servers whose address is in one of the ``excluded`` CIDRs are never removed.
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
    """Split commands into those that add servers or destinations and those that remove some.

    Removals go last: no packet finds a server without an endpoint that has one before and after.
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
    """The commands that undo a command, given the state before it.

    Connections of a removed destination are not restored.
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
        elif state.weight != 1:  # the endpoint came back before its connections had ended
            yield WeighDestination(key=key, destination=each, weight=1)
    for each in sorted(present.keys() - wanted):
        command = removal(key, each, present[each])
        if command is not None:
            yield command


class TerminatingDestinations:
    """The destinations that wait for their connections to end."""

    def __init__(self) -> None:
        self._waiting: dict[ServerKey, set[IpvsDestination]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def keys(self) -> list[ServerKey]:
        """The virtual servers with waiting destinations."""
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
        """The removals of destinations without connections, given the kernel's state.

        Destinations that the kernel no longer has are forgotten.
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
    """The servers that entries of the sets refer to."""
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
    """The port of a node port entry: a bare number, or the last part of a longer entry."""
    return entry.rpartition(":")[2]
