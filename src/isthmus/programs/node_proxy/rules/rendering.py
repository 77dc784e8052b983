"""Rules as text in any of the three modes, and the differences that a change of Services makes.

The text is what the program would write into an empty kernel. Lines are grouped by chain or set
only so that differences can be shown. Differences are shown port by port in words, then rule by
rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

from isthmus.programs.node_proxy.rules.iptables.base import quoted_words
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    IptablesRenderer,
    SavedRules,
    full_writes,
)
from isthmus.programs.node_proxy.rules.ipvs import plan as ipvs_plan
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions, IpvsPlan, plan
from isthmus.programs.node_proxy.rules.ipvs.servers import IpvsFlags, VirtualServer
from isthmus.programs.node_proxy.rules.ipvs.sets import batch
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRenderer, rebuilt
from isthmus.programs.node_proxy.rules.settings import RuleSettings

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
#: The names of a port's settings for users, in order of display.
_WORDS = {
    "cluster_ip": "cluster IP",
    "port": "port",
    "node_port": "node port",
    "external_ips": "external IPs",
    "load_balancer_ips": "load balancer IPs",
    "source_ranges": "source ranges",
    "affinity_s": "session affinity",
    "internal_local": "internal traffic policy",
    "external_local": "external traffic policy",
    "health_check_node_port": "health check node port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """One port that is added, removed or changed, with a phrase for each detail."""

    key: PortKey
    what: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """Lines of one chain or set that change, in order, each with its sign ``-`` or ``+``."""

    place: str
    lines: tuple[tuple[str, str], ...]


def port_changes(old: ServiceView, new: ServiceView) -> list[PortChange]:
    """The differences between two views of a family, sorted by port name."""
    keys = sorted(
        old.ports.keys() | new.ports.keys(), key=lambda key: (str(key), key.protocol.value)
    )
    found: list[PortChange] = []
    for key in keys:
        before, after = old.ports.get(key), new.ports.get(key)
        if before == after:
            continue
        if before is None and after is not None:
            found.append(PortChange(key=key, what=ADDED, words=tuple(_described(after))))
        elif after is None and before is not None:
            found.append(PortChange(key=key, what=REMOVED, words=tuple(_described(before))))
        elif before is not None and after is not None:
            words = (*_settings(before.port, after.port), *_endpoints(before, after))
            found.append(
                PortChange(key=key, what=CHANGED, words=words or ("endpoint selection changed",))
            )
    return found


def _described(backed: BackedPort) -> Iterator[str]:
    """A whole port: its address, its settings, and the number of endpoints."""
    port = backed.port
    host = f"[{port.cluster_ip}]" if ":" in port.cluster_ip else port.cluster_ip
    yield f"cluster IP {host}:{port.port}/{port.key.protocol.value}"
    for name, words in _WORDS.items():
        value = getattr(port, name)
        if name not in ("cluster_ip", "port") and value:
            yield f"{words} {_text(name, value)}"
    count = len(_used(backed))
    yield f"{count} endpoint{'' if count == 1 else 's'}{_lack(backed)}"


def _settings(before: ServicePort, after: ServicePort) -> Iterator[str]:
    for name, words in _WORDS.items():
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{words} {_text(name, old)} → {_text(name, new)}"


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "Local" if value else "Cluster"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value} s" if name == "affinity_s" and value else str(value or "none")


def _endpoints(before: BackedPort, after: BackedPort) -> Iterator[str]:
    old, new = _used(before), _used(after)
    for endpoint in sorted(new.keys() - old.keys()):
        yield f"endpoint {endpoint} added{_where(new[endpoint])}"
    for endpoint in sorted(old.keys() - new.keys()):
        yield f"endpoint {endpoint} removed"
    for endpoint in sorted(new.keys() & old.keys()):
        yield from _moved(endpoint, old[endpoint], new[endpoint])
    if _lack(before) != _lack(after):
        yield _lack(after).removeprefix(", ") or "endpoints are available again"


def _moved(text: str, before: Endpoint, after: Endpoint) -> Iterator[str]:
    if before.local != after.local:
        yield f"endpoint {text} is {'on this node' if after.local else 'on another node'} now"
    if before.terminating != after.terminating:
        yield f"endpoint {text} is {'' if after.terminating else 'no longer '}terminating"


def _where(endpoint: Endpoint) -> str:
    notes = ["on this node"] if endpoint.local else []
    notes += ["terminating"] if endpoint.terminating else []
    return f" ({', '.join(notes)})" if notes else ""


def _used(backed: BackedPort) -> dict[str, Endpoint]:
    """The endpoints that receive traffic, by their text."""
    return {str(each): each for each in backed.backends.reachable}


def _lack(backed: BackedPort) -> str:
    """The traffic that finds no endpoint, if any."""
    port, backends = backed.port, backed.backends
    if not backends.exist:
        return ", traffic is refused"
    kinds = [
        kind
        for kind, local in (
            ("internal", port.internal_local),
            ("external", port.external_local and port.external),
        )
        if local and not backends.local
    ]
    return f", {' and '.join(kinds)} traffic has no endpoint on this node" if kinds else ""


def line_changes(
    old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]
) -> list[LineChange]:
    """The lines that differ, by chain or set; see ``Rendered.places``."""
    found: list[LineChange] = []
    for place in dict.fromkeys((*new, *old)):
        before, after = old.get(place, ()), new.get(place, ())
        if before != after:
            found.append(LineChange(place=place, lines=tuple(_lines(before, after))))
    return found


def _lines(before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    # autojunk would ignore lines that repeat often.
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag != "equal":
            yield from (("-", line) for line in before[start:end])
            yield from (("+", line) for line in after[other_start:other_end])


_SERVICE_FLAGS = {
    PortProtocol.TCP: "-t",
    PortProtocol.UDP: "-u",
    PortProtocol.SCTP: "--sctp-service",
}
#: The interface that holds the addresses of Services; the name is kube-proxy's.
_INTERFACE = "kube-ipvs0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Rules as text, and their lines by chain or set, sorted where order does not matter."""

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
    """Render a view for ``iptables``, ``nftables`` or ``ipvs``.

    ``node_addresses`` are the node's without loopback addresses; they and ``options`` are for ipvs.
    """
    if mode == "nftables":
        return _nftables(view, settings)
    if mode == "ipvs":
        made = plan(view, settings, options or IpvsOptions(), node_addresses)
        return _ipvs(made, settings)
    return _iptables(view, settings)


def _iptables(view: ServiceView, settings: RuleSettings) -> Rendered:
    ruleset = IptablesRenderer(settings).render(view).ruleset
    places = {
        f"{table} {chain}": tuple(f"-A {chain} {rule}" for rule in rules)
        for table, chains in ruleset.tables().items()
        for chain, rules in chains.items()
    }
    text = "".join(write.text() for write in full_writes(ruleset, SavedRules()))
    return Rendered(text=text, places=places)


def _nftables(view: ServiceView, settings: RuleSettings) -> Rendered:
    renderer = NftablesRenderer(settings)
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
    family, tables = settings.family, ipvs_plan.rules(made, settings)
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
        ordered = sorted(rules, key=_chain)  # a stable sort keeps the order within each chain
        places |= {f"{table} {chain}": tuple(each) for chain, each in groupby(ordered, _chain)}
    for server, lines in groupby(_servers(made), lambda line: line.split()[2]):
        places[f"virtual server {server}"] = tuple(lines)
    blocks = ["\n".join([f"# {name}", *lines, ""]) for name, lines in parts.items()]
    return Rendered(text="".join(blocks), places=places)


def _chain(line: str) -> str:
    return line.split(" ", 2)[1]


def _jumps() -> Iterator[str]:
    for table in ipvs_plan.CHAINS:
        jumps = [jump for jump in ipvs_plan.JUMPS if jump.table == table]
        inserted = (f"-I {jump.source} {quoted_words(jump.args)}" for jump in jumps)
        yield from (f"*{table}", *inserted, "COMMIT")


def _servers(made: IpvsPlan) -> Iterator[str]:
    """Virtual servers and their destinations in ipvsadm's syntax, all with masquerading."""
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
