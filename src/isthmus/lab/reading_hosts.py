"""Reads the networks and hosts of a topology: addresses, and programs.

Networks are read before hosts; whether a network's router host is suitable is checked afterwards.
Hosts are read in two passes, because routes, services and placeholders refer to other hosts'
addresses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import NamedTuple

from isthmus.lab import reading_words as words
from isthmus.lab.commands import addresses, fill, known, ready_url
from isthmus.lab.topology import (
    READY_WITHIN_S,
    Attachment,
    IpAddress,
    IpNetwork,
    LabHost,
    LabNetwork,
    LabRoute,
    LabService,
    LineShape,
    Process,
    Serve,
    Serving,
    Topology,
)
from isthmus.text.addresses import cidr
from isthmus.text.located_yaml import Fields, Located, near
from isthmus.values import is_address

MAX_HOSTS = 64
MAX_HOST_CHARS = 40  # the namespace's name also has the lab's prefix
MAX_PROCESS_CHARS = 40
RESERVED_HOSTS = ("wall", "lab", "localhost")

HOST_KEYS = ("at", "also", "routes", "serve", "services", "sysctl", "machine", "processes")
AT_KEYS = ("address", "delay_ms", "loss", "rate_mbit")
ROUTE_KEYS = ("to", "via")
SERVICE_KEYS = ("address", "to")
PROCESS_KEYS = ("command", "ready", "start", "once", "after", "within_s")
SERVE_KEYS = tuple(kind.value for kind in Serving)

MAX_NETWORKS = 32
MAX_NETWORK_CHARS = 15  # an interface name: IFNAMSIZ without NUL
MAX_PORTS_CHARS = 12  # followed by a number
# Hosts' interfaces are named after networks; the others are names that the kernel uses.
RESERVED_NETWORKS = ("wall", "lab", "lo", "all", "default")
NETWORK_KEYS = ("cidr", "gateway", "behind", "bridge", "ports")
DEFAULT_PORTS = "port"

_PREFIXES = {4: range(8, 31), 6: range(16, 127)}
_INTERFACE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)


class _Draft(NamedTuple):
    """A host of which only the addresses are known so far."""

    host: LabHost
    found: Fields


def read_hosts(
    node: Located, name: str, networks: Mapping[str, LabNetwork], *, builds: bool = False
) -> tuple[LabHost, ...]:
    """Read the hosts of the topology of that name; ``builds`` is whether it builds a cluster."""
    taken: dict[tuple[str, IpAddress], str] = {}
    drafts = []
    for host, (key, value) in node.entries(most=MAX_HOSTS).items():
        words.check_name(key, host, "a host", most=MAX_HOST_CHARS, reserved=RESERVED_HOSTS)
        if host in networks:
            key.error("is also the name of a network: rules could mean either")
        drafts.append(_draft(value, host, networks, taken))
    if node.is_mapping and node.is_empty:
        node.error("is empty: a topology needs a host")
    known = Topology(name=name, title="", networks=(), hosts=(), builds=builds)
    reader = _Second(replace(known, hosts=tuple(draft.host for draft in drafts)))
    return tuple(reader.complete(draft) for draft in drafts)


def _draft(
    node: Located,
    name: str,
    networks: Mapping[str, LabNetwork],
    taken: dict[tuple[str, IpAddress], str],
) -> _Draft:
    found = node.mapping(HOST_KEYS, required=("at",))
    attachments = []
    for network, (key, value) in found["at"].entries(most=32).items() if "at" in found else ():
        if network not in networks:
            key.error(f"no network of this name{near(network, networks)}")
            continue
        attachments.append(_attachment(value, networks[network], name, taken))
    if "at" in found and found["at"].is_mapping and found["at"].is_empty:
        found["at"].error("is empty: a host needs a network")
    host = LabHost(name=name, attachments=tuple(attachments))
    also: list[IpAddress] = []
    for one in found.one_or_nodes("also", most=words.MAX_ITEMS):
        address = one.read(words.address)
        if address is not None and address in (*host.addresses, *also):
            one.error(f"{address} is already an address of this host")
        elif address and (address.is_loopback or address.is_multicast or address.is_unspecified):
            one.error(f"{address} is not a unicast address of a host")
        also += [address] if address is not None else []
    return _Draft(replace(host, also=tuple(also)), found)


def _attachment(
    node: Located, network: LabNetwork, host: str, taken: dict[tuple[str, IpAddress], str]
) -> Attachment:
    found = Fields(address=node)
    if node.is_mapping:
        found = node.mapping(AT_KEYS, required=("address",))
    shape = LineShape(
        delay_ms=found.number("delay_ms", 0.0, 0, 10_000),
        loss=found.number("loss", 0.0, 0, 0.9),
        rate_mbit=found.number("rate_mbit", 0.0, 0, 10_000),
    )
    if shape != LineShape() and network.behind:
        node.error(
            f"network {network.name} is behind {network.behind}, whose lines cannot be shaped"
        )
    given = []
    for place in words.some(found, "address"):
        address = place.read(words.address)
        if address is None:
            continue
        wrong = _why_not(address, network) or _whose(taken.get((network.name, address)))
        if wrong:
            place.error(f"{address} {wrong}")
        taken.setdefault((network.name, address), host)
        given.append(address)
    return Attachment(
        network=network.name, addresses=tuple(given), shape=None if shape == LineShape() else shape
    )


def _why_not(address: IpAddress, network: LabNetwork) -> str:
    """Why a host cannot have this address on a network; empty if it can."""
    inside = [one for one in network.cidrs if address in one]
    if not inside:
        listed = " or ".join(map(str, network.cidrs))
        return f"is not in {listed}, the addresses of network {network.name}" if listed else ""
    for one in inside:
        if address == one.network_address or (address.version == 4 and address == one[-1]):
            return f"is the first or the last of {one}, which hosts cannot use"
        if network.gateway and address == network.gateway_in(one):
            return f"is the gateway of {one}"
    return ""


def _whose(owner: str | None) -> str:
    return "" if owner is None else f"is already an address of host {owner}"


class _Second:
    """The second pass, with every host's addresses known."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._hosts = {host.name: host for host in topology.hosts}
        self._placeholders = known(self._topology)
        self._addresses = addresses(self._topology)
        self._processes: dict[str, str] = {}

    def complete(self, draft: _Draft) -> LabHost:
        host, found = draft
        return replace(
            host,
            routes=tuple(
                self._route(node, host) for node in found.nodes("routes", most=words.MAX_ITEMS)
            ),
            serves=_serves(found["serve"]) if "serve" in found else (),
            services=self._services(found),
            sysctls=_sysctls(found["sysctl"]) if "sysctl" in found else (),
            machine=found.boolean("machine", False),
            processes=self._read_processes(found, host.name),
        )

    def _route(self, node: Located, host: LabHost) -> LabRoute:
        found = node.mapping(ROUTE_KEYS, required=ROUTE_KEYS)
        to = found["to"].read(cidr) if "to" in found else None
        via = found["via"].reference(self._hosts, "host") if "via" in found else ""
        if via and via == host.name:
            found["via"].error("is this host")
        elif via:
            own = {at.network for at in host.attachments}
            both = [at for at in self._hosts[via].attachments if at.network in own]
            if not both:
                found["via"].error(f"{via} is not on a network of this host")
            elif to and not any(one.version == to.version for at in both for one in at.addresses):
                found["via"].error(f"{via} has no IPv{to.version} address on a shared network")
        return LabRoute(to=to or cidr("0.0.0.0/0"), via=via)

    def _services(self, found: Fields) -> tuple[LabService, ...]:
        read: list[LabService] = []
        for node in found.nodes("services", most=words.MAX_ITEMS):
            service = self._service(node)
            if service and any(_same_place(service, other) for other in read):
                node.error(f"{service.address} port {service.port} is already translated")
            read += [service] if service else []
        return tuple(read)

    def _service(self, node: Located) -> LabService | None:
        found = node.mapping(SERVICE_KEYS, required=SERVICE_KEYS)
        place = found["address"].read(words.address_and_port) if "address" in found else None
        to = found["to"].read(words.host_and_port) if "to" in found else None
        fixed = ip_address(to.host) if to and is_address(to.host) else None
        if to and not fixed and to.host not in self._hosts:
            found["to"].error(f"no host {to.host!r}{near(to.host, self._hosts)}")
        if not place or not to or not (fixed or to.host in self._hosts):
            return None
        address, port = place
        if fixed is not None:
            if fixed.version != address.version:
                found["to"].error(f"{fixed} is not an IPv{address.version} address")
            return LabService(address=address, port=port, to_address=fixed, to_port=to.port)
        if all(one.version != address.version for one in self._hosts[to.host].addresses):
            found["to"].error(f"{to.host} has no IPv{address.version} address")
        return LabService(address=address, port=port, to_host=to.host, to_port=to.port)

    def _read_processes(self, found: Fields, host: str) -> tuple[Process, ...]:
        entries = found["processes"].entries(most=32) if "processes" in found else {}
        read = []
        for name, (key, value) in entries.items():
            words.check_name(
                key, name, "a process", most=MAX_PROCESS_CHARS, reserved=("wall", "lab")
            )
            if name in self._processes:
                key.error(f"host {self._processes[name]} already has a process of this name")
            self._processes.setdefault(name, host)
            read.append(self._process(value, name, host))
        return tuple(read)

    def _process(self, node: Located, name: str, host: str) -> Process:
        if not node.is_mapping:
            command = words.command(node, self._placeholders)
            return Process(name=name, host=host, command=command, ready=ready_url(command))
        found = node.mapping(PROCESS_KEYS, required=("command",))
        command = ()
        if "command" in found:
            command = words.command(found["command"], self._placeholders)
        return Process(
            name=name,
            host=host,
            command=command,
            ready=self._ready(found["ready"]) if "ready" in found else ready_url(command),
            start=found.boolean("start", True),
            once=found.boolean("once", False),
            after=tuple(
                one.reference(self._processes, "earlier process")
                for one in words.some(found, "after")
            ),
            within_s=found.number("within_s", READY_WITHIN_S, 1, words.LONGEST_S),
        )

    def _ready(self, node: Located) -> str:
        text = words.filled(node, self._placeholders)
        if text:
            node.read(lambda text: words.ready(fill(text, self._addresses)))
        return text or ""


def _same_place(one: LabService, other: LabService) -> bool:
    return (one.address, one.port) == (other.address, other.port)


def _serves(node: Located) -> tuple[Serve, ...]:
    read: list[Serve] = []
    for kind, value in node.mapping(SERVE_KEYS).items():
        for one in value.one_or_items(most=words.MAX_ITEMS):
            port = one.integer(*words.PORTS)
            if any(port == other.port for other in read):
                one.error(f"port {port} is already served")
            read.append(Serve(kind=Serving(kind), port=port))
    return tuple(read)


def _sysctls(node: Located) -> tuple[tuple[str, str], ...]:
    read = []
    for name, (key, value) in node.entries(most=words.MAX_ITEMS).items():
        key.read(words.sysctl)
        text = value.text_or_number()
        if text is not None and not text.isprintable():
            value.error("must be one line")
        read.append((name, text or ""))
    return tuple(read)


class NetworkTable(dict[str, LabNetwork]):
    """The networks by name, and the positions of ``behind``."""

    def __init__(self) -> None:
        super().__init__()
        self.behind: dict[str, Fields] = {}


def read_networks(node: Located) -> NetworkTable:
    networks = NetworkTable()
    taken: list[tuple[IpNetwork, LabNetwork]] = []
    for name, (key, value) in node.entries(most=MAX_NETWORKS).items():
        words.check_name(key, name, "a network", most=MAX_NETWORK_CHARS, reserved=RESERVED_NETWORKS)
        found = value.mapping(NETWORK_KEYS, required=("cidr",))
        cidrs: list[IpNetwork] = []
        network = _place(found, name)
        for place in words.some(found, "cidr"):
            one = place.read(_network_cidr)
            if one is None:
                continue
            wrong = _overlap(one, network, taken)
            if wrong:
                place.error(f"{one} {wrong}")
            cidrs.append(one)
            taken.append((one, network))
        networks[name] = replace(network, cidrs=tuple(cidrs))
        if "behind" in found:
            networks.behind[name] = found
    if node.is_mapping and node.is_empty:
        node.error("is empty: a topology needs a network")
    return networks


def _place(found: Fields, name: str) -> LabNetwork:
    """Read the place of a network: at the wall, or behind a host, which is checked later."""
    if "behind" not in found:
        for key in ("bridge", "ports"):
            if key in found:
                found[key].error("is only for a network behind a host")
        return LabNetwork(name=name, cidrs=(), gateway=found.boolean("gateway", True))
    if "gateway" in found:
        found["gateway"].error("is for networks at the wall, and this network is behind a host")
    return LabNetwork(
        name=name,
        cidrs=(),
        gateway=False,
        behind=found.text("behind"),
        bridge=found.value("bridge", _bridge_name, ""),
        ports=found.value("ports", _ports_name, DEFAULT_PORTS),
    )


def check_behind(networks: NetworkTable, hosts: Collection[LabHost]) -> None:
    """Check the networks behind hosts, now that those are known."""
    named = {host.name: host for host in hosts}
    bridges: dict[tuple[str, str], str] = {}
    for name, found in networks.behind.items():
        network = networks[name]
        owner = found["behind"].reference(named, "host")
        if owner:
            _check_owner(found["behind"], network, named[owner])
        if network.bridge in networks:
            found["bridge"].error(
                "is the name of a network, and interfaces are named after networks"
            )
        other = bridges.setdefault((network.behind, network.bridge), name)
        if network.bridge and other != name:
            found["bridge"].error(f"is already the bridge of network {other}")
        if any(one.startswith(network.ports) for one in (*networks, network.bridge)):
            place = found["ports"] if "ports" in found else found["behind"]
            place.error(f"ports {network.ports!r}: another interface has that name or prefix")


def _check_owner(place: Located, network: LabNetwork, owner: LabHost) -> None:
    own = [at.addresses for at in owner.attachments if at.network == network.name]
    for one in network.cidrs:
        if not any(address in one for addresses in own for address in addresses):
            place.error(f"{owner.name} has no address in {one}, so it cannot be the router")


def _network_cidr(text: str) -> IpNetwork:
    one = cidr(text)
    allowed = _PREFIXES[one.version]
    if one.prefixlen not in allowed:
        raise ValueError(f"must have a prefix length from /{allowed[0]} to /{allowed[-1]}")
    first = one.network_address
    if first.is_loopback or first.is_multicast or first.is_link_local:
        raise ValueError("has addresses that hosts cannot use")
    return one


def _overlap(one: IpNetwork, network: LabNetwork, taken: list[tuple[IpNetwork, LabNetwork]]) -> str:
    """Why a network cannot have this CIDR; empty if it can.

    With overlapping networks the wall could not tell which one an address is in. Networks without a
    gateway do not matter to the wall.
    """
    for other, owner in taken:
        if one.version != other.version or not one.overlaps(other):
            continue
        if owner is network:
            return f"overlaps {other} of the same network"
        if owner.gateway and network.gateway:
            return f"overlaps {other} of network {owner.name}, and both have gateways"
    return ""


def _bridge_name(text: str) -> str:
    return _interface(text, MAX_NETWORK_CHARS)


def _ports_name(text: str) -> str:
    return _interface(text, MAX_PORTS_CHARS)


def _interface(text: str, most: int) -> str:
    if not _INTERFACE.fullmatch(text) or len(text) > most or text in RESERVED_NETWORKS:
        raise ValueError(
            f"is not a valid interface name: at most {most} lower-case letters, digits and hyphens"
        )
    return text
