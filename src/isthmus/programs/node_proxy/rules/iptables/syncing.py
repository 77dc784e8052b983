"""What has to be written where something is in the kernel already, ours or another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from isthmus.programs.node_proxy.rules.iptables import names
from isthmus.programs.node_proxy.rules.iptables.base import JUMPS, Jump, words
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    OWN_CHAINS,
    IptablesRuleset,
    TableWrite,
)
from isthmus.programs.node_proxy.rules.iptables.saved import SavedRules, SavedTable, is_ours


def full_writes(
    ruleset: IptablesRuleset, saved: SavedRules, has_jump: Callable[[Jump], bool] | None = None
) -> tuple[TableWrite, ...]:
    """Everything, with the jumps that are missing and without chains that are nobody's any more.

    ``has_jump`` is asked for jumps in tables of which iptables-save could tell nothing.
    """
    writes = [TableWrite(table="mangle", chains=(names.CANARY,)), *ruleset.writes()]
    result: list[TableWrite] = []
    for write in writes:
        there = saved.table(write.table)
        chains = write.chains
        if write.table != "mangle":
            chains += (names.CANARY,)
        if write.table == "filter" and names.KUBELET_FIREWALL not in {*chains, *there.chains}:
            # The kubelet may have rules there: made where it is missing, never emptied.
            chains += (names.KUBELET_FIREWALL,)
        missing = [jump for jump in JUMPS if jump.table == write.table]
        if write.table in saved.incompatible and has_jump is not None:
            missing = [jump for jump in missing if not has_jump(jump)]
        else:
            missing = [jump for jump in missing if not there.has_jump(jump)]
        inserted = tuple(f"-I {jump.source} {words(jump.args)}" for jump in missing)
        removed = _stale(write.table, there, chains)
        result.append(replace(write, chains=chains, inserted=inserted, removed=removed))
    return tuple(result)


def _stale(table: str, there: SavedTable, wanted: Iterable[str]) -> tuple[str, ...]:
    keep = {*wanted, *there.used_by_others(table)}
    return tuple(sorted(c for c in there.chains if c not in keep and is_ours(table, c)))


def put_back(table: str, before: SavedTable, now: SavedTable) -> TableWrite:
    """What makes a table as it was, as far as we may have changed it; not for ports' chains."""
    ours = [chain for chain in OWN_CHAINS[table] if chain in now.chains]
    if table == "filter" and names.KUBELET_FIREWALL in now.chains:
        ours.append(names.KUBELET_FIREWALL)
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
            if jump.table == table and jump.target != names.KUBELET_FIREWALL:
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
