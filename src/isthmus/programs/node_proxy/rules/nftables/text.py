"""Rulesets and their differences as text for ``nft -f``, each one transaction.

The kernel takes a transaction whole or not at all, and no packet ever meets a half of it.
Elements are written one to a line, so that a refusal can name one. compiling.py makes messages for
the kernel of these texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.nftables.base import (
    NFT_FAMILY,
    REJECT_CHAIN,
    TABLE,
    Element,
    NftContainer,
    is_port_chain,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesChanges, NftablesRuleset


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """What a table that is already there has, by name; of affinity sets the timeouts too.

    ``heads`` are those chains that hook into something, and how, as ``BaseRules`` writes it.
    """

    chains: frozenset[str] = frozenset()
    heads: Mapping[str, str] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    maps: frozenset[str] = frozenset()
    affinity: Mapping[str, int] = field(default_factory=dict)

    def stale(self, ruleset: NftablesRuleset) -> set[str]:
        """The chains of ports that a ruleset has no more."""
        return {name for name in self.chains - ruleset.chains.keys() if is_port_chain(name)}


def table_of(family: IpFamily) -> str:
    return f"{NFT_FAMILY[family]} {TABLE}"


def rebuilt(ruleset: NftablesRuleset, *, bridge_there: bool = False) -> str:
    """Write a ruleset in place of whatever there was; sets of clients begin empty."""
    table = table_of(ruleset.family)
    lines = [f"add table {table}", f"delete table {table}"]
    bridge = [f"delete table bridge {ruleset.base.bridge_table}"] if bridge_there else []
    return _text(lines, _whole(ruleset, frozenset()), bridge, _bridge(ruleset))


def renewed(ruleset: NftablesRuleset, found: ExistingTable, *, bridge_there: bool = False) -> str:
    """Write a ruleset over what was found; clients stay with the endpoints that they have.

    Base chains stay hooked, and maps and sets are filled anew rather than made anew: a packet
    that is among the old rules just then still finds in them what it looks for. What has a type
    or hook that it should not have is refused by the kernel, and then ``rebuilt`` is for it.

    Chains of ports that are no more are emptied, not deleted: kernels before 6.2 know only a
    moment later that no map names them any more.
    """
    table = table_of(ruleset.family)
    kept = {
        name
        for name, timeout_s in found.affinity.items()
        if ruleset.affinity.get(name) == timeout_s
    }
    lines = [f"flush chain {table} {name}" for name in sorted(found.chains)]
    for kind, names in (("map", found.maps), ("set", found.sets - kept)):
        for name in sorted(names):
            verb = "flush" if name in ruleset.base.containers else "delete"
            lines.append(f"{verb} {kind} {table} {name}")
    lines += [
        f"delete chain {table} {name}"
        for name in sorted(found.chains)
        if _unfit(name, found.heads.get(name), ruleset)
    ]
    return _text(lines, _whole(ruleset, kept), _bridge_renewed(ruleset, there=bridge_there))


def _unfit(chain: str, head: str | None, ruleset: NftablesRuleset) -> bool:
    # Maps name chains of ports and the one that rejects: those may not be deleted yet.
    if is_port_chain(chain) or chain == REJECT_CHAIN:
        return False
    # Another hook cannot be given to one that exists.
    return chain not in ruleset.base.chains or ruleset.base.heads.get(chain) != head


def difference(family: IpFamily, changes: NftablesChanges, delete: Iterable[str] = ()) -> str:
    """Write changes, and the deletion of chains that were emptied earlier."""
    table = table_of(family)
    lines: list[str] = []
    lines += _elements("delete", table, changes.elements_removed)
    emptied = [*(changes.chains.keys() - changes.added), *changes.chains_removed]
    lines += [f"flush chain {table} {name}" for name in emptied]
    lines += [f"delete set {table} {name}" for name in changes.affinity_removed]
    lines += _affinity(table, family, changes.affinity_added)
    lines += [f"add chain {table} {name}" for name in sorted(changes.added)]
    lines += _rules(table, changes.chains)
    lines += _elements("add", table, changes.elements_added)
    lines += [f"delete chain {table} {name}" for name in delete]
    return _text(lines)


def _whole(ruleset: NftablesRuleset, kept: Iterable[str]) -> Iterator[str]:
    table, base = table_of(ruleset.family), ruleset.base
    yield f'add table {table} {{ comment "rules for kube-proxy" ; }}'
    for container, (kind, written) in base.containers.items():
        yield f"add {kind} {table} {container} {{ {written} }}"
    for name in base.chains:
        head = base.heads.get(name)
        yield f"add chain {table} {name} {{ {head} }}" if head else f"add chain {table} {name}"
    for name in ruleset.chains:
        yield f"add chain {table} {name}"
    kept = set(kept)
    new = {name: limit for name, limit in ruleset.affinity.items() if name not in kept}
    yield from _affinity(table, ruleset.family, new)
    yield from _rules(table, base.chains)
    yield from _rules(table, ruleset.chains)
    for _, elements in ruleset.all_elements():
        yield from _elements("add", table, elements)


def _rules(table: str, chains: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for name, rules in chains.items():
        for rule in rules:
            yield f"add rule {table} {name} {rule}"


def _affinity(table: str, family: IpFamily, sets: Mapping[str, int]) -> Iterator[str]:
    for name, timeout_s in sets.items():
        yield (
            f"add set {table} {name} {{ type ipv{family.version}_addr ;"
            f" flags dynamic,timeout ; timeout {timeout_s}s ; }}"
        )


def _elements(verb: str, table: str, elements: Iterable[Element]) -> Iterator[str]:
    by_container: dict[NftContainer, list[str]] = {}
    for element in elements:
        # To delete one, its key says enough; nft would compare the rest.
        written = str(element) if verb == "add" else element.key
        by_container.setdefault(element.container, []).append(written)
    for container, written_ones in by_container.items():
        # One command for all of them: at 3,000 ports 1.3 s instead of 1.8 for one each.
        yield f"{verb} element {table} {container} {{"
        yield ",\n".join(written_ones)
        yield "}"


def _bridge_renewed(ruleset: NftablesRuleset, *, there: bool) -> Iterator[str]:
    name = ruleset.base.bridge_table
    if ruleset.base.bridge is None:
        if there:
            yield f"delete table bridge {name}"
        return
    if there:
        # Its one chain stays hooked.
        yield f"flush table bridge {name}"
    yield from _bridge(ruleset)


def _bridge(ruleset: NftablesRuleset) -> Iterator[str]:
    rules, name = ruleset.base.bridge, ruleset.base.bridge_table
    if rules is None:
        return
    yield f'add table bridge {name} {{ comment "marks what bridge ports bring" ; }}'
    yield f"add chain bridge {name} prerouting {{ type filter hook prerouting priority -300 ; }}"
    for rule in rules:
        yield f"add rule bridge {name} prerouting {rule}"


def _text(*parts: Iterable[str]) -> str:
    return "".join(f"{line}\n" for part in parts for line in part)


class RuleWords:
    """The words of a rule, taken one after the other; a subclass says what an unknown one is."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0

    def _unknown(self, what: str) -> Exception:
        """Make the error of a word that is none of ours."""
        raise NotImplementedError

    def _next(self) -> str:
        if self._at >= len(self._words):
            raise self._unknown("its end")
        self._at += 1
        return self._words[self._at - 1]

    def _take(self, *words: str) -> bool:
        """Go on behind these words, if they come next."""
        end = self._at + len(words)
        if tuple(self._words[self._at : end]) != words:
            return False
        self._at = end
        return True

    def _listed(self) -> list[list[str]]:
        """What stands in braces, behind the first of them, as words between commas."""
        found: list[list[str]] = [[]]
        while (word := self._next()) != "}":
            if word == ",":
                found.append([])
            else:
                found[-1].append(word)
        return found
