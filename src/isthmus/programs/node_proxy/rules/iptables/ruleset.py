"""All iptables rules of one family, and the input of iptables-restore that writes them.

Only differences from the previous view are written. A port that is the same object keeps its rules;
of a changed port only chains whose rules differ are written: one endpoint among a thousand costs
two chains.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.iptables.base import JUMPS, Jump, quoted_words
from isthmus.programs.node_proxy.rules.iptables.ports import (
    SHARED,
    IptablesPortRules,
    PortPlan,
    RuleContext,
    chains_of,
    port_rules,
    rule_context,
)
from isthmus.programs.node_proxy.rules.model import ServiceView
from isthmus.programs.node_proxy.rules.settings import LARGE_CLUSTER_ENDPOINTS, RuleSettings

#: The tables in the order of writing, with the node proxy's chains that belong to no port.
OWN_CHAINS: Mapping[str, tuple[str, ...]] = {
    "mangle": (base.CANARY,),
    "filter": (
        base.SERVICES,
        base.EXTERNAL_SERVICES,
        base.FORWARD,
        base.NODE_PORTS,
        base.PROXY_FIREWALL,
        base.CANARY,
    ),
    "nat": (
        base.SERVICES,
        base.NODE_PORTS,
        base.POSTROUTING,
        base.MARK_MASQ,
        base.MASQ_IF_NOT_LOCAL,
        base.CANARY,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """One transaction on a table.

    ``chains`` are created or flushed; ``rules`` are blocks of lines with newlines; ``removed``
    chains are flushed first and deleted last. ``inserted`` and ``deleted`` are lines in chains of
    others.
    """

    table: str
    chains: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    count: int = 0
    inserted: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.chains or self.removed or self.inserted or self.deleted)

    def text(self, *, listing: bool = False) -> str:
        """The input for iptables-restore; ``listing`` makes it list the table first."""
        parts = [f"*{self.table}\n", "-S\n" if listing else ""]
        parts += [f":{chain} - [0:0]\n" for chain in (*self.chains, *self.removed)]
        parts += self.rules
        parts += [f"{line}\n" for line in (*self.inserted, *self.deleted)]
        parts += [f"-X {chain}\n" for chain in self.removed]
        parts.append("COMMIT\n")
        return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesRuleset:
    """All rules of one family.

    ``common`` are the rules of chains that belong to no port, by table and chain; ``ports`` are
    those of ports, in the order of the view.
    """

    settings: RuleSettings
    common: Mapping[tuple[str, str], str]
    ports: tuple[IptablesPortRules, ...]

    def counts(self) -> dict[str, int]:
        totals = {"filter": 0, "nat": 0}
        for (table, _), text in self.common.items():
            totals[table] += text.count("\n")
        totals["nat"] += sum(rules.own_rules for rules in self.ports)
        return totals

    def no_local_endpoints(self) -> dict[str, int]:
        """The number of ports whose traffic has to stay on this node but finds no endpoint."""
        internal = sum(rules.no_local[0] for rules in self.ports)
        return {"internal": internal, "external": sum(rules.no_local[1] for rules in self.ports)}

    def writes(self) -> tuple[TableWrite, TableWrite]:
        """Everything, as for an empty kernel: filter and nat."""
        common = common_write("nat", self.common)
        nat = TableWrite(
            table="nat",
            chains=(*common.chains, *(chain for rules in self.ports for chain in rules.chains)),
            rules=(*common.rules, *(rules.text for rules in self.ports)),
            count=common.count + sum(rules.own_rules for rules in self.ports),
        )
        return common_write("filter", self.common), nat

    def text(self) -> str:
        return "".join(write.text() for write in self.writes())

    def tables(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The rules by table and chain, without ``-A CHAIN``."""
        tables: dict[str, dict[str, list[str]]] = {}
        for write in self.writes():
            chains: dict[str, list[str]] = {chain: [] for chain in write.chains}
            for line in "".join(write.rules).splitlines():
                _, chain, *rest = line.split(" ", 2)
                chains[chain] += rest
            tables[write.table] = chains
        return {t: {c: tuple(rules) for c, rules in chains.items()} for t, chains in tables.items()}


def common_chains(settings: RuleSettings) -> dict[tuple[str, str], str]:
    """The rules that exist without any Service, by table and chain."""
    chains = dict.fromkeys(SHARED, "")
    chains["filter", base.FORWARD] = base.forward(settings)
    if base.localhost_node_ports(settings):
        chains["filter", base.KUBELET_FIREWALL] = base.kubelet_firewall()
    chains["nat", base.POSTROUTING] = base.postrouting(settings)
    chains["nat", base.MARK_MASQ] = base.mark_masq(settings)
    matches = settings.detector.matches(settings.family)
    if len(matches) > 1 and not settings.masquerade_all:
        local = [base.quoted_words(match.iptables) for match in matches]
        chains["nat", base.MASQ_IF_NOT_LOCAL] = base.masq_if_not_local(local)
    return chains


def shared_chain(place: int, ports: Iterable[IptablesPortRules], settings: RuleSettings) -> str:
    """The rules of one of the chains of ``SHARED``."""
    text = "".join([rules.shared[place] for rules in ports])
    if SHARED[place] == ("nat", base.SERVICES):
        return text + base.services_tail(settings)
    return text


def common_write(table: str, chains: Mapping[tuple[str, str], str]) -> TableWrite:
    """The write for those of the chains that are in a table."""
    mine = {chain: text for (where, chain), text in chains.items() if where == table}
    rules = tuple(mine.values())
    count = sum(text.count("\n") for text in rules)
    return TableWrite(table=table, chains=tuple(mine), rules=rules, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesRendering:
    """A ruleset, and the writes that lead to it from the previous one; none if they are equal.

    ``filter_back`` undoes ``filter``. The first ruleset is compared with an empty one.
    """

    ruleset: IptablesRuleset
    filter: TableWrite
    nat: TableWrite
    filter_back: TableWrite


class IptablesRenderer:
    """Renders the views of one family, all under the same settings."""

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings
        self._context = rule_context(settings, large=False)
        # Keyed by identity: hashing keys takes ten times as long. The rules keep their port alive,
        # so that no other object can get its id.
        self._known: dict[int, IptablesPortRules] = {}
        self._last: IptablesRuleset | None = None

    def render(self, view: ServiceView) -> IptablesRendering:
        """Render the rules of a view, and their difference from the previous view."""
        old_context, last = self._context, self._last
        known = self._look_at_size(view)
        fresh: list[IptablesPortRules] = []
        ports: list[IptablesPortRules] = []
        for backed in view.ports.values():
            rules = known.get(id(backed))
            if rules is None:
                rules = port_rules(backed, self._context)
                fresh.append(rules)
            ports.append(rules)
        self._known = {id(rules.backed): rules for rules in ports}
        if last is None:
            self._last = _joined(ports, self.settings)
            filter_write, nat = self._last.writes()
            back = TableWrite(table="filter")
            return IptablesRendering(
                ruleset=self._last, filter=filter_write, nat=nat, filter_back=back
            )
        gone = [rules for rules in last.ports if self._known.get(id(rules.backed)) is not rules]
        self._last = _joined_again(last, ports, fresh, gone)
        changes = _Changes(last, self._last)
        own = changes.own_chains(fresh, gone, self._context, old_context)
        return IptablesRendering(
            ruleset=self._last,
            filter=common_write("filter", changes.common),
            nat=own,
            filter_back=common_write("filter", changes.common_before),
        )

    def _look_at_size(self, view: ServiceView) -> dict[int, IptablesPortRules]:
        """Adapt to the number of endpoints; returns the rules still valid, by port id."""
        comments = view.endpoints <= LARGE_CLUSTER_ENDPOINTS
        if comments == self._context.comments:
            return self._known
        self._context = rule_context(self.settings, large=not comments)
        return {}


def _joined(ports: Sequence[IptablesPortRules], settings: RuleSettings) -> IptablesRuleset:
    common = common_chains(settings)
    for place, where in enumerate(SHARED):
        common[where] = shared_chain(place, ports, settings)
    return IptablesRuleset(settings=settings, common=common, ports=tuple(ports))


def _joined_again(
    last: IptablesRuleset,
    ports: Sequence[IptablesPortRules],
    fresh: Sequence[IptablesPortRules],
    gone: Sequence[IptablesPortRules],
) -> IptablesRuleset:
    """Rejoin only the shared chains in which a changed port has different rules."""
    if not fresh and not gone:
        return last
    before = {rules.backed.port.key: rules.shared for rules in gone}
    after = {rules.backed.port.key: rules.shared for rules in fresh}
    nothing = ("",) * len(SHARED)
    pairs = [(before.get(k, nothing), after.get(k, nothing)) for k in before.keys() | after.keys()]
    common = dict(last.common)
    for place, where in enumerate(SHARED):
        if any(old[place] != new[place] for old, new in pairs):
            common[where] = shared_chain(place, ports, last.settings)
    return IptablesRuleset(settings=last.settings, common=common, ports=tuple(ports))


class _Changes:
    """The difference between two rulesets."""

    def __init__(self, before: IptablesRuleset, after: IptablesRuleset) -> None:
        old = before.common
        self.common = {at: text for at, text in after.common.items() if text != old[at]}
        self.common_before = {at: old[at] for at in self.common}

    def own_chains(
        self,
        fresh: Sequence[IptablesPortRules],
        gone: Sequence[IptablesPortRules],
        context: RuleContext,
        old_context: RuleContext,
    ) -> TableWrite:
        """The write for nat, including ports' own chains."""
        old: dict[str, str] = {}
        for rules in gone:
            old |= chains_of(PortPlan.of(rules.backed), old_context)
        new: dict[str, str] = {}
        for rules in fresh:
            new |= chains_of(PortPlan.of(rules.backed), context)
        written = {chain: text for chain, text in new.items() if old.get(chain) != text}
        common = common_write("nat", self.common)
        own = tuple(written.values())
        return TableWrite(
            table="nat",
            chains=(*common.chains, *written),
            rules=(*common.rules, *own),
            count=common.count + sum(text.count("\n") for text in own),
            removed=tuple(chain for chain in old if chain not in new),
        )


# The output of iptables-save 1.8 for a table in which nft wrote rules that iptables cannot express.
_LINES = re.compile(r"[^\n]+")
_INCOMPATIBLE = re.compile(r"# Table `(\w+)' is incompatible")


@dataclass(frozen=True, slots=True)
class SavedTable:
    """The chains of a table, and its rules by chain except those of ports' chains.

    A rule is the text after ``-A CHAIN``. ``count`` counts all rules, ports' included.
    """

    chains: frozenset[str] = frozenset()
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int = 0

    def has_jump(self, jump: Jump) -> bool:
        """Whether a jump exists, anywhere in its chain."""
        return bool(self.jumps(jump))

    def jumps(self, jump: Jump) -> list[str]:
        """The rules of a jump: several if it was written more than once."""
        rules = self.rules.get(jump.source, ())
        # Splitting is slow, and chains of others can be long.
        likely = [rule for rule in rules if rule.endswith(jump.target)]
        return [rule for rule in likely if tuple(shlex.split(rule)) == jump.args]

    def used_by_others(self, table: str) -> frozenset[str]:
        """The node proxy's chains that rules in foreign chains jump to."""
        targets: set[str] = set()
        for chain, rules in self.rules.items():
            if not is_ours(table, chain):
                targets.update(target for rule in rules if (target := _target(rule)))
        return frozenset(targets)


@dataclass(frozen=True, slots=True)
class SavedRules:
    """The output of iptables-save; ``incompatible`` tables are not in it."""

    tables: Mapping[str, SavedTable] = field(default_factory=dict)
    incompatible: frozenset[str] = frozenset()

    def table(self, name: str) -> SavedTable:
        """A table; empty if it does not exist."""
        return self.tables.get(name) or SavedTable()


def is_ours(table: str, chain: str) -> bool:
    """Whether a chain's name belongs to the node proxy alone; the kubelet's does not."""
    if chain in OWN_CHAINS.get(table, ()):
        return True
    return table == "nat" and chain.startswith(base.PORT_PREFIXES)


def parse_saved(text: str) -> SavedRules:
    tables: dict[str, SavedTable] = {}
    name, chains, count = "", set[str](), 0
    rules: dict[str, list[str]] = {}
    for found in _LINES.finditer(text):  # splitlines() would hold a copy of a large table
        line = found[0]
        if line.startswith("-A "):
            count += 1
            if not line.startswith(base.PORT_PREFIXES, 3):
                _, chain, *rest = line.split(" ", 2)
                rules.setdefault(chain, []).append(rest[0] if rest else "")
        elif line.startswith(":"):
            chains.add(line[1:].split(" ", 1)[0])
        elif line.startswith("*"):
            name, chains, count, rules = line[1:].strip(), set(), 0, {}
        elif line.startswith("COMMIT") and name:
            kept = {chain: tuple(lines) for chain, lines in rules.items()}
            tables[name] = SavedTable(frozenset(chains), kept, count)
    return SavedRules(tables, frozenset(_INCOMPATIBLE.findall(text)))


def _target(rule: str) -> str:
    """The target of a rule, if any; what follows it are the target's options."""
    for option in ("-j ", "-g "):
        _, found, rest = rule.rpartition(f" {option}")
        if not found and rule.startswith(option):
            rest, found = rule[len(option) :], option
        if found:
            return rest.split(" ", 1)[0]
    return ""


def full_writes(
    ruleset: IptablesRuleset, saved: SavedRules, has_jump: Callable[[Jump], bool] | None = None
) -> tuple[TableWrite, ...]:
    """Writes for everything, including missing jumps and the removal of stale chains.

    ``has_jump`` is called for jumps in tables that iptables-save cannot list.
    """
    writes = [TableWrite(table="mangle", chains=(base.CANARY,)), *ruleset.writes()]
    result: list[TableWrite] = []
    for write in writes:
        there = saved.table(write.table)
        chains = write.chains
        if write.table != "mangle":
            chains += (base.CANARY,)
        if write.table == "filter" and base.KUBELET_FIREWALL not in {*chains, *there.chains}:
            # The kubelet may have rules in this chain: create it if missing, never flush it.
            chains += (base.KUBELET_FIREWALL,)
        missing = [jump for jump in JUMPS if jump.table == write.table]
        if write.table in saved.incompatible and has_jump is not None:
            missing = [jump for jump in missing if not has_jump(jump)]
        else:
            missing = [jump for jump in missing if not there.has_jump(jump)]
        inserted = tuple(f"-I {jump.source} {quoted_words(jump.args)}" for jump in missing)
        removed = _stale(write.table, there, chains)
        result.append(replace(write, chains=chains, inserted=inserted, removed=removed))
    return tuple(result)


def _stale(table: str, there: SavedTable, wanted: Iterable[str]) -> tuple[str, ...]:
    keep = {*wanted, *there.used_by_others(table)}
    return tuple(sorted(c for c in there.chains if c not in keep and is_ours(table, c)))


def put_back(table: str, before: SavedTable, now: SavedTable) -> TableWrite:
    """The write that restores a table, as far as a sync may have changed it; not ports' chains."""
    ours = [chain for chain in OWN_CHAINS[table] if chain in now.chains]
    if table == "filter" and base.KUBELET_FIREWALL in now.chains:
        ours.append(base.KUBELET_FIREWALL)
    changed = [
        chain
        for chain in ours
        if chain in before.chains and before.rules.get(chain) != now.rules.get(chain)
    ]
    lines = [f"-A {c} {rule}".rstrip() for c in changed for rule in before.rules.get(c, ())]
    deleted: list[str] = []
    for jump in (jump for jump in JUMPS if jump.table == table):
        if not before.has_jump(jump):
            deleted += [f"-D {jump.source} {rule}" for rule in now.jumps(jump)]
    return TableWrite(
        table=table,
        chains=tuple(changed),
        rules=tuple(f"{line}\n" for line in lines),
        count=len(lines),
        deleted=tuple(deleted),
        removed=tuple(chain for chain in ours if chain not in before.chains),
    )


def cleanup_writes(saved: SavedRules) -> tuple[tuple[TableWrite, ...], tuple[str, ...]]:
    """The writes that remove all rules, and messages about what remains, the kubelet's excepted."""
    writes: list[TableWrite] = []
    kept: list[str] = []
    for table in OWN_CHAINS:
        there = saved.table(table)
        deleted: list[str] = []
        for jump in JUMPS:
            if jump.table == table and jump.target != base.KUBELET_FIREWALL:
                deleted += [f"-D {jump.source} {rule}" for rule in there.jumps(jump)]
        ours = sorted(chain for chain in there.chains if is_ours(table, chain))
        used = _still_used(table, there) & {*ours}
        kept += [
            f"chain {chain} in table {table} flushed but not deleted: a foreign rule jumps to it"
            for chain in sorted(used)
        ]
        write = TableWrite(
            table=table,
            chains=tuple(chain for chain in ours if chain in used),
            deleted=tuple(deleted),
            removed=tuple(chain for chain in ours if chain not in used),
        )
        if write:
            writes.append(write)
    return tuple(writes), tuple(kept)


def _still_used(table: str, there: SavedTable) -> frozenset[str]:
    """The chains that foreign rules jump to, ignoring the node proxy's own jumps."""
    rules = dict(there.rules)
    for jump in (jump for jump in JUMPS if jump.table == table):
        own = there.jumps(jump)
        if own:
            rules[jump.source] = tuple(r for r in rules[jump.source] if r not in own)
    return SavedTable(there.chains, rules).used_by_others(table)
