"""Reading the networks of a topology: those of the wall, and those behind one of the hosts.

Networks are read before there are hosts; whether the host that one is behind can be its router is
looked at afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from isthmus.lab import reading_words as words
from isthmus.lab.topology import Host, IpNetwork, Network
from isthmus.settings.located import Fields, Located
from isthmus.text.cidrs import cidr

MAX_NETWORKS = 32
MAX_NETWORK_CHARS = 15  # an interface's name, IFNAMSIZ less its zero
MAX_PORTS_CHARS = 12  # a number follows
# An interface of each host is called as the network; the others are names the kernel has itself.
RESERVED = ("wall", "lab", "lo", "all", "default")
NETWORK_KEYS = ("cidr", "gateway", "behind", "bridge", "ports")
DEFAULT_PORTS = "port"

_PREFIXES = {4: range(8, 31), 6: range(16, 127)}
_INTERFACE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)


class Networks(dict[str, Network]):
    """The networks by their names, and where it was said of some which host they are behind."""

    def __init__(self) -> None:
        super().__init__()
        self.behind: dict[str, Fields] = {}


def read_networks(node: Located) -> Networks:
    """Read the networks."""
    networks = Networks()
    taken: list[tuple[IpNetwork, Network]] = []
    for name, (key, value) in node.entries(most=MAX_NETWORKS).items():
        words.check_name(key, name, "a network", most=MAX_NETWORK_CHARS, reserved=RESERVED)
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
        node.error("is empty, a topology needs a network")
    return networks


def _place(found: Fields, name: str) -> Network:
    """Read where a network is: at the wall, or behind a host, which is not looked at yet."""
    if "behind" not in found:
        for key in ("bridge", "ports"):
            if key in found:
                found[key].error("is only for a network behind a host")
        return Network(name=name, cidrs=(), gateway=found.boolean("gateway", True))
    if "gateway" in found:
        found["gateway"].error("is the wall's, and this network is behind a host")
    return Network(
        name=name,
        cidrs=(),
        gateway=False,
        behind=found.text("behind"),
        bridge=found.value("bridge", _bridge_name, ""),
        ports=found.value("ports", _ports_name, DEFAULT_PORTS),
    )


def check_behind(networks: Networks, hosts: Collection[Host]) -> None:
    """Look at the networks behind hosts, now that those are known."""
    named = {host.name: host for host in hosts}
    bridges: dict[tuple[str, str], str] = {}
    for name, found in networks.behind.items():
        network = networks[name]
        owner = found["behind"].reference(named, "host")
        if owner:
            _check_owner(found["behind"], network, named[owner])
        if network.bridge in networks:
            found["bridge"].error("is the name of a network, which interfaces are called as")
        other = bridges.setdefault((network.behind, network.bridge), name)
        if network.bridge and other != name:
            found["bridge"].error(f"is the bridge of network {other} already")
        if any(one.startswith(network.ports) for one in (*networks, network.bridge)):
            place = found["ports"] if "ports" in found else found["behind"]
            place.error(f"ports {network.ports!r}: another interface is called so, or begins so")


def _check_owner(place: Located, network: Network, owner: Host) -> None:
    own = [at.addresses for at in owner.attachments if at.network == network.name]
    for one in network.cidrs:
        if not any(address in one for addresses in own for address in addresses):
            place.error(f"{owner.name} has no address in {one}, so it cannot be its router")


def _network_cidr(text: str) -> IpNetwork:
    one = cidr(text)
    allowed = _PREFIXES[one.version]
    if one.prefixlen not in allowed:
        raise ValueError(f"is not a network of /{allowed[0]} to /{allowed[-1]}")
    first = one.network_address
    if first.is_loopback or first.is_multicast or first.is_link_local:
        raise ValueError("has addresses that are not for hosts")
    return one


def _overlap(one: IpNetwork, network: Network, taken: list[tuple[IpNetwork, Network]]) -> str:
    """Why a network cannot have this CIDR too; empty when it can.

    The wall could not tell which of two networks an address is in. One without a gateway is none
    of its business.
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
    if not _INTERFACE.fullmatch(text) or len(text) > most or text in RESERVED:
        raise ValueError(
            f"is no name for interfaces: at most {most} lower-case letters, digits and hyphens"
        )
    return text
