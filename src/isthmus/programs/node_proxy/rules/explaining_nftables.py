"""Walks a packet through the node proxy's nftables ruleset, base chains in order of priority.

Rules are read word by word and applied to a flow. Only statements that the node proxy writes are
understood; any other is an error and never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
    named,
    walk,
    within,
)
from isthmus.programs.node_proxy.rules.explaining_iptables import MASQUERADED, remembering
from isthmus.programs.node_proxy.rules.nftables.base import AFFINITY, NFT_FAMILY
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRuleset, RuleWords, table_of
from isthmus.programs.node_proxy.rules.settings import RuleSettings

_TOKEN = re.compile(r'"[^"]*"|[{}]|[^\s{}]+')

#: What a rule can match of a packet.
_FIELDS: Mapping[tuple[str, ...], Callable[[Flow], str]] = {
    ("ip", "saddr"): lambda flow: flow.packet.source,
    ("ip6", "saddr"): lambda flow: flow.packet.source,
    ("ip", "daddr"): lambda flow: flow.packet.destination,
    ("ip6", "daddr"): lambda flow: flow.packet.destination,
    ("fib", "saddr", "type"): lambda flow: _type(flow, flow.packet.source),
    ("fib", "daddr", "type"): lambda flow: _type(flow, flow.packet.destination),
    ("meta", "l4proto"): lambda flow: flow.packet.protocol.value,
    ("meta", "protocol"): lambda flow: NFT_FAMILY[flow.packet.family],
    ("th", "dport"): lambda flow: str(flow.packet.port),
    ("iifname",): lambda flow: flow.packet.interface,
    ("meta", "iifname"): lambda flow: flow.packet.interface,
    ("ct", "state"): lambda flow: "new",
    ("ct", "status"): lambda flow: "dnat" if flow.translated else "",
}
_MARKS = (("mark",), ("meta", "mark"))
_VERDICTS = {"reject": PacketVerdict.REFUSED, "drop": PacketVerdict.DROPPED}
_WORDS = {PacketVerdict.REFUSED: "reject", PacketVerdict.DROPPED: "drop"}

ElementLookup = Callable[[str, str], str | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReading:
    """A flow after a rule. ``does`` is empty if the rule does not match."""

    flow: Flow
    do: Continuation = Continuation.NEXT
    target: str = ""
    does: tuple[str, ...] = ()
    marks: bool = False


class RuleReader(RuleWords):
    """Applies one rule. ``has`` looks up elements: see ``NftablesRules``."""

    def __init__(self, rule: str, has: ElementLookup) -> None:
        super().__init__(_TOKEN.findall(rule))
        self._rule = rule
        self._has = has
        self._remembers_s: int | None = None

    def read(self, flow: Flow) -> Iterator[RuleReading]:
        """Apply the rule to a flow; chance yields several.

        Raises:
            ConfigError: the rule has a statement that the node proxy does not write.
        """
        now = RuleReading(flow=flow)
        while self._at < len(self._words):
            if self._take("numgen", "random", "mod") or self._take("dnat"):
                yield from self._balance(now)
                return
            after = self._statement(now)
            if after is None:
                yield RuleReading(flow=self._noted(flow))
                return
            now = after
            if now.do is not Continuation.NEXT:
                break
        yield now

    @override
    def _unknown(self, what: str) -> ConfigError:
        return ConfigError(f"cannot explain {what} in the rule: {self._rule}")

    def _texts(self) -> list[str]:
        """The comma-separated texts in braces."""
        if not self._take("{"):
            raise self._unknown("a statement without braces")
        return [" ".join(words) for words in self._listed()]

    # Statements.

    def _statement(self, now: RuleReading) -> RuleReading | None:
        """Apply one statement; None if it is a match that fails."""
        if self._take("comment"):
            self._next()
            return now
        if self._take("update"):
            self._next()
            self._texts()
            return _did(now, "record the client for session affinity")
        if self._take("masquerade"):
            self._take("fully-random")
            masqueraded = replace(now.flow, masqueraded=True)
            return replace(_did(now, MASQUERADED, masqueraded), do=Continuation.STOP)
        for mark in _MARKS:
            if self._take(*mark):
                return self._marking(now, mark) if self._take("set") else self._marked(now)
        fields = self._fields(now.flow)
        return self._compared(now, fields) if fields else self._verdict(now, self._next())

    def _verdict(self, now: RuleReading, word: str) -> RuleReading:
        if word in _VERDICTS:
            verdict = _VERDICTS[word]
            ended = replace(now.flow, verdict=verdict)
            return replace(_did(now, _WORDS[verdict], ended), do=Continuation.STOP)
        match word:
            case "return":
                return replace(_did(now, "return"), do=Continuation.RETURN)
            case "jump" | "goto":
                target = self._next()
                do = Continuation.JUMP if word == "jump" else Continuation.GOTO
                return replace(_did(now, f"jump to {target}"), do=do, target=target)
            case _:
                raise self._unknown(word)

    def _marking(self, now: RuleReading, mark: tuple[str, ...]) -> RuleReading:
        self._take(*mark)
        operation, bits = self._next(), int(self._next(), 0)
        if operation == "or":
            after = replace(now.flow, mark=now.flow.mark | bits)
            return replace(_did(now, "mark for masquerading", after), marks=True)
        if operation == "xor":
            return _did(now, "clear the mark", replace(now.flow, mark=now.flow.mark ^ bits))
        raise self._unknown(operation)

    def _marked(self, now: RuleReading) -> RuleReading | None:
        mark = now.flow.mark
        if self._take("&") or self._take("and"):
            mark &= int(self._next(), 0)
        equal = not self._take("!=")
        if equal:
            self._take("==")
        return now if (mark == int(self._next(), 0)) is equal else None

    # Matches.

    def _fields(self, flow: Flow) -> list[str]:
        """The values of the next fields; concatenated fields are joined by dots."""
        found: list[str] = []
        while True:
            for words, get in _FIELDS.items():
                if self._take(*words):
                    found.append(get(flow))
                    break
            else:
                if found:
                    raise self._unknown("the word after a dot")
                return found
            if not self._take("."):
                return found

    def _compared(self, now: RuleReading, fields: list[str]) -> RuleReading | None:
        key = " . ".join(fields)
        if self._take("vmap"):
            container = self._next().removeprefix("@")
            value = self._has(container, key)
            if not isinstance(value, str):
                return None
            found = replace(now, does=(*now.does, f"match {key} in {container}"))
            word, *target = value.split()
            self._words[self._at : self._at] = target
            return self._verdict(found, word)
        equal = not self._take("!=")
        word = self._next()
        if word.startswith("@"):
            value = self._has(word[1:], key)
            if isinstance(value, int):
                self._remembers_s = value
                return None
            return now if (value is not None) is equal else None
        if word == "{":
            self._at -= 1
            among = self._texts()
        else:
            among = [word.strip('"')]
        return now if any(_is(key, each) for each in among) is equal else None

    def _noted(self, flow: Flow) -> Flow:
        return flow if self._remembers_s is None else remembering(flow, self._remembers_s)

    # Chance.

    def _balance(self, now: RuleReading) -> Iterator[RuleReading]:
        if self._take("to"):
            yield _sent(now, self._next())
            return
        if self._words[self._at] in ("ip", "ip6"):
            del self._words[self._at]
            if not self._take("addr", ".", "port", "to", "numgen", "random", "mod"):
                raise self._unknown("dnat")
        self._next()  # the number of entries
        kind, among = self._next(), self._texts()
        for each in among:
            value = each.partition(" : ")[2]
            share = replace(now, flow=replace(now.flow, chance=now.flow.chance / len(among)))
            if kind == "map":
                address, _, port = value.partition(" . ")
                yield _sent(share, f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
            else:
                chain = value.removeprefix("goto ")
                yield replace(_did(share, f"jump to {chain}"), do=Continuation.GOTO, target=chain)


def _sent(now: RuleReading, endpoint: str) -> RuleReading:
    address, _, port = endpoint.rpartition(":")
    sent = now.flow.to(address.strip("[]"), int(port))
    return replace(_did(now, f"DNAT to {endpoint}", sent), do=Continuation.STOP)


def _did(now: RuleReading, does: str, flow: Flow | None = None) -> RuleReading:
    return replace(now, flow=flow or now.flow, does=(*now.does, does))


def _type(flow: Flow, address: str) -> str:
    return "local" if flow.packet.is_here(address) else "unicast"


def _is(value: str, wanted: str) -> bool:
    if value == wanted:
        return True
    if wanted.endswith("*"):
        return named(value, wanted, "*")
    return "/" in wanted and within(value, wanted)


_HEAD = re.compile(r"type \w+ hook (?P<hook>\w+) priority (?P<priority>-?\d+) ;")


class NftablesRules(WalkableRules):
    """The rules of a ruleset by hook. ``settings`` are those it was made with."""

    def __init__(self, ruleset: NftablesRuleset, settings: RuleSettings) -> None:
        super().__init__(settings)
        self._ruleset = ruleset
        self._table = table_of(ruleset.family)
        self._chains = {**ruleset.base.chains, **ruleset.chains}
        self._hooks = _hooks(ruleset)
        self._elements = {
            str(container): {each.key: each.value for each in elements}
            for container, elements in ruleset.all_elements()
        }

    @override
    def cross(self, hook: Hook, flow: Flow) -> Iterator[Flow]:
        yield from super().cross(hook, self._bridged(flow) if hook is Hook.PREROUTING else flow)

    @override
    def _chains_of(self, hook: Hook) -> list[Callable[[Flow], Iterable[RuleEffect]]]:
        rules = self._chains.__getitem__
        return [partial(walk, rules, self._meet, chain) for chain in self._hooks.get(hook, ())]

    def _meet(self, chain: str, rule: str, flow: Flow) -> Iterator[RuleEffect]:
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
        """The value of an element, empty in a set; None if there is no such element.

        The members of a set of clients are not known: the value is their timeout in seconds.
        """
        if container.startswith(AFFINITY):
            return self._ruleset.affinity[container]
        return self._elements.get(container, {}).get(key)

    def _bridged(self, flow: Flow) -> Flow:
        """The flow after the bridge family's chain, which sees the port as the interface."""
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
                does = "mark as coming from a bridge port"
                flow = flow.met(RuleStep(table=table, chain="prerouting", rule=rule, does=does))
        return replace(flow, packet=replace(flow.packet, interface=outer))


def _hooks(ruleset: NftablesRuleset) -> dict[Hook, list[str]]:
    """The base chains of each hook, in the kernel's order."""
    found: dict[Hook, list[tuple[int, str]]] = {}
    for chain, head in ruleset.base.heads.items():
        if match := _HEAD.fullmatch(head):
            place = found.setdefault(Hook(match["hook"]), [])
            place.append((int(match["priority"]), chain))
    return {hook: [chain for _, chain in sorted(chains)] for hook, chains in found.items()}
