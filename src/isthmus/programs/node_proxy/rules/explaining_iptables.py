"""Walks a packet through the node proxy's iptables rules, as the kernel would.

Only matches that the node proxy writes are understood; any other is an error and never skipped.
Rules of other programs are not known here, and the kernel's built-in chains accept everything.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.explaining_flow import (
    Continuation,
    Flow,
    Hook,
    PacketVerdict,
    RuleEffect,
    RuleStep,
    WalkableRules,
    masked,
    named,
    walk,
    within,
)
from isthmus.programs.node_proxy.rules.iptables.base import JUMPS, Jump, quoted_words
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRuleset
from isthmus.programs.node_proxy.rules.ipvs.plan import JUMPS as IPVS_JUMPS
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsPlan, IpvsRuleset
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    IpvsDestination,
    IpvsFlags,
    ServerKey,
    VirtualServer,
)
from isthmus.programs.node_proxy.rules.ipvs.sets import IP, IP_PORT_NET, PORT
from isthmus.programs.node_proxy.rules.settings import RuleSettings

# The tables of each hook in the kernel's order: nat changes destinations before filter sees them.
_TABLES = {
    Hook.PREROUTING: ("nat",),
    Hook.INPUT: ("filter",),
    Hook.FORWARD: ("filter",),
    Hook.OUTPUT: ("nat", "filter"),
    Hook.POSTROUTING: ("nat",),
}

#: The test of each match, given the text after the option.
_TESTS: Mapping[str, Callable[[Flow, str], bool]] = {
    "-p": lambda flow, text: flow.packet.protocol.value == text,
    "-s": lambda flow, text: within(flow.packet.source, text),
    "-d": lambda flow, text: within(flow.packet.destination, text),
    "-i": lambda flow, text: named(flow.packet.interface, text, "+"),
    "--dport": lambda flow, text: flow.packet.port == int(text),
    "--mark": lambda flow, text: masked(flow.mark, text),
    "--ctstate": lambda flow, text: bool(_states(flow) & {*text.split(",")}),
    "--src-type": lambda flow, _: flow.packet.is_here(flow.packet.source),
    "--dst-type": lambda flow, _: flow.packet.is_here(flow.packet.destination),
    "--physdev-in": lambda flow, text: named(flow.packet.bridge_port, text, "+"),
    "--physdev-is-in": lambda flow, _: bool(flow.packet.bridge_port),
    "--vaddr": lambda flow, text: flow.virtual is not None and flow.virtual[0] == text,
    "--vproto": lambda flow, text: flow.virtual is not None and flow.virtual[1] == text,
    "--vport": lambda flow, text: flow.virtual is not None and flow.virtual[2] == int(text),
}
_SET = "--match-set"
#: The effect of a MASQUERADE target.
MASQUERADED = "masquerade (the source becomes an address of this node)"
#: The comment of rules that accept health checks.
HEALTH_CHECK = "health check node port"
# Matches without an argument; and words without an effect, with the number of their arguments.
_BARE = frozenset({"--physdev-is-in"})
_PASSED = {
    "-m": 1, "--comment": 1, "--mode": 1, "--name": 1, "--nfacct-name": 1, "--reap": 0, "--set": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesRule:
    """A parsed rule.

    ``tests`` are options, their arguments, and whether they are negated. ``chance`` is the
    probability of a match; a rule with ``remembers_s`` matches only clients seen within that time.
    """

    text: str
    tests: tuple[tuple[str, str, bool], ...]
    target: str
    arguments: tuple[str, ...]
    chance: float = 1.0
    remembers_s: int | None = None


@lru_cache(maxsize=65536)
def parse_rule(text: str) -> IptablesRule:
    """Parse a rule, given the text after ``-A CHAIN``.

    Raises:
        ConfigError: the rule has a match that the node proxy does not write.
    """
    given = iter(shlex.split(text))
    tests: list[tuple[str, str, bool]] = []
    chance, seconds, checks, turned = 1.0, 0, False, False
    for word in given:
        if word == "!":
            turned = True
            continue
        if word == "-j":
            target, *arguments = given
            break
        if word == _SET:
            tests.append((word, f"{next(given)} {next(given)}", turned))
        elif word in _TESTS:
            tests.append((word, "" if word in _BARE else next(given), turned))
        elif word == "--probability":
            chance = float(next(given))
        elif word == "--seconds":
            seconds = int(next(given))
        elif word == "--rcheck":
            checks = True
        elif word in _PASSED:
            for _ in range(_PASSED[word]):
                next(given)
        else:
            raise ConfigError(f"cannot explain the match {word} in the rule: {text}")
        turned = False
    else:
        target, arguments = "", []
    return IptablesRule(
        text=text,
        tests=tuple(tests),
        target=target,
        arguments=tuple(arguments),
        chance=chance,
        remembers_s=seconds if checks else None,
    )


class MatchedSet(Protocol):
    """An ipset that rules refer to."""

    def has(self, flow: Flow, directions: str, /) -> bool:
        """Whether a packet is in the set, looked up in these directions."""


class IptablesChains(WalkableRules):
    """The chains of each table, the jumps to them and the sets that they refer to."""

    def __init__(
        self,
        settings: RuleSettings,
        tables: Mapping[str, Mapping[str, Sequence[str]]],
        jumps: Iterable[Jump],
        sets: Mapping[str, MatchedSet] = MappingProxyType({}),
    ) -> None:
        super().__init__(settings)
        self._sets = sets
        self._tables = {table: dict(chains) for table, chains in tables.items()}
        for jump in jumps:  # each jump is inserted at the front
            rules = self._tables[jump.table].get(jump.source, ())
            self._tables[jump.table][jump.source] = (quoted_words(jump.args), *rules)

    @override
    def _chains_of(self, hook: Hook) -> list[Callable[[Flow], Iterable[RuleEffect]]]:
        return [partial(self._walk, table, hook.value.upper()) for table in _TABLES[hook]]

    def _walk(self, table: str, chain: str, flow: Flow) -> Iterator[RuleEffect]:
        chains = self._tables[table]

        def meet(name: str, text: str, flow: Flow) -> Iterator[RuleEffect]:
            rule = parse_rule(text)
            if not matches(rule, flow, self._sets):
                return iter((RuleEffect(flow),))
            return _meet(table, name, rule, flow)

        # A missing chain has no rules: the kubelet creates its chains only where needed.
        return walk(lambda name: chains.get(name, ()), meet, chain, flow)


def _states(flow: Flow) -> set[str]:
    return {"NEW", "DNAT"} if flow.translated else {"NEW"}


class IptablesRules(IptablesChains):
    """The rules of iptables mode."""

    def __init__(self, ruleset: IptablesRuleset) -> None:
        super().__init__(ruleset.settings, ruleset.tables(), JUMPS)


def matches(
    rule: IptablesRule, flow: Flow, sets: Mapping[str, MatchedSet] = MappingProxyType({})
) -> bool:
    """Whether all tests of a rule hold, apart from chance and remembered clients."""
    return all(
        (_in_set(sets, flow, text) if option == _SET else _TESTS[option](flow, text)) != turned
        for option, text, turned in rule.tests
    )


def _in_set(sets: Mapping[str, MatchedSet], flow: Flow, text: str) -> bool:
    name, _, directions = text.partition(" ")
    if name not in sets:
        raise ConfigError(f"cannot explain the ipset {name}: the node proxy does not write it")
    return sets[name].has(flow, directions)


def _meet(table: str, chain: str, rule: IptablesRule, flow: Flow) -> Iterator[RuleEffect]:
    if rule.remembers_s is not None:
        yield RuleEffect(remembering(flow, rule.remembers_s))
        return
    if rule.chance < 1:
        yield RuleEffect(replace(flow, chance=flow.chance * (1 - rule.chance)))
        flow = replace(flow, chance=flow.chance * rule.chance)
    yield _done(table, chain, rule, flow)


def remembering(flow: Flow, seconds: int) -> Flow:
    """The flow of a client without session affinity yet, with a note about those that have it."""
    note = f"a client seen within the last {seconds} s keeps its endpoint (session affinity)"
    return replace(flow, notes=flow.notes | {note})


def _done(table: str, chain: str, rule: IptablesRule, flow: Flow) -> RuleEffect:
    def step(does: str, flow: Flow = flow, *, marks: bool = False) -> Flow:
        return flow.met(RuleStep(table=table, chain=chain, rule=rule.text, does=does, marks=marks))

    match rule.target, *rule.arguments:
        case ("MARK", "--or-mark", mark):
            after = replace(flow, mark=flow.mark | int(mark, 0))
            return RuleEffect(step("mark for masquerading", after, marks=True))
        case ("MARK", "--xor-mark", mark):
            return RuleEffect(step("clear the mark", replace(flow, mark=flow.mark ^ int(mark, 0))))
        case ("DNAT", "--to-destination", target):
            address, _, port = target.rpartition(":")
            after = flow.to(address.strip("[]"), int(port))
            return RuleEffect(step(f"DNAT to {target}", after), Continuation.STOP)
        case ("MASQUERADE", *_):
            after = replace(flow, masqueraded=True)
            return RuleEffect(step(MASQUERADED, after), Continuation.STOP)
        case ("REJECT",):
            after = replace(flow, verdict=PacketVerdict.REFUSED)
            return RuleEffect(step("reject", after), Continuation.STOP)
        case ("DROP",):
            after = replace(flow, verdict=PacketVerdict.DROPPED)
            return RuleEffect(step("drop", after), Continuation.STOP)
        case ("ACCEPT",):
            why = f": {HEALTH_CHECK}" if HEALTH_CHECK in rule.text else ""
            return RuleEffect(step(f"accept{why}"), Continuation.STOP)
        case ("RETURN",):
            return RuleEffect(step("return"), Continuation.RETURN)
        case ("",):
            return RuleEffect(step("no effect"))
        case (target,):
            return RuleEffect(step(f"jump to {target}"), Continuation.JUMP, target)
        case _:
            raise ConfigError(f"cannot explain the target {rule.target} in the rule: {rule.text}")


_IN_TURN = "rr"
_NO_PORT = "an ipset that matches the source port"


@dataclass(frozen=True, slots=True)
class SetMembers:
    """An ipset: its type, and its entries in ipset's syntax."""

    kind: str
    entries: frozenset[str]

    def has(self, flow: Flow, directions: str) -> bool:
        """Whether a packet is in the set, looked up in these directions: ``dst,dst,src``."""
        packet = flow.packet
        first, *others = directions.split(",")
        if "src" in others[:1]:
            raise ValueError(_NO_PORT)  # the node proxy writes no such rule
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
    """Everything of ipvs mode that a packet can meet; ``addresses`` are the node's for Services."""

    def __init__(self, made: IpvsPlan, ruleset: IpvsRuleset, settings: RuleSettings) -> None:
        tables = {"nat": _by_chain(ruleset.nat), "filter": _by_chain(ruleset.filter)}
        sets = {
            each.of(settings.family): SetMembers(each.kind, entries)
            for each, entries in made.entries().items()
        }
        super().__init__(settings, tables, IPVS_JUMPS, sets)
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
        """Pass a packet to the virtual server for its destination, if there is one."""
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
            yield RuleEffect(refused.met(_step(server, "reject: the server has no endpoints")))
            return
        if server.flags & IpvsFlags.PERSISTENT:
            taken = remembering(taken, server.timeout_s)
        if server.scheduler != _IN_TURN and len(behind) > 1:
            note = f"which endpoint the scheduler {server.scheduler} chooses is not known here"
            taken = replace(taken, notes=taken.notes | {note})
        for each in behind:
            sent = replace(taken.to(each.ip, each.port), chance=taken.chance / len(behind))
            yield RuleEffect(sent.met(_step(server, f"forward to {_shown(each)}")))


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
    """The rules of a table by chain, without their ``-A CHAIN``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        _, chain, rule = line.split(" ", 2)
        found.setdefault(chain, []).append(rule)
    return found
