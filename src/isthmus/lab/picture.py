"""The contents of a picture of a lab, as values: networks, hosts, openings, links, tunnels.

Made from a topology and its live state (picture_live.py). picture_text.py and picture_svg.py draw
it; this module knows no coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import PurePosixPath

from isthmus.lab.picture_live import LiveLink, LiveState, clean, links
from isthmus.lab.topology import (
    Allow,
    Attachment,
    LabHost,
    LabNetwork,
    LineShape,
    Process,
    Topology,
    Wall,
)
from isthmus.text.units import size, took


class ProcessMark(Enum):
    """The state of a process."""

    RUNNING = "running"
    DEAD = "dead"
    WAITING = "not started"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnProcess:
    """A process and its program."""

    name: str
    what: str
    mark: ProcessMark


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddresses:
    """A host's addresses on a network; ``shape`` describes a bad line, if it is one."""

    network: str
    addresses: tuple[str, ...]
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnHost:
    """A host, drawn in its first network, with lines to the others."""

    name: str
    places: tuple[HostAddresses, ...]
    also: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    processes: tuple[DrawnProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGuest:
    """A host's small card in a further network."""

    host: str
    place: HostAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNetwork:
    """A network with the hosts drawn in it."""

    name: str
    cidrs: tuple[str, ...]
    note: str  # the host it is behind, if it is not at the wall
    hosts: tuple[DrawnHost, ...]
    guests: tuple[DrawnGuest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOpening:
    """An opening of the wall; ``both``: in both directions.

    ``source`` and ``target`` are networks with the wall between them; ``who`` and ``whom`` are the
    names to show; the sets are the hosts meant.
    """

    source: str
    target: str
    who: str
    whom: str
    both: bool
    sources: frozenset[str]
    targets: frozenset[str]

    def admits(self, source: str, target: str) -> bool:
        """Whether a host may connect to another by this opening."""
        return (source in self.sources and target in self.targets) or (
            self.both and source in self.targets and target in self.sources
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPicture:
    """A whole lab. Networks with a server come first, then in the topology's order."""

    name: str
    title: str
    drops: bool
    networks: tuple[DrawnNetwork, ...]
    openings: tuple[DrawnOpening, ...]
    links: tuple[LiveLink, ...]

    def host_of(self, process: str) -> str:
        """The host that a process runs on; empty for a process outside the lab."""
        for host in self.hosts:
            if any(one.name == process for one in host.processes):
                return host.name
        return ""

    @property
    def hosts(self) -> tuple[DrawnHost, ...]:
        """All hosts, network by network."""
        return tuple(host for network in self.networks for host in network.hosts)


def picture(topology: Topology, live: LiveState) -> LabPicture:
    """The picture of a topology; an empty ``live`` shows the topology alone."""
    return LabPicture(
        name=clean(topology.name),
        title=clean(topology.title, most=200),
        drops=topology.wall is Wall.DROP,
        networks=_networks(topology, live),
        openings=tuple(_openings(topology)),
        links=links(topology, live),
    )


def _networks(topology: Topology, live: LiveState) -> tuple[DrawnNetwork, ...]:
    made = []
    for network in topology.networks:
        hosts = [host for host in topology.hosts if _home(host) == network.name]
        made.append(
            DrawnNetwork(
                name=clean(network.name),
                cidrs=tuple(map(str, network.cidrs)),
                note=_note(network),
                hosts=tuple(_host(host, live) for host in hosts),
                guests=tuple(
                    DrawnGuest(host=clean(host.name), place=_place(at))
                    for host in topology.hosts
                    for at in host.attachments[1:]
                    if at.network == network.name
                ),
            )
        )
    return tuple(sorted(made, key=lambda one: not _has_server(one)))


def _note(network: LabNetwork) -> str:
    if network.behind:
        return clean(f"behind {network.behind}")
    return "" if network.gateway else "no gateway"


def _home(host: LabHost) -> str:
    return host.attachments[0].network if host.attachments else ""


def _has_server(network: DrawnNetwork) -> bool:
    return any(
        process.what == "isthmus server" for host in network.hosts for process in host.processes
    )


def _host(host: LabHost, live: LiveState) -> DrawnHost:
    return DrawnHost(
        name=clean(host.name),
        places=tuple(map(_place, host.attachments)),
        also=tuple(map(str, host.also)),
        serves=tuple(f"{one.kind.value} :{one.port}" for one in host.serves),
        services=tuple(
            f"{_join(str(one.address), one.port)} → {clean(one.to)}:{one.to_port}"
            for one in host.services
        ),
        processes=tuple(
            DrawnProcess(name=clean(one.name), what=_what(one), mark=_mark(one, live))
            for one in host.processes
        ),
    )


def _place(at: Attachment) -> HostAddresses:
    return HostAddresses(
        network=clean(at.network),
        addresses=tuple(map(str, at.addresses)),
        shape=shape_text(at.shape),
    )


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _what(process: Process) -> str:
    words = process.command
    if not words:
        return ""
    program = PurePosixPath(words[0]).name
    if program == "isthmus" and len(words) > 1:
        return clean(f"isthmus {words[1]}", most=30)
    if "-m" in words[1:-1]:  # python -m isthmus.lab.balancer
        return clean(words[words.index("-m") + 1].rpartition(".")[2], most=30)
    return clean(program, most=30)


def _mark(process: Process, live: LiveState) -> ProcessMark:
    if process.name not in live.running:
        return ProcessMark.WAITING
    return ProcessMark.RUNNING if live.running[process.name] else ProcessMark.DEAD


def _openings(topology: Topology) -> Iterator[DrawnOpening]:
    """The wall's openings; a pair in opposite directions is merged."""
    taken: set[Allow] = set()
    for allow in topology.allows:
        sides = _sides(topology, allow)
        if sides is None or allow in taken:
            continue
        back = Allow(source=allow.target, target=allow.source, ports=())
        both = not allow.ports and back in topology.allows
        taken |= {allow, back} if both else {allow}
        ports = ",".join(map(str, allow.ports))
        yield DrawnOpening(
            source=clean(sides[0]),
            target=clean(sides[1]),
            who=clean(allow.source),
            whom=clean(f"{allow.target}:{ports}" if ports else allow.target),
            both=both,
            sources=_hosts(topology, allow.source),
            targets=_hosts(topology, allow.target),
        )


def _sides(topology: Topology, allow: Allow) -> tuple[str, str] | None:
    """The two networks that an opening connects; None inside one network, which has no wall."""
    pairs = [
        (one, other)
        for one, other in product(_at(topology, allow.source), _at(topology, allow.target))
        if one != other
    ]
    # Nothing reaches the wall from a network without a gateway.
    routed = {network.name for network in topology.networks if network.gateway}
    return min(pairs, key=lambda pair: not routed.issuperset(pair), default=None)


def _at(topology: Topology, name: str) -> tuple[str, ...]:
    for host in topology.hosts:
        if host.name == name:
            return tuple(at.network for at in host.attachments)
    return tuple(network.name for network in topology.networks if network.name == name)


def _hosts(topology: Topology, name: str) -> frozenset[str]:
    named = {host.name for host in topology.hosts}
    if name in named:
        return frozenset({name})
    return frozenset(
        host.name for host in topology.hosts if any(at.network == name for at in host.attachments)
    )


def shape_text(shape: LineShape | None) -> str:
    """The properties of a line: ``50 ms, 1 % loss, 20 Mbit/s``; empty if it has none."""
    if shape is None:
        return ""
    parts = (
        f"{shape.delay_ms:g} ms" if shape.delay_ms else "",
        f"{shape.loss * 100:g} % loss" if shape.loss else "",
        f"{shape.rate_mbit:g} Mbit/s" if shape.rate_mbit else "",
    )
    return ", ".join(part for part in parts if part)


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 tunnel``, ``3 tunnels``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def flow_text(to_target: int | None, to_client: int | None) -> str:
    """The bytes in each direction: up towards the target, down towards the client."""
    up = "" if to_target is None else f"↑ {size(to_target)}"
    down = "" if to_client is None else f"↓ {size(to_client)}"
    return f"{up} {down}".strip()


def link_texts(link: LiveLink) -> tuple[str, ...]:
    """A link's numbers, most important first; its state only when it is not well."""
    stalled = link.stalled
    return tuple(
        part
        for part in (
            "" if link.well else (link.state or "state unknown"),
            counted(link.open, "tunnel") + (f", {stalled} stalled" if stalled else ""),
            flow_text(link.to_agent, link.to_server),
            "" if link.rtt_s is None else f"rtt {took(link.rtt_s)}",
        )
        if part
    )
