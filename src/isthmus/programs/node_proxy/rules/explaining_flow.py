"""A packet on its way through rules: its current state, the rules it met, and walking chains.

Chance splits a flow into several, each with its share. explaining_iptables.py and
explaining_nftables.py read the rules; explaining.py turns the result into an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeVar

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol
from isthmus.programs.node_proxy.rules.settings import RuleSettings

R = TypeVar("R")
_DEEPEST = 16  # the kernel refuses loops, and the node proxy's chains are five deep


class Origin(Enum):
    """Where a packet comes from, as seen from the node."""

    POD = "pod"
    NODE = "node"
    OUTSIDE = "outside"


class Hook(Enum):
    """A netfilter hook; the value is nft's name for it."""

    PREROUTING = "prerouting"
    INPUT = "input"
    FORWARD = "forward"
    OUTPUT = "output"
    POSTROUTING = "postrouting"


class PacketVerdict(Enum):
    """The fate of a packet."""

    TRANSLATED = "translated"
    REFUSED = "refused"
    DROPPED = "dropped"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """The first packet of a connection, its addresses written canonically.

    ``interface`` is the incoming one, empty for packets of the node itself; ``bridge_port`` is the
    port of that bridge, or empty. ``here`` are the addresses that the node has, besides loopback
    addresses.
    """

    family: IpFamily
    source: str
    destination: str
    port: int
    protocol: PortProtocol
    origin: Origin
    interface: str = ""
    bridge_port: str = ""
    here: frozenset[str] = frozenset()

    def is_here(self, address: str) -> bool:
        return address in self.here or parsed(address).is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStep:
    """A rule that a packet met and that had an effect: its chain, its text, the effect.

    The text is what follows the chain's name. ``marks`` if the rule marked the packet for
    masquerading.
    """

    table: str
    chain: str
    rule: str
    does: str
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Trail:
    """Steps, the last one first: flows that split share the steps before the split."""

    step: RuleStep
    before: Trail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The state of a packet after some rules, and the probability of reaching that state.

    ``verdict`` is set once the packet is refused or dropped. ``virtual`` is the address, protocol
    and port of the IPVS virtual server that took it. ``notes`` say what cannot be known from a
    single packet.
    """

    packet: Packet
    mark: int = 0
    chance: float = 1.0
    translated: bool = False
    masqueraded: bool = False
    verdict: PacketVerdict | None = None
    trail: Trail | None = None
    virtual: tuple[str, str, int] | None = None
    notes: frozenset[str] = field(default=frozenset())

    def met(self, step: RuleStep) -> Flow:
        return replace(self, trail=Trail(step, self.trail))

    def to(self, address: str, port: int) -> Flow:
        packet = replace(self.packet, destination=address, port=port)
        return replace(self, packet=packet, translated=True)

    def steps(self) -> tuple[RuleStep, ...]:
        """The rules that the packet met, in order."""
        found: list[RuleStep] = []
        trail = self.trail
        while trail is not None:
            found.append(trail.step)
            trail = trail.before
        return tuple(reversed(found))


class Continuation(Enum):
    """Where evaluation continues after a rule."""

    NEXT = "at the next rule"
    JUMP = "in another chain, then here again"
    GOTO = "in another chain, then where this one was called from"
    RETURN = "in the calling chain"
    STOP = "after the hook"


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """One possible continuation after a rule; ``target`` is a chain."""

    flow: Flow
    do: Continuation = Continuation.NEXT
    target: str = ""


class WalkableRules(ABC):
    """All rules of a family that a packet can meet; ``settings`` are those they were made with.

    ``addresses`` are those of Services that the node itself has, in ipvs mode.
    """

    addresses: frozenset[str] = frozenset()

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings

    def cross(self, hook: Hook, flow: Flow) -> Iterator[Flow]:
        """Walk a flow through the chains of a hook.

        Raises:
            ConfigError: a detector of another package uses a match that cannot be explained.
        """
        flows = [flow]
        for walked in self._chains_of(hook):
            ended = [each for each in flows if each.verdict is not None]
            going = [each for each in flows if each.verdict is None]
            flows = ended + [effect.flow for each in going for effect in walked(each)]
        yield from flows

    @abstractmethod
    def _chains_of(self, hook: Hook) -> Iterable[Callable[[Flow], Iterable[RuleEffect]]]:
        """The functions that walk each of the hook's chains, in the kernel's order."""


def walk(
    chains: Callable[[str], Iterable[R]],
    meet: Callable[[str, R, Flow], Iterable[RuleEffect]],
    name: str,
    flow: Flow,
    depth: int = 0,
) -> Iterator[RuleEffect]:
    """Walk a flow through a chain; every resulting effect has RETURN or STOP.

    ``meet`` applies one rule of a chain to a flow.
    """
    if depth > _DEEPEST:
        raise ConfigError(f"chain {name} jumps to itself")
    pending = [flow]
    for rule in chains(name):
        onward: list[Flow] = []
        for way in (way for each in pending for way in meet(name, rule, each)):
            match way.do:
                case Continuation.NEXT:
                    onward.append(way.flow)
                case Continuation.JUMP:
                    for end in walk(chains, meet, way.target, way.flow, depth + 1):
                        if end.do is Continuation.STOP:
                            yield end
                        else:
                            onward.append(end.flow)
                case Continuation.GOTO:
                    yield from walk(chains, meet, way.target, way.flow, depth + 1)
                case _:
                    yield way
        pending = onward
        if not pending:
            return
    yield from (RuleEffect(each, Continuation.RETURN) for each in pending)


@lru_cache(maxsize=4096)
def parsed(address: str) -> IPv4Address | IPv6Address:
    return ip_address(address)


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text, strict=False)


def within(address: str, text: str) -> bool:
    found, network = parsed(address), _network(text)
    return found.version == network.version and found in network


def masked(mark: int, text: str) -> bool:
    """Whether a mark matches ``value/mask``."""
    value, _, mask = text.partition("/")
    return mark & (int(mask, 0) if mask else 0xFFFFFFFF) == int(value, 0)


def named(name: str, pattern: str, wildcard: str) -> bool:
    """Whether an interface name equals a pattern, or begins with it if it ends in a wildcard."""
    if pattern.endswith(wildcard):
        return bool(name) and name.startswith(pattern.removesuffix(wildcard))
    return name == pattern
