"""A whole ruleset as a value, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.nftables.base import BaseRules
from isthmus.programs.node_proxy.rules.nftables.names import Container
from isthmus.programs.node_proxy.rules.nftables.port_rules import Element


@dataclass(frozen=True, slots=True, kw_only=True)
class NftablesRuleset:
    """All that the table of a family has: its base, and what the ports add to it.

    ``affinity`` are the sets of clients by name, with their timeouts in seconds.
    """

    family: IpFamily
    base: BaseRules
    elements: Mapping[Container, Mapping[str, Element]] = field(default_factory=dict)
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    affinity: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> int:
        """How many rules there are."""
        return sum(map(len, self.base.chains.values())) + sum(map(len, self.chains.values()))

    def all_elements(self) -> Iterator[tuple[Container, list[Element]]]:
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
        """How many rules are written."""
        return sum(map(len, self.chains.values()))
