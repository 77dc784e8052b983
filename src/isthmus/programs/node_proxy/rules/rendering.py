"""All rules of a view in any of the three modes: as text to be given to programs, and by place.

The text is what would be written into a kernel that has none of ours. Places, such as a chain or a
set, are for telling what differs (differing.py) and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from isthmus.programs.node_proxy.rules.iptables import renderer as iptables
from isthmus.programs.node_proxy.rules.iptables.base import words
from isthmus.programs.node_proxy.rules.iptables.saved import SavedRules
from isthmus.programs.node_proxy.rules.iptables.syncing import full_writes
from isthmus.programs.node_proxy.rules.ipvs import rules as ipvs_rules
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions, IpvsPlan, plan
from isthmus.programs.node_proxy.rules.ipvs.servers import IpvsFlags, VirtualServer
from isthmus.programs.node_proxy.rules.ipvs.sets import batch
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol, ServiceView
from isthmus.programs.node_proxy.rules.nftables import renderer as nftables
from isthmus.programs.node_proxy.rules.nftables.text import rebuilt
from isthmus.programs.node_proxy.rules.settings import RuleSettings

_SERVICE_FLAGS = {
    PortProtocol.TCP: "-t",
    PortProtocol.UDP: "-u",
    PortProtocol.SCTP: "--sctp-service",
}
#: The interface that has the addresses of Services, as kube-proxy calls it.
_INTERFACE = "kube-ipvs0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Rules as text, and the lines of each place; where order does not matter they are sorted."""

    text: str
    places: Mapping[str, tuple[str, ...]]


def rendered(
    mode: str,
    view: ServiceView,
    settings: RuleSettings,
    *,
    options: IpvsOptions | None = None,
    node_addresses: Iterable[str] = (),
) -> Rendered:
    """Render a view by ``iptables``, ``nftables`` or ``ipvs``.

    ``node_addresses`` are the node's, without loopback ones; with ``options`` they are for ipvs.
    """
    if mode == "nftables":
        return _nftables(view, settings)
    if mode == "ipvs":
        made = plan(view, settings, options or IpvsOptions(), node_addresses)
        return _ipvs(made, settings)
    return _iptables(view, settings)


def _iptables(view: ServiceView, settings: RuleSettings) -> Rendered:
    ruleset = iptables.IptablesRenderer(settings).render(view).ruleset
    places = {
        f"{table} {chain}": tuple(f"-A {chain} {rule}" for rule in rules)
        for table, chains in ruleset.tables().items()
        for chain, rules in chains.items()
    }
    text = "".join(write.text() for write in full_writes(ruleset, SavedRules()))
    return Rendered(text=text, places=places)


def _nftables(view: ServiceView, settings: RuleSettings) -> Rendered:
    renderer = nftables.NftablesRenderer(settings)
    renderer.advance(view)
    ruleset = renderer.ruleset()
    base = ruleset.base
    places = {f"chain {name}": rules for name, rules in {**base.chains, **ruleset.chains}.items()}
    for container, elements in ruleset.all_elements():
        kind = base.containers[container][0]
        places[f"{kind} {container}"] = tuple(sorted(map(str, elements)))
    for name, timeout_s in ruleset.affinity.items():
        places[f"set {name}"] = (f"timeout {timeout_s}s",)
    if base.bridge is not None:
        places[f"bridge {base.bridge_table}"] = base.bridge
    return Rendered(text=rebuilt(ruleset), places=places)


def _ipvs(made: IpvsPlan, settings: RuleSettings) -> Rendered:
    family, tables = settings.family, ipvs_rules.rules(made, settings)
    six = "6" if family is IpFamily.IPV6 else ""
    parts = {
        "ipset restore": batch(family, made.entries(), {}, create=True),
        f"ip{six}tables-restore --noflush": [*tables.text().splitlines(), *_jumps()],
        f"addresses of {_INTERFACE}": [f"# {each}" for each in sorted(made.addresses)],
        "ipvsadm --restore": list(_servers(made)),
    }
    places = {
        f"set {each.of(family)}": tuple(sorted(entries))
        for each, entries in made.sets.items()
        if entries
    }
    for table, rules in (("nat", tables.nat), ("filter", tables.filter)):
        ordered = sorted(rules, key=_chain)  # which keeps the order of each chain
        places |= {f"{table} {chain}": tuple(each) for chain, each in groupby(ordered, _chain)}
    for server, lines in groupby(_servers(made), lambda line: line.split()[2]):
        places[f"virtual server {server}"] = tuple(lines)
    blocks = ["\n".join([f"# {name}", *lines, ""]) for name, lines in parts.items()]
    return Rendered(text="".join(blocks), places=places)


def _chain(line: str) -> str:
    return line.split(" ", 2)[1]


def _jumps() -> Iterator[str]:
    for table in ipvs_rules.CHAINS:
        jumps = [jump for jump in ipvs_rules.JUMPS if jump.table == table]
        inserted = (f"-I {jump.source} {words(jump.rule)}" for jump in jumps)
        yield from (f"*{table}", *inserted, "COMMIT")


def _servers(made: IpvsPlan) -> Iterator[str]:
    """Virtual servers and their destinations, as ipvsadm reads them; ours are masquerading."""
    for server in sorted(made.servers, key=lambda each: str(each.key)):
        place = f"{_SERVICE_FLAGS[server.key.protocol]} {_place(server)}"
        kept = f" -p {server.timeout_s}" if server.flags & IpvsFlags.PERSISTENT else ""
        ported = " -b mh-port" if server.flags & IpvsFlags.SOURCE_PORT else ""
        yield f"-A {place} -s {server.scheduler}{kept}{ported}"
        for each in sorted(made.servers[server]):
            host = f"[{each.ip}]" if ":" in each.ip else each.ip
            yield f"-a {place} -r {host}:{each.port} -m -w 1"


def _place(server: VirtualServer) -> str:
    return str(server.key).rpartition("/")[0]
