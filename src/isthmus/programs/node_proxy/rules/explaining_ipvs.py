"""Walks a packet through what ipvs mode has in the kernel: rules, ipsets and virtual servers.

The rules are walked as those of iptables mode. The kernel asks its virtual servers about a packet
for an address of its own: one from elsewhere after the filter table of INPUT, one of the node
between the tables of OUTPUT. One that is taken leaves by OUTPUT and POSTROUTING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from isthmus.programs.node_proxy.rules.explaining_flow import (
    Flow,
    Hook,
    PacketVerdict,
    RuleEffect,
    RuleStep,
    within,
)
from isthmus.programs.node_proxy.rules.explaining_iptables import IptablesChains, remembering
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsPlan
from isthmus.programs.node_proxy.rules.ipvs.rules import JUMPS, IpvsRuleset
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    IpvsDestination,
    IpvsFlags,
    ServerKey,
    VirtualServer,
)
from isthmus.programs.node_proxy.rules.ipvs.sets import IP, IP_PORT_NET, PORT
from isthmus.programs.node_proxy.rules.settings import RuleSettings

_IN_TURN = "rr"
_NO_PORT = "a set that looks at the source's port"


@dataclass(frozen=True, slots=True)
class SetMembers:
    """An ipset: its type, and its entries as ipset writes them."""

    kind: str
    entries: frozenset[str]

    def has(self, flow: Flow, directions: str) -> bool:
        """Whether a packet is in it, looked at in these directions: ``dst,dst,src``."""
        packet = flow.packet
        first, *others = directions.split(",")
        if "src" in others[:1]:
            raise ValueError(_NO_PORT)  # no rule of ours does: a packet here has no such port
        ip = packet.source if first == "src" else packet.destination
        if self.kind == PORT:
            return str(packet.port) in self.entries
        if self.kind == IP:
            return ip in self.entries
        start = f"{ip},{packet.protocol.value}:{packet.port}"
        if len(others) < 2:
            return start in self.entries
        third = packet.source if others[1] == "src" else packet.destination
        if self.kind != IP_PORT_NET:
            return f"{start},{third}" in self.entries
        found = (each.partition(f"{start},") for each in self.entries)
        return any(not head and within(third, net) for head, between, net in found if between)


class IpvsWalk(IptablesChains):
    """All of ipvs mode that a packet can meet; ``addresses`` are the node's for Services."""

    def __init__(self, made: IpvsPlan, ruleset: IpvsRuleset, settings: RuleSettings) -> None:
        tables = {"nat": _by_chain(ruleset.nat), "filter": _by_chain(ruleset.filter)}
        sets = {
            each.of(settings.family): SetMembers(each.kind, entries)
            for each, entries in made.entries().items()
        }
        super().__init__(settings, tables, JUMPS, sets)
        self.addresses = frozenset(made.addresses)
        self._servers = {server.key: server for server in made.servers}
        self._behind = made.servers

    @override
    def _chains_of(self, hook: Hook) -> list[Callable[[Flow], Iterable[RuleEffect]]]:
        usual = super()._chains_of(hook)
        match hook:
            case Hook.INPUT:
                (leaving,) = super()._chains_of(Hook.OUTPUT)[1:]
                return [*usual, self._balance, lambda flow: _if_taken(leaving, flow)]
            case Hook.OUTPUT:
                return [usual[0], self._balance, *usual[1:]]
            case _:
                return usual

    def _balance(self, flow: Flow) -> Iterator[RuleEffect]:
        """Let a virtual server take a packet, if there is one for it."""
        packet = flow.packet
        key = ServerKey(packet.destination, packet.port, packet.protocol)
        server = self._servers.get(key)
        if server is None or flow.virtual is not None:
            yield RuleEffect(flow)
            return
        behind = sorted(self._behind[server])
        taken = replace(flow, virtual=(key.address, key.protocol.value, key.port))
        if not behind:
            refused = replace(taken, verdict=PacketVerdict.REFUSED)
            yield RuleEffect(refused.met(_step(server, "refuses it: it has no destination")))
            return
        if server.flags & IpvsFlags.PERSISTENT:
            taken = remembering(taken, server.timeout_s)
        if server.scheduler != _IN_TURN and len(behind) > 1:
            note = f"the scheduler {server.scheduler} chooses, which is not known here"
            taken = replace(taken, notes=taken.notes | {note})
        for each in behind:
            sent = replace(taken.to(each.ip, each.port), chance=taken.chance / len(behind))
            yield RuleEffect(sent.met(_step(server, f"sends it to {_shown(each)}")))


def _if_taken(chain: Callable[[Flow], Iterable[RuleEffect]], flow: Flow) -> Iterable[RuleEffect]:
    return chain(flow) if flow.virtual is not None else [RuleEffect(flow)]


def _step(server: VirtualServer, does: str) -> RuleStep:
    kept = f", persistent {server.timeout_s} s" if server.flags & IpvsFlags.PERSISTENT else ""
    return RuleStep(
        table="ipvs", chain=str(server.key), rule=f"scheduler {server.scheduler}{kept}", does=does
    )


def _shown(each: IpvsDestination) -> str:
    host = f"[{each.ip}]" if ":" in each.ip else each.ip
    return f"{host}:{each.port}"


def _by_chain(lines: Sequence[str]) -> Mapping[str, list[str]]:
    """The rules of a table by their chains, as they stand behind ``-A CHAIN``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        _, chain, rule = line.split(" ", 2)
        found.setdefault(chain, []).append(rule)
    return found
