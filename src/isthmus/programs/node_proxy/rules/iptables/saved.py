"""What is in the kernel, read from what iptables-save writes; as much of it as concerns us."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.programs.node_proxy.rules.iptables import names
from isthmus.programs.node_proxy.rules.iptables.base import Jump
from isthmus.programs.node_proxy.rules.iptables.ruleset import OWN_CHAINS

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
    return table == "nat" and chain.startswith(names.PORT_PREFIXES)


def parse_saved(text: str) -> SavedRules:
    """Read what iptables-save wrote."""
    tables: dict[str, SavedTable] = {}
    name, chains, count = "", set[str](), 0
    rules: dict[str, list[str]] = {}
    for found in _LINES.finditer(text):  # splitlines() would hold a copy of a large table
        line = found[0]
        if line.startswith("-A "):
            count += 1
            if not line.startswith(names.PORT_PREFIXES, 3):
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
