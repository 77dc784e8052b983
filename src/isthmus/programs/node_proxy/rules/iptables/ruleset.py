"""All rules of one family together, and what iptables-restore is given to write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.iptables import base, names
from isthmus.programs.node_proxy.rules.iptables.ports import SHARED, IptablesPortRules
from isthmus.programs.node_proxy.rules.settings import RuleSettings

#: The tables, in the order in which they are written, and our chains there that are no port's.
OWN_CHAINS: Mapping[str, tuple[str, ...]] = {
    "mangle": (names.CANARY,),
    "filter": (
        names.SERVICES,
        names.EXTERNAL_SERVICES,
        names.FORWARD,
        names.NODE_PORTS,
        names.PROXY_FIREWALL,
        names.CANARY,
    ),
    "nat": (
        names.SERVICES,
        names.NODE_PORTS,
        names.POSTROUTING,
        names.MARK_MASQ,
        names.MASQ_IF_NOT_LOCAL,
        names.CANARY,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """What is written into one table at once.

    ``chains`` are made, or emptied; ``rules`` are blocks of lines, each line with its end;
    ``removed`` chains are emptied first and removed last. ``inserted`` and ``deleted`` lines
    concern chains of others.
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
        """The lines for iptables-restore; ``listing`` has it list the table first."""
        parts = [f"*{self.table}\n", "-S\n" if listing else ""]
        parts += [f":{chain} - [0:0]\n" for chain in (*self.chains, *self.removed)]
        parts += self.rules
        parts += [f"{line}\n" for line in (*self.inserted, *self.deleted)]
        parts += [f"-X {chain}\n" for chain in self.removed]
        parts.append("COMMIT\n")
        return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesRuleset:
    """Every rule of one family.

    ``common`` are the rules of the chains that are no port's, by table and chain; ``ports`` are
    the ports' own, in the order of the view.
    """

    settings: RuleSettings
    common: Mapping[tuple[str, str], str]
    ports: tuple[IptablesPortRules, ...]

    def counts(self) -> dict[str, int]:
        """How many rules there are, by table."""
        totals = {"filter": 0, "nat": 0}
        for (table, _), text in self.common.items():
            totals[table] += text.count("\n")
        totals["nat"] += sum(rules.own_rules for rules in self.ports)
        return totals

    def no_local_endpoints(self) -> dict[str, int]:
        """How many ports have traffic that has to stay on this node and finds nothing here."""
        internal = sum(rules.no_local[0] for rules in self.ports)
        return {"internal": internal, "external": sum(rules.no_local[1] for rules in self.ports)}

    def writes(self) -> tuple[TableWrite, TableWrite]:
        """Everything, as if nothing were there: filter and nat."""
        common = common_write("nat", self.common)
        nat = TableWrite(
            table="nat",
            chains=(*common.chains, *(chain for rules in self.ports for chain in rules.chains)),
            rules=(*common.rules, *(rules.text for rules in self.ports)),
            count=common.count + sum(rules.own_rules for rules in self.ports),
        )
        return common_write("filter", self.common), nat

    def text(self) -> str:
        """Everything, as iptables-restore reads it."""
        return "".join(write.text() for write in self.writes())

    def tables(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The rules by table and chain, without the ``-A CHAIN`` that they begin with."""
        tables: dict[str, dict[str, list[str]]] = {}
        for write in self.writes():
            chains: dict[str, list[str]] = {chain: [] for chain in write.chains}
            for line in "".join(write.rules).splitlines():
                _, chain, *rest = line.split(" ", 2)
                chains[chain] += rest
            tables[write.table] = chains
        return {t: {c: tuple(rules) for c, rules in chains.items()} for t, chains in tables.items()}


def common_chains(settings: RuleSettings) -> dict[tuple[str, str], str]:
    """The rules that are there without any Service, by table and chain."""
    chains = dict.fromkeys(SHARED, "")
    chains["filter", names.FORWARD] = base.forward(settings)
    if base.localhost_node_ports(settings):
        chains["filter", names.KUBELET_FIREWALL] = base.kubelet_firewall()
    chains["nat", names.POSTROUTING] = base.postrouting(settings)
    chains["nat", names.MARK_MASQ] = base.mark_masq(settings)
    matches = settings.detector.matches(settings.family)
    if len(matches) > 1 and not settings.masquerade_all:
        local = [base.words(match.iptables) for match in matches]
        chains["nat", names.MASQ_IF_NOT_LOCAL] = base.masq_if_not_local(local)
    return chains


def shared_chain(place: int, ports: Iterable[IptablesPortRules], settings: RuleSettings) -> str:
    """The rules of one of the chains of ``SHARED``."""
    text = "".join([rules.shared[place] for rules in ports])
    if SHARED[place] == ("nat", names.SERVICES):
        return text + base.services_tail(settings)
    return text


def common_write(table: str, chains: Mapping[tuple[str, str], str]) -> TableWrite:
    """What writes those of the chains that are in a table."""
    mine = {chain: text for (where, chain), text in chains.items() if where == table}
    rules = tuple(mine.values())
    count = sum(text.count("\n") for text in rules)
    return TableWrite(table=table, chains=tuple(mine), rules=rules, count=count)
