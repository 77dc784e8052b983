"""The rules of a lab as texts: what the wall lets through, and which addresses a host translates.

Pure: fabric.py loads them, by nft or by iptables-restore and ip6tables-restore. Rules have only
addresses, CIDRs and port numbers of the topology in them, never a text that somebody wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.lab.plan import addresses_seen, versions
from isthmus.lab.topology import Host, IpAddress, IpNetwork, Service, Topology, Wall

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
class Load:
    """A command, to be run inside the namespace, and the rules that it reads."""

    argv: tuple[str, ...]
    rules: str


@dataclass(frozen=True, slots=True)
class _Pass:
    """One allowed way, of one family; without ports, everything may go it."""

    version: int
    sources: tuple[Place, ...]
    targets: tuple[Place, ...]
    ports: tuple[int, ...]


def wall_rules(topology: Topology, firewall: str) -> list[Load]:
    """The rules of the wall: default deny between networks and to itself, as allowed otherwise."""
    if firewall == NFT:
        return [Load(("nft", "-f", "-"), _wall_nft(topology))]
    return [Load(_RESTORE[one], _wall_iptables(topology, one)) for one in versions(topology)]


def service_rules(topology: Topology, host: Host, firewall: str) -> list[Load]:
    """The rules of a host's services; none if it has none.

    Raises:
        ConfigError: a service leads to a host without an address of its family.
    """
    ways = [(one, backend(topology, host, one)) for one in host.services]
    if not ways:
        return []
    if firewall == NFT:
        return [Load(("nft", "-f", "-"), _services_nft(ways))]
    found = sorted({service.address.version for service, _ in ways})
    return [Load(_RESTORE[one], _services_iptables(ways, one)) for one in found]


def backend(topology: Topology, host: Host, service: Service) -> IpAddress:
    """The address that a host sends a service's connections to.

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
    end = ["reject with icmpx type admin-prohibited"] if topology.wall is Wall.REJECT else []
    known = "ct state established,related accept"
    icmp = f"meta l4proto {_set(_ICMP.values())} accept"  # neighbour discovery is among it
    return _table(
        "isthmus",
        _chain("forward", "filter", 0, [known, *allowed, *end], policy="drop"),
        _chain("input", "filter", 0, [known, icmp, *end], policy="drop"),
    )


def _services_nft(ways: Sequence[tuple[Service, IpAddress]]) -> str:
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
            # One by one: multiport takes no more than fifteen.
            for port in one.ports:
                yield f"{ends} -p tcp -m tcp --dport {port}"


def _services_iptables(ways: Sequence[tuple[Service, IpAddress]], version: int) -> str:
    lines = ["*nat"]
    lines += [f":{chain} ACCEPT [0:0]" for chain in ("PREROUTING", "INPUT", "OUTPUT")]
    lines.append(":POSTROUTING ACCEPT [0:0]")
    for one, to in ways:
        if to.version == version:
            what = f"-d {one.address} -p tcp -m tcp --dport {one.port}"
            where = f"-j DNAT --to-destination {_authority(to, one.to_port)}"
            lines += [f"-A {chain} {what} {where}" for chain in ("PREROUTING", "OUTPUT")]
    # Answers have to come back through here, or nobody would translate them back; and what the
    # host itself sends has the address of the way that it would have taken.
    lines.append("-A POSTROUTING ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE")
    return _restored(lines)


def _restored(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (*lines, "COMMIT"))


def _authority(address: IpAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
