"""A whole ruleset as a value, the difference between two of them, and what makes them of views.

``NftablesRenderer`` keeps what every port came to, so that a new view costs what is new in it.
Ports of a view that did not change are the same objects as before: telling them apart takes one
set operation on their identities (1.6 ms for 5,000 ports), and nothing else is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from isthmus.programs.node_proxy.rules.model import BackedPort, IpFamily, ServiceView
from isthmus.programs.node_proxy.rules.nftables.base import (
    AFFINITY,
    BaseRules,
    Element,
    NftContainer,
    base_rules,
)
from isthmus.programs.node_proxy.rules.nftables.ports import NftablesPortRules, port_rules
from isthmus.programs.node_proxy.rules.settings import RuleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NftablesRuleset:
    """All that the table of a family has: its base, and what the ports add to it.

    ``affinity`` are the sets of clients by name, with their timeouts in seconds.
    """

    family: IpFamily
    base: BaseRules
    elements: Mapping[NftContainer, Mapping[str, Element]] = field(default_factory=dict)
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    affinity: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> int:
        return sum(map(len, self.base.chains.values())) + sum(map(len, self.chains.values()))

    def all_elements(self) -> Iterator[tuple[NftContainer, list[Element]]]:
        """The elements of each container that has any."""
        for container in self.base.containers:
            found = list(self.elements.get(container, {}).values())
            found += [each for each in self.base.elements if each.container is container]
            if found:
                yield container, found


@dataclass(frozen=True, slots=True, kw_only=True)
class NftablesChanges:
    """What to do to one ruleset to make another of it; the base is the same in both.

    ``chains`` are written anew, whether they were there or not (``added`` were not). An affinity
    set of which the timeout changed is both removed and added.
    """

    elements_removed: tuple[Element, ...] = ()
    elements_added: tuple[Element, ...] = ()
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    chains_removed: tuple[str, ...] = ()
    affinity_removed: tuple[str, ...] = ()
    affinity_added: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.elements_removed or self.elements_added or self.chains or self.chains_removed
        )

    @property
    def rules(self) -> int:
        return sum(map(len, self.chains.values()))


_Place = tuple[NftContainer, str]


class NftablesRenderer:
    """Turns views of one family, with one set of settings, into rulesets and their differences."""

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings
        self.base = base_rules(settings)
        #: How many ports have no endpoint on this node, by traffic policy.
        self.no_local: Counter[str] = Counter()
        # The ports are kept too, so that no other object gets the identity of one of them.
        self._ports: dict[int, tuple[BackedPort, NftablesPortRules]] = {}
        # Several ports may want one element: all of a Service its cluster IP, two Services the
        # same external IP. The least one is written, whatever the order they came in.
        self._claims: dict[NftContainer, dict[str, tuple[Element, ...]]] = {
            container: {} for container in NftContainer
        }
        self._chains: dict[str, tuple[str, ...]] = {}
        self._affinity: dict[str, int] = {}
        self._rules = sum(map(len, self.base.chains.values()))

    @property
    def rules(self) -> int:
        return self._rules

    def ruleset(self) -> NftablesRuleset:
        """All of it, as the last view had it."""
        return NftablesRuleset(
            family=self.settings.family,
            base=self.base,
            elements={
                container: {key: min(claims) for key, claims in found.items()}
                for container, found in self._claims.items()
                if found
            },
            chains=dict(self._chains),
            affinity=dict(self._affinity),
        )

    def advance(self, view: ServiceView) -> NftablesChanges:
        """Go on to another view; what has to be done to the ruleset of the last one."""
        now = {id(backed): backed for backed in view.ports.values()}
        fresh = now.keys() - self._ports.keys()
        # In the order of the view, so that texts are the same from run to run.
        new = [
            (port, port_rules(port, self.settings)) for each, port in now.items() if each in fresh
        ]
        gone = [self._ports.pop(each)[1] for each in self._ports.keys() - now.keys()]
        return self._replace(gone, new)

    def _replace(
        self, gone: list[NftablesPortRules], new: list[tuple[BackedPort, NftablesPortRules]]
    ) -> NftablesChanges:
        step = _Step()
        for rules in gone:
            self._remove(rules, step)
        for port, rules in new:
            self._ports[id(port)] = (port, rules)
            self._add(rules, step)
        return self._changes(step)

    def _remove(self, rules: NftablesPortRules, step: _Step) -> None:
        self.no_local.subtract(rules.no_local)
        for element in rules.elements:
            claims = self._claims[element.container]
            before = claims[element.key]
            step.elements.setdefault((element.container, element.key), min(before))
            rest = list(before)
            rest.remove(element)
            if rest:
                claims[element.key] = tuple(rest)
            else:
                del claims[element.key]
        for name in rules.chains:
            step.chains[name] = chain = self._chains.pop(name)
            self._rules -= len(chain)
        for name in rules.affinity:
            step.affinity[name] = self._affinity.pop(name)

    def _add(self, rules: NftablesPortRules, step: _Step) -> None:
        self.no_local.update(rules.no_local)
        for element in rules.elements:
            claims = self._claims[element.container]
            before = claims.get(element.key, ())
            place = (element.container, element.key)
            step.elements.setdefault(place, min(before) if before else None)
            claims[element.key] = (*before, element)
        for name, chain in rules.chains.items():
            step.chains.setdefault(name, None)
            self._chains[name] = chain
            self._rules += len(chain)
        for name, timeout_s in rules.affinity.items():
            step.affinity.setdefault(name, None)
            self._affinity[name] = timeout_s

    def _changes(self, step: _Step) -> NftablesChanges:
        removed, added = [], []
        for (container, key), before in step.elements.items():
            claims = self._claims[container].get(key)
            after = min(claims) if claims else None
            if before != after:
                removed += [before] if before else []
                added += [after] if after else []
        retimed = {
            name
            for name, before in step.affinity.items()
            if before is not None and self._affinity.get(name, before) != before
        }
        chains, chains_removed = self._changed_chains(step.chains, sticky_too=bool(retimed))
        return NftablesChanges(
            elements_removed=tuple(removed),
            elements_added=tuple(added),
            chains=chains,
            added=frozenset(name for name in chains if step.chains[name] is None),
            chains_removed=chains_removed,
            affinity_removed=tuple(
                name
                for name, before in step.affinity.items()
                if before is not None and (name not in self._affinity or name in retimed)
            ),
            affinity_added={
                name: self._affinity[name]
                for name, before in step.affinity.items()
                if name in self._affinity and (before is None or name in retimed)
            },
        )

    def _changed_chains(
        self, before: Mapping[str, tuple[str, ...] | None], *, sticky_too: bool
    ) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        written, removed = {}, []
        for name, old in before.items():
            new = self._chains.get(name)
            if new is None:
                removed.append(name)
            # A set can only be made anew while no rule looks into it.
            elif new != old or (sticky_too and any(f"@{AFFINITY}" in rule for rule in new)):
                written[name] = new
        return written, tuple(removed)


class _Step:
    """What the places that one step touches had before it; None for nothing."""

    __slots__ = ("affinity", "chains", "elements")

    def __init__(self) -> None:
        self.elements: dict[_Place, Element | None] = {}
        self.chains: dict[str, tuple[str, ...] | None] = {}
        self.affinity: dict[str, int | None] = {}
