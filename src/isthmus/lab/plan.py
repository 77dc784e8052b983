"""Plans a lab in the kernel: names, sysctls, routes, hosts files and firewall rules.

Pure: fabric.py carries the plan out, and removal.py finds the result by its prefix. Rules are input
for nft, or for iptables-restore and ip6tables-restore. They contain only addresses, CIDRs and port
numbers of the topology, never free text.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from isthmus.errors import ConfigError
from isthmus.lab.topology import (
    Attachment,
    IpAddress,
    IpNetwork,
    LabHost,
    LabNetwork,
    LabService,
    Topology,
    Wall,
)

PREFIX = "isthmus-lab-"
#: The name that stands for the firewall between the networks; no host can have it.
WALL = "wall"
_ANYWHERE = {4: "0.0.0.0", 6: "::"}

# Sysctls of every namespace, by IP version. "default" applies to links that are created later.
_SETTINGS = {
    4: {
        "net.ipv4.conf.all.rp_filter": "0",  # replies may take another path than requests
        "net.ipv4.conf.default.rp_filter": "0",
    },
    6: {
        "net.ipv6.conf.all.disable_ipv6": "0",
        "net.ipv6.conf.default.disable_ipv6": "0",
        "net.ipv6.conf.default.accept_dad": "0",  # addresses are unique: usable at once
        "net.ipv6.conf.default.accept_ra": "0",
        "net.ipv6.conf.default.accept_redirects": "0",
    },
}
_FORWARDING = {
    4: {
        "net.ipv4.ip_forward": "1",
        "net.ipv4.conf.all.send_redirects": "0",  # routes are those of the topology
        "net.ipv4.conf.default.send_redirects": "0",
    },
    6: {"net.ipv6.conf.all.forwarding": "1"},
}
# Every rejected connection gets an ICMP error, not only the first six within a second.
_WALL_SETTINGS = {
    4: {
        "net.ipv4.icmp_ratemask": "0",
        "net.ipv4.conf.all.arp_ignore": "1",  # two networks may have the same addresses
    },
    6: {"net.ipv6.icmp.ratelimit": "0"},
}

NFT = "nft"
IPTABLES = "iptables"
#: The program that each firewall needs.
PROGRAMS = {NFT: "nft", IPTABLES: "iptables-restore"}
_FAMILIES = {4: "ip", 6: "ip6"}
_REJECT = {4: "icmp-admin-prohibited", 6: "icmp6-adm-prohibited"}
_ICMP = {4: "icmp", 6: "ipv6-icmp"}
# The legacy tool has one lock for all namespaces of a machine.
_RESTORE = {4: ("iptables-restore", "-w", "5"), 6: ("ip6tables-restore", "-w", "5")}

Place = IpAddress | IpNetwork


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a lab's objects, derived from its token.

    Names of namespaces contain the token. Bridges and ports are inside the wall's namespace and do
    not need it; an interface's name has at most 15 characters.
    """

    token: str

    @property
    def prefix(self) -> str:
        """The prefix of the names of all namespaces of this lab, and of no other lab."""
        return f"{PREFIX}{self.token}-"

    @property
    def wall(self) -> str:
        """The namespace that has the bridges of the networks and separates them."""
        return self.prefix + WALL

    def host(self, name: str) -> str:
        """The namespace of a host.

        Raises:
            ValueError: the host has the wall's name.
        """
        if name == WALL:
            raise ValueError(f"a host cannot be called {WALL}")
        return self.prefix + name

    def bridge(self, network: str) -> str:
        """The bridge of a network, in the wall; named like the interfaces of its hosts."""
        return network

    def port(self, host: str, network: str) -> str:
        """The wall's side of a host's link to a network."""
        # A digest, because two names are too long; the start of the host's name keeps it readable.
        # No name contains a NUL, so no two pairs have the same text.
        digest = hashlib.sha256(f"{host}\0{network}".encode()).hexdigest()
        return f"{host[:4]}-{digest[:10]}"


def addresses_seen(topology: Topology, asking: str, host: str) -> tuple[IpAddress, ...]:
    """The addresses of a host, in the order in which another host, or itself, should try them.

    Those on a shared network come first, then those on networks with a gateway, then the others,
    loopback addresses last; for the host itself they are in the topology's order.
    """
    near = {at.network for at in topology.host(asking).attachments}

    def distance(network: str) -> int:
        if network in near:
            return 0
        return 1 if topology.network(network).gateway else 2

    asked = topology.host(host)
    places = sorted(asked.attachments, key=lambda at: distance(at.network))
    return (*(one for at in places for one in at.addresses), *asked.also)


def shared_addresses(topology: Topology, asking: str, host: str) -> tuple[IpAddress, ...]:
    """The addresses of a host on the networks that it shares with another."""
    near = {at.network for at in topology.host(asking).attachments}
    places = (at for at in topology.host(host).attachments if at.network in near)
    return tuple(one for at in places for one in at.addresses)


def hosts_file(topology: Topology, host_name: str) -> str:
    """The /etc/hosts of one host: every host of the lab, then the topology's own names.

    Unreachable hosts are included: a name has to resolve for the connection to fail.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for host in topology.hosts:
        lines += [f"{one} {host.name}" for one in addresses_seen(topology, host_name, host.name)]
    lines += [f"{address} {name}" for name, address in topology.names]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Hop:
    """A route: ``to`` by the gateway ``via``, or without one directly on ``link``."""

    to: IpNetwork
    via: IpAddress | None = None
    link: str = ""


def versions(topology: Topology) -> tuple[int, ...]:
    """The IP versions of the topology's addresses."""
    networks = {cidr.version for network in topology.networks for cidr in network.cidrs}
    others = {one.version for host in topology.hosts for one in host.addresses}
    return tuple(sorted(networks | others))


def wall_settings(topology: Topology) -> dict[str, str]:
    """The sysctls of the wall, to be set before it has links."""
    tables = (_SETTINGS, _FORWARDING, _WALL_SETTINGS)
    return _merged(table[version] for version in versions(topology) for table in tables)


def host_settings(topology: Topology, host: LabHost) -> dict[str, str]:
    """The sysctls of a host, to be set before it has links; the topology's own come last."""
    routers = {route.via for one in topology.hosts for route in one.routes}
    routers |= {network.behind for network in topology.networks}
    forwards = bool(host.services) or host.name in routers
    tables = (_SETTINGS, _FORWARDING) if forwards else (_SETTINGS,)
    settings = _merged(table[version] for version in versions(topology) for table in tables)
    if topology.congestion_control:
        settings["net.ipv4.tcp_congestion_control"] = topology.congestion_control
    return {**settings, **dict(host.sysctls)}


def _merged(tables: Iterable[dict[str, str]]) -> dict[str, str]:
    return {key: value for table in tables for key, value in table.items()}


def host_routes(topology: Topology, host: LabHost) -> list[Hop]:
    """The routes of a host, except those to its own networks.

    Raises:
        ConfigError: a gateway is on none of the host's networks.
    """
    hops = list(_cable_hops(topology, host))
    for version in versions(topology):
        gateway = _gateway(topology, host, version)
        anywhere = ip_network((_ANYWHERE[version], 0))
        if any(route.to == anywhere for route in host.routes):
            continue  # the topology's own route wins
        if gateway is not None:
            hops.append(Hop(anywhere, gateway))
            continue
        # DNAT comes after routing: without a route to a service its packets are not sent at all.
        link = next((at.network for at in host.attachments if _has(at, version)), "")
        services = dict.fromkeys(one.address for one in host.services)
        here = (one for one in services if link and one.version == version)
        hops += [Hop(ip_network(one), link=link) for one in here]
    for route in host.routes:
        shared = shared_addresses(topology, host.name, route.via)
        via = next((one for one in shared if one.version == route.to.version), None)
        if via is None:
            raise ConfigError(
                f"{host.name}: no route to {route.to} via {route.via}, which has no IPv"
                f"{route.to.version} address on a network of {host.name}"
            )
        hops.append(Hop(route.to, via))
    return hops


def _gateway(topology: Topology, host: LabHost, version: int) -> IpAddress | None:
    for at in host.attachments:
        network = topology.network(at.network)
        if network.gateway and _has(at, version):
            for cidr in network.cidrs:
                if cidr.version == version:
                    return network.gateway_in(cidr)
        elif network.behind and network.behind != host.name:
            for router in owner_addresses(topology, network):
                if router.version == version and _has(at, version):
                    return router
    return None


def _cable_hops(topology: Topology, host: LabHost) -> Iterator[Hop]:
    """The routes to the router, for a host that is attached by a cable instead of a network."""
    for at in host.attachments:
        network = topology.network(at.network)
        if network.behind and network.behind != host.name and not network.bridge:
            for router in owner_addresses(topology, network):
                if _has(at, router.version):
                    yield Hop(ip_network(router), link=at.network)


def owner_addresses(topology: Topology, network: LabNetwork) -> tuple[IpAddress, ...]:
    """The addresses of a network's router host on that network."""
    places = topology.host(network.behind).attachments
    return next(at.addresses for at in places if at.network == network.name)


def ports_of(topology: Topology, owner: str) -> dict[tuple[str, str], str]:
    """The names of a host's ends of the cables of networks behind it, by host and network."""
    counts: Counter[str] = Counter()
    found = {}
    for network in topology.networks:
        for host in topology.hosts if network.behind == owner else ():
            if host.name != owner and any(at.network == network.name for at in host.attachments):
                counts[network.ports] += 1
                found[host.name, network.name] = f"{network.ports}{counts[network.ports]}"
    return found


def _has(at: Attachment, version: int) -> bool:
    return any(one.version == version for one in at.addresses)


@dataclass(frozen=True, slots=True)
class FirewallLoad:
    """A command to run in the namespace, and the rules for its standard input."""

    argv: tuple[str, ...]
    rules: str


@dataclass(frozen=True, slots=True)
class _Pass:
    """One allowed pair of one IP family; without ports all protocols are allowed."""

    version: int
    sources: tuple[Place, ...]
    targets: tuple[Place, ...]
    ports: tuple[int, ...]


def wall_rules(topology: Topology, firewall: str) -> list[FirewallLoad]:
    """The rules of the wall: default deny between networks and to itself, with exceptions."""
    if firewall == NFT:
        return [FirewallLoad(("nft", "-f", "-"), _wall_nft(topology))]
    return [
        FirewallLoad(_RESTORE[one], _wall_iptables(topology, one)) for one in versions(topology)
    ]


def service_rules(topology: Topology, host: LabHost, firewall: str) -> list[FirewallLoad]:
    """The rules of a host's services; empty if it has none.

    Raises:
        ConfigError: a service leads to a host without an address of its family.
    """
    ways = [(one, backend(topology, host, one)) for one in host.services]
    if not ways:
        return []
    if firewall == NFT:
        return [FirewallLoad(("nft", "-f", "-"), _services_nft(ways))]
    found = sorted({service.address.version for service, _ in ways})
    return [FirewallLoad(_RESTORE[one], _services_iptables(ways, one)) for one in found]


def backend(topology: Topology, host: LabHost, service: LabService) -> IpAddress:
    """The address to which a host translates a service.

    Raises:
        ConfigError: the service's host has no address of its family.
    """
    if service.to_address is not None:
        return service.to_address
    for address in addresses_seen(topology, host.name, service.to_host):
        if address.version == service.address.version:
            return address
    raise ConfigError(
        f"{host.name}: service {service.address}: {service.to_host} has no IPv"
        f"{service.address.version} address"
    )


def _passes(topology: Topology) -> Iterator[_Pass]:
    for allow in topology.allows:
        sources, targets = _places(topology, allow.source), _places(topology, allow.target)
        for version in _FAMILIES:
            here, there = _of(version, sources), _of(version, targets)
            if here and there:
                yield _Pass(version, here, there, allow.ports)


def _places(topology: Topology, name: str) -> Sequence[Place]:
    if any(host.name == name for host in topology.hosts):
        return topology.host(name).addresses
    return topology.network(name).cidrs


def _of(version: int, places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(one for one in places if one.version == version))


def _set(items: Iterable[object]) -> str:
    return "{ " + ", ".join(str(item) for item in items) + " }"


def _wall_nft(topology: Topology) -> str:
    allowed = []
    for one in _passes(topology):
        family = _FAMILIES[one.version]
        ports = f" tcp dport {_set(one.ports)}" if one.ports else ""
        allowed.append(
            f"{family} saddr {_set(one.sources)} {family} daddr {_set(one.targets)}{ports} accept"
        )
    # Counted, to see that the wall was tried.
    rejects = topology.wall is Wall.REJECT
    end = [f"counter {'reject with icmpx type admin-prohibited' if rejects else 'drop'}"]
    known = "ct state established,related accept"
    icmp = f"meta l4proto {_set(_ICMP.values())} accept"  # neighbour discovery is among it
    return _table(
        "isthmus",
        _chain("forward", "filter", 0, [known, *allowed, *end], policy="drop"),
        _chain("input", "filter", 0, [known, icmp, *end], policy="drop"),
    )


def _services_nft(ways: Sequence[tuple[LabService, IpAddress]]) -> str:
    translated = [
        f"{_FAMILIES[to.version]} daddr {one.address} tcp dport {one.port}"
        f" dnat {_FAMILIES[to.version]} to {_authority(to, one.to_port)}"
        for one, to in ways
    ]
    masqueraded = 'oifname != "lo" ct status dnat masquerade'
    return _table(
        "isthmus",
        _chain("prerouting", "nat", -100, translated),
        _chain("output", "nat", -100, translated),
        _chain("postrouting", "nat", 100, [masqueraded]),
    )


def _table(name: str, *chains: str) -> str:
    return f"table inet {name} {{\n{''.join(chains)}}}\n"


def _chain(
    hook: str, kind: str, priority: int, rules: Iterable[str], *, policy: str = "accept"
) -> str:
    head = f"    type {kind} hook {hook} priority {priority}; policy {policy};\n"
    body = "".join(f"    {rule}\n" for rule in rules)
    return f"  chain {hook} {{\n{head}{body}  }}\n"


def _wall_iptables(topology: Topology, version: int) -> str:
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    lines = ["*filter", ":INPUT DROP [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT ACCEPT [0:0]"]
    lines.append(f"-A FORWARD {known}")
    for one in _passes(topology):
        if one.version == version:
            lines += [f"-A FORWARD {match} -j ACCEPT" for match in _matches(one)]
    lines += [f"-A INPUT {known}", f"-A INPUT -p {_ICMP[version]} -j ACCEPT"]
    if topology.wall is Wall.REJECT:
        reject = f"-j REJECT --reject-with {_REJECT[version]}"
        lines += [f"-A {chain} {reject}" for chain in ("FORWARD", "INPUT")]
    return _restored(lines)


def _matches(one: _Pass) -> Iterator[str]:
    for source in one.sources:
        for target in one.targets:
            ends = f"-s {source} -d {target}"
            if not one.ports:
                yield ends
            # One rule per port: multiport takes at most fifteen.
            for port in one.ports:
                yield f"{ends} -p tcp -m tcp --dport {port}"


def _services_iptables(ways: Sequence[tuple[LabService, IpAddress]], version: int) -> str:
    lines = ["*nat"]
    lines += [f":{chain} ACCEPT [0:0]" for chain in ("PREROUTING", "INPUT", "OUTPUT")]
    lines.append(":POSTROUTING ACCEPT [0:0]")
    for one, to in ways:
        if to.version == version:
            what = f"-d {one.address} -p tcp -m tcp --dport {one.port}"
            where = f"-j DNAT --to-destination {_authority(to, one.to_port)}"
            lines += [f"-A {chain} {what} {where}" for chain in ("PREROUTING", "OUTPUT")]
    # Replies have to come back through this host to be translated back; and the host's own packets
    # have the source address of the path without translation.
    lines.append("-A POSTROUTING ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE")
    return _restored(lines)


def _restored(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (*lines, "COMMIT"))


def _authority(address: IpAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
