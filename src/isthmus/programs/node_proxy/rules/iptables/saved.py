"""What is in the kernel, read from what iptables-save writes, and what has to be written then.

Only as much is read as concerns us; what is there may be ours or another's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.iptables.base import JUMPS, Jump, quoted_words
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    OWN_CHAINS,
    IptablesRuleset,
    TableWrite,
)

# iptables-save 1.8 on a table into which nft wrote what iptables has no words for.
_LINES = re.compile(r"[^\n]+")
_INCOMPATIBLE = re.compile(r"# Table `(\w+)' is incompatible")


@dataclass(frozen=True, slots=True)
class SavedTable:
    """The chains of a table, and its rules but for those of ports' chains, by chain.

    A rule is what follows ``-A CHAIN``. ``count`` is how many there are, ports' included.
    """

    chains: frozenset[str] = frozenset()
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int = 0

    def has_jump(self, jump: Jump) -> bool:
        """Whether a jump is there, wherever in its chain."""
        return bool(self.jumps(jump))

    def jumps(self, jump: Jump) -> list[str]:
        """A jump's rules: several if somebody wrote it more than once."""
        rules = self.rules.get(jump.source, ())
        # Splitting takes its time, and rules of others can be many.
        likely = [rule for rule in rules if rule.endswith(jump.target)]
        return [rule for rule in likely if tuple(shlex.split(rule)) == jump.args]

    def used_by_others(self, table: str) -> frozenset[str]:
        """The chains to which rules in chains that are not ours lead."""
        targets: set[str] = set()
        for chain, rules in self.rules.items():
            if not is_ours(table, chain):
                targets.update(target for rule in rules if (target := _target(rule)))
        return frozenset(targets)


@dataclass(frozen=True, slots=True)
class SavedRules:
    """What iptables-save told. It has nothing to tell of ``incompatible`` tables."""

    tables: Mapping[str, SavedTable] = field(default_factory=dict)
    incompatible: frozenset[str] = frozenset()

    def table(self, name: str) -> SavedTable:
        """A table; an empty one if it is not there."""
        return self.tables.get(name) or SavedTable()


def is_ours(table: str, chain: str) -> bool:
    """Whether a chain is ours alone, by its name; the kubelet's is not."""
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
    """Where a rule leads, if it does; the words after the target are the target's own."""
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
    """Everything, with the jumps that are missing and without chains that are nobody's any more.

    ``has_jump`` is asked for jumps in tables of which iptables-save could tell nothing.
    """
    writes = [TableWrite(table="mangle", chains=(base.CANARY,)), *ruleset.writes()]
    result: list[TableWrite] = []
    for write in writes:
        there = saved.table(write.table)
        chains = write.chains
        if write.table != "mangle":
            chains += (base.CANARY,)
        if write.table == "filter" and base.KUBELET_FIREWALL not in {*chains, *there.chains}:
            # The kubelet may have rules there: made where it is missing, never emptied.
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
    """What makes a table as it was, as far as we may have changed it; not for ports' chains."""
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
    """What removes all of ours, and in words what has to stay; the kubelet's chain stays anyway."""
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
            f"the chain {chain} of {table} was emptied but not removed: another's rule leads there"
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
    """The chains to which others lead, our own jumps not counted."""
    rules = dict(there.rules)
    for jump in (jump for jump in JUMPS if jump.table == table):
        own = there.jumps(jump)
        if own:
            rules[jump.source] = tuple(r for r in rules[jump.source] if r not in own)
    return SavedTable(there.chains, rules).used_by_others(table)
