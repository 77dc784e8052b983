"""Views become rulesets; what did not change since the last view is not written again.

A port that is the same object as before keeps its rules. Of one that changed, only the chains that
read differently now are written: one endpoint among a thousand costs two chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.iptables.port_chains import PortPlan, RuleContext, chains_of
from isthmus.programs.node_proxy.rules.iptables.ports import (
    SHARED,
    IptablesPortRules,
    port_rules,
    rule_context,
)
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    IptablesRuleset,
    TableWrite,
    common_chains,
    common_write,
    shared_chain,
)
from isthmus.programs.node_proxy.rules.model import ServiceView
from isthmus.programs.node_proxy.rules.settings import LARGE_CLUSTER_ENDPOINTS, RuleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesRendering:
    """A ruleset, and what brings the one rendered before to it; nothing where they are equal.

    ``filter_back`` undoes ``filter``. Before the first ruleset there was an empty one.
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
        # By identity: hashing keys takes ten times as long. Rules keep their port alive, so that
        # no other object can have its id.
        self._known: dict[int, IptablesPortRules] = {}
        self._last: IptablesRuleset | None = None

    def render(self, view: ServiceView) -> IptablesRendering:
        """Write the rules of a view, and tell how they differ from those of the view before."""
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
        """Follow the size of the cluster; the rules that still hold, by their ports' ids."""
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
    """Join only chains in which a port that came, went or changed has other rules than before."""
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
    """What differs between two rulesets."""

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
        """What is to be written into nat, with ports' own chains."""
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
