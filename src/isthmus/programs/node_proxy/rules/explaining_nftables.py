"""Walks a packet through our nftables ruleset, as the kernel would: base chains by priority.

What single rules say is explaining_nftables_rule.py's to understand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from isthmus.programs.node_proxy.rules.explaining_flow import Flow, Hook, RuleEffect, RuleStep, walk
from isthmus.programs.node_proxy.rules.explaining_nftables_rule import RuleReader
from isthmus.programs.node_proxy.rules.nftables.names import AFFINITY
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRuleset
from isthmus.programs.node_proxy.rules.nftables.text import table_of
from isthmus.programs.node_proxy.rules.settings import RuleSettings

_HEAD = re.compile(r"type \w+ hook (?P<hook>\w+) priority (?P<priority>-?\d+) ;")


class NftablesRules:
    """The rules of a ruleset, by hook; see Rules. ``settings`` are what it was made with."""

    def __init__(self, ruleset: NftablesRuleset, settings: RuleSettings) -> None:
        self.settings = settings
        self._ruleset = ruleset
        self._table = table_of(ruleset.family)
        self._chains = {**ruleset.base.chains, **ruleset.chains}
        self._hooks = _hooks(ruleset)
        self._elements = {
            str(container): {each.key: each.value for each in elements}
            for container, elements in ruleset.all_elements()
        }

    def cross(self, hook: Hook, flow: Flow) -> Iterator[Flow]:
        """What becomes of a flow in the chains of a hook; see Rules."""
        flows = [self._bridged(flow)] if hook is Hook.PREROUTING else [flow]
        for chain in self._hooks.get(hook, ()):
            ended = [each for each in flows if each.verdict is not None]
            going = [each for each in flows if each.verdict is None]
            ways = (way for each in going for way in walk(self._rules, self._meet, chain, each))
            flows = ended + [way.flow for way in ways]
        yield from flows

    def _rules(self, chain: str) -> tuple[str, ...]:
        return self._chains[chain]

    def _meet(self, chain: str, rule: str, flow: Flow) -> Iterator[RuleEffect]:
        """What a rule does to a flow."""
        for reading in RuleReader(rule, self._has).read(flow):
            if not reading.does:
                yield RuleEffect(reading.flow)
                continue
            step = RuleStep(
                table=self._table,
                chain=chain,
                rule=rule,
                does=", ".join(reading.does),
                marks=reading.marks,
            )
            yield RuleEffect(reading.flow.met(step), reading.do, reading.target)

    def _has(self, container: str, key: str) -> str | int | None:
        """The value of an element, empty in a set; None if it is not there.

        Who is in a set of clients nobody knows: a number is how many seconds they stay there.
        """
        if container.startswith(AFFINITY):
            return self._ruleset.affinity[container]
        return self._elements.get(container, {}).get(key)

    def _bridged(self, flow: Flow) -> Flow:
        """The flow after the bridge family's chain, which knows the port as its interface."""
        base, port = self._ruleset.base, flow.packet.bridge_port
        if not port or base.bridge is None:
            return flow
        outer = flow.packet.interface
        flow = replace(flow, packet=replace(flow.packet, interface=port))
        table = f"bridge {base.bridge_table}"
        for rule in base.bridge:
            (reading,) = RuleReader(rule, self._has).read(flow)
            flow = reading.flow
            if reading.does:
                does = "marks it as a bridge port's"
                flow = flow.met(RuleStep(table=table, chain="prerouting", rule=rule, does=does))
        return replace(flow, packet=replace(flow.packet, interface=outer))


def _hooks(ruleset: NftablesRuleset) -> dict[Hook, list[str]]:
    """The base chains of each hook, in the order in which the kernel asks them."""
    found: dict[Hook, list[tuple[int, str]]] = {}
    for chain, head in ruleset.base.heads.items():
        if match := _HEAD.fullmatch(head):
            place = found.setdefault(Hook(match["hook"]), [])
            place.append((int(match["priority"]), chain))
    return {hook: [chain for _, chain in sorted(chains)] for hook, chains in found.items()}
