"""A packet on its way through rules: what it is now, which rules it met, and walking chains.

Chance splits a flow in two or more, each with its share. The rules themselves are read by
explaining_iptables.py and explaining_nftables.py; explaining.py says what came of it.
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
_DEEPEST = 16  # the kernel refuses loops, and ours are five chains deep


class Origin(Enum):
    """Where a packet comes from, seen from the node."""

    POD = "pod"
    NODE = "node"
    OUTSIDE = "outside"


class Hook(Enum):
    """Where the kernel lets rules look at a packet; the value is nft's word."""

    PREROUTING = "prerouting"
    INPUT = "input"
    FORWARD = "forward"
    OUTPUT = "output"
    POSTROUTING = "postrouting"


class PacketVerdict(Enum):
    """What becomes of a packet."""

    TRANSLATED = "translated"
    REFUSED = "refused"
    DROPPED = "dropped"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """The first packet of a connection, its addresses written canonically.

    ``interface`` is what it came in by, empty from the node itself; ``bridge_port`` the port of
    that bridge, empty where it is none. ``here`` are the addresses that the node has, besides
    loopback ones.
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
    """A rule that a packet met and that did something: where it is, its text, what it did.

    The text is what follows the name of the chain. ``marks`` if it marked the packet to be
    masqueraded.
    """

    table: str
    chain: str
    rule: str
    does: str
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Trail:
    """Steps, the last one first: flows that split share what they met before."""

    step: RuleStep
    before: Trail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A packet as it is after some rules, and how likely it is to come there.

    ``verdict`` is there once it is refused or dropped. ``virtual`` is the address, protocol and
    port of the virtual server that took it, with ipvs. ``notes`` are sentences about what cannot
    be known of a single packet.
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
        """The rules that it met, in order."""
        found: list[RuleStep] = []
        trail = self.trail
        while trail is not None:
            found.append(trail.step)
            trail = trail.before
        return tuple(reversed(found))


class Continuation(Enum):
    """How a packet goes on after a rule."""

    NEXT = "to the next rule"
    JUMP = "into another chain, and back"
    GOTO = "into another chain, and back to where this one was jumped to from"
    RETURN = "out of the chain"
    STOP = "out of the hook"


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """One way on after a rule; ``target`` is a chain."""

    flow: Flow
    do: Continuation = Continuation.NEXT
    target: str = ""


class WalkableRules(ABC):
    """All rules of a family that a packet can meet; ``settings`` are what they were made with.

    ``addresses`` are those of Services that the node has for its own, with ipvs.
    """

    addresses: frozenset[str] = frozenset()

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings

    def cross(self, hook: Hook, flow: Flow) -> Iterator[Flow]:
        """What becomes of a flow in the chains of a hook.

        Raises:
            ConfigError: there is a match that nobody knows, of a detector of another package.
        """
        flows = [flow]
        for walked in self._chains_of(hook):
            ended = [each for each in flows if each.verdict is not None]
            going = [each for each in flows if each.verdict is None]
            flows = ended + [effect.flow for each in going for effect in walked(each)]
        yield from flows

    @abstractmethod
    def _chains_of(self, hook: Hook) -> Iterable[Callable[[Flow], Iterable[RuleEffect]]]:
        """What lets a flow through each of the hook's chains, in the order of the kernel."""


def walk(
    chains: Callable[[str], Iterable[R]],
    meet: Callable[[str, R, Flow], Iterable[RuleEffect]],
    name: str,
    flow: Flow,
    depth: int = 0,
) -> Iterator[RuleEffect]:
    """Let a flow through a chain; every way comes out with RETURN or with STOP.

    ``meet`` says what one rule of a chain does to a flow.
    """
    if depth > _DEEPEST:
        raise ConfigError(f"the chain {name} leads to itself")
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
    """Whether a mark is as ``value/mask`` says."""
    value, _, mask = text.partition("/")
    return mark & (int(mask, 0) if mask else 0xFFFFFFFF) == int(value, 0)


def named(name: str, pattern: str, wildcard: str) -> bool:
    """Whether an interface is called so, or so at its beginning."""
    if pattern.endswith(wildcard):
        return bool(name) and name.startswith(pattern.removesuffix(wildcard))
    return name == pattern
