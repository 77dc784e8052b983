"""What a lab is in the kernel: names, settings, routes, and what names mean on each host.

Pure: fabric.py makes what is planned here, and removal.py finds it again by its prefix.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from isthmus.errors import ConfigError
from isthmus.lab.topology import Attachment, Host, IpAddress, IpNetwork, Network, Topology

PREFIX = "isthmus-lab-"
#: The host that is no host: the firewall between the networks.
WALL = "wall"
_ANYWHERE = {4: "0.0.0.0", 6: "::"}

# Of every namespace, by IP version. What is "default" is for links that are made later.
_SETTINGS = {
    4: {
        "net.ipv4.conf.all.rp_filter": "0",  # answers may come by another way than questions
        "net.ipv4.conf.default.rp_filter": "0",
    },
    6: {
        "net.ipv6.conf.all.disable_ipv6": "0",
        "net.ipv6.conf.default.disable_ipv6": "0",
        "net.ipv6.conf.default.accept_dad": "0",  # nobody else is here: usable at once
        "net.ipv6.conf.default.accept_ra": "0",
        "net.ipv6.conf.default.accept_redirects": "0",
    },
}
_FORWARDING = {
    4: {
        "net.ipv4.ip_forward": "1",
        "net.ipv4.conf.all.send_redirects": "0",  # routes are as the topology says
        "net.ipv4.conf.default.send_redirects": "0",
    },
    6: {"net.ipv6.conf.all.forwarding": "1"},
}
# A rejected connection is told so each time, not the first six within a second.
_WALL_SETTINGS = {
    4: {
        "net.ipv4.icmp_ratemask": "0",
        "net.ipv4.conf.all.arp_ignore": "1",  # two networks may have the same addresses
    },
    6: {"net.ipv6.icmp.ratelimit": "0"},
}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one lab's things: the same for everybody who knows its token.

    Namespaces have the token in their names. Bridges and ports are inside the wall's, where nobody
    else is, and do without; an interface's name has at most 15 characters.
    """

    token: str

    @property
    def prefix(self) -> str:
        """What the name of every namespace of this lab begins with, and of no other's."""
        return f"{PREFIX}{self.token}-"

    @property
    def wall(self) -> str:
        """The namespace that holds the networks and stands between them."""
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
        """The bridge of a network, in the wall: called as the interfaces of its hosts."""
        return network

    def port(self, host: str, network: str) -> str:
        """The wall's side of a host's link to a network."""
        # A digest, since two names do not fit; of the host's just enough is kept to read it.
        # A NUL is in no name, so that no two pairs are the same text.
        digest = hashlib.sha256(f"{host}\0{network}".encode()).hexdigest()
        return f"{host[:4]}-{digest[:10]}"


def addresses_seen(topology: Topology, asking: str, host: str) -> tuple[IpAddress, ...]:
    """The addresses of a host in the order in which another, or it itself, should try them.

    Those on a network that both are on come first, then those on networks with a gateway, then the
    others, its loopback's last; for the host itself, they come as the topology has them.
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
    """Write the /etc/hosts of one host: every host of the lab, then the topology's own names.

    A host that cannot be reached is there too: its name has to resolve for the connection to fail.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for host in topology.hosts:
        lines += [f"{one} {host.name}" for one in addresses_seen(topology, host_name, host.name)]
    lines += [f"{address} {name}" for name, address in topology.names]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Hop:
    """A route: ``to`` goes to the address ``via``, or without one to whoever is on ``link``."""

    to: IpNetwork
    via: IpAddress | None = None
    link: str = ""


def versions(topology: Topology) -> tuple[int, ...]:
    """The IP versions that a topology has addresses of."""
    networks = {cidr.version for network in topology.networks for cidr in network.cidrs}
    others = {one.version for host in topology.hosts for one in host.addresses}
    return tuple(sorted(networks | others))


def wall_settings(topology: Topology) -> dict[str, str]:
    """The sysctls of the wall, to be set before it has links."""
    tables = (_SETTINGS, _FORWARDING, _WALL_SETTINGS)
    return _merged(table[version] for version in versions(topology) for table in tables)


def host_settings(topology: Topology, host: Host) -> dict[str, str]:
    """The sysctls of a host, to be set before it has links: the topology's own come last."""
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


def host_routes(topology: Topology, host: Host) -> list[Hop]:
    """The routes of a host, but those to its own networks.

    Raises:
        ConfigError: the host that a route goes by is on none of its networks.
    """
    hops = list(_cable_hops(topology, host))
    for version in versions(topology):
        gateway = _gateway(topology, host, version)
        anywhere = ip_network((_ANYWHERE[version], 0))
        if any(route.to == anywhere for route in host.routes):
            continue  # the topology knows better
        if gateway is not None:
            hops.append(Hop(anywhere, gateway))
            continue
        # Translation comes after routing: a service needs some way out to be sent at all.
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


def _gateway(topology: Topology, host: Host, version: int) -> IpAddress | None:
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


def _cable_hops(topology: Topology, host: Host) -> Iterator[Hop]:
    """The way to the router, for who has a cable to it and no network around."""
    for at in host.attachments:
        network = topology.network(at.network)
        if network.behind and network.behind != host.name and not network.bridge:
            for router in owner_addresses(topology, network):
                if _has(at, router.version):
                    yield Hop(ip_network(router), link=at.network)


def owner_addresses(topology: Topology, network: Network) -> tuple[IpAddress, ...]:
    """The addresses on a network of the host that it is behind."""
    places = topology.host(network.behind).attachments
    return next(at.addresses for at in places if at.network == network.name)


def ports_of(topology: Topology, owner: str) -> dict[tuple[str, str], str]:
    """What a host calls its ends of the cables of networks behind it, by host and network."""
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
