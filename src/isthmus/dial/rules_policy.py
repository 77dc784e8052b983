"""What may be dialed, by whom: rules in order, the first that matches decides.

A name has no address here, and an address no name: ``hosts`` match names only and ``cidrs``
addresses only, so that nobody gets past a rule by what a resolver says. The file of rules is read
in settings_policy.py; which network a target is in is settings_networks.py.

The classes of traffic and the shares stand in the same file and match what its rules match; what a
class means on a link is tunnel/traffic_classes.py, how shares are kept rules_shares.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from isthmus.dial.settings_networks import Networks, Nowhere
from isthmus.text.addresses import AddressVerdict as OnAddress
from isthmus.text.addresses import IpAddress, IpNetwork, Reached, Weighed, reached, weigh
from isthmus.text.patterns import Pattern
from isthmus.values import NORMAL, HostPort, Identity, TrafficClass, is_address

#: What is shown instead of a rule's name, which has no brackets.
BY_DEFAULT = "(default)"
BY_NETWORK = "(network)"
BY_AUDIT = "(audit)"
#: The kinds of identity that a frontend proves (values.Identity).
REQUESTER_KINDS = ("certificate", "uid", "none")


class Effect(Enum):
    """What a rule does with what it matches."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a dial is allowed, and what decided that.

    ``rule`` is a rule's name, BY_DEFAULT or BY_NETWORK, or empty where there is no policy;
    ``where`` its place in the file; ``why`` a sentence, where it is denied.
    """

    allowed: bool
    network: str = ""
    rule: str = ""
    where: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Who wants to go where; ``who`` and ``where`` are what rules are held against."""

    requester: Identity
    network: str
    target: HostPort
    who: str = field(init=False)
    where: Reached | None = field(init=False)  # None: a name

    def __post_init__(self) -> None:
        # Once, and not for every rule.
        host = self.target.host
        object.__setattr__(self, "who", str(self.requester))
        object.__setattr__(self, "where", reached(host) if is_address(host) else None)


@dataclass(frozen=True, slots=True)
class Ports:
    """A range of ports, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a rule is about: every part that says something has to fit, one of its entries each.

    ``cidrs`` and ``hosts`` are one part, the destination: an address fits one of the first, a name
    one of the second.
    """

    requesters: tuple[Pattern, ...] = ()  # of "kind:name"
    groups: tuple[Pattern, ...] = ()
    networks: tuple[Pattern, ...] = ()
    cidrs: tuple[IpNetwork, ...] = ()
    hosts: tuple[Pattern, ...] = ()
    ports: tuple[Ports, ...] = ()

    def fits(self, asked: Question, address: IpAddress | None = None) -> bool:
        """Tell whether all parts do; ``address`` is another that the target means."""
        return self._misfit(asked, address) == ""

    def _misfit(self, asked: Question, address: IpAddress | None = None) -> str:
        """The first part that does not fit; empty when all do."""
        if self.ports:
            port = asked.target.port
            if not any(it.low <= port <= it.high for it in self.ports):
                return "ports"
        if self.networks and not _covered(self.networks, asked.network):
            return "networks"
        if self.requesters and not _covered(self.requesters, asked.who):
            return "requesters"
        if self.groups and not any(_covered(self.groups, it) for it in asked.requester.groups):
            return "groups"
        if not self.cidrs and not self.hosts:
            return ""
        if asked.where is None:
            return "" if _covered(self.hosts, asked.target.host) else "hosts"
        address = address or asked.where.address
        return "" if any(address in cidr for cidr in self.cidrs) else "cidrs"

    def misfit(self, asked: Question) -> str:
        """Say which part does not fit; empty when all do."""
        host = asked.target.host
        match self._misfit(asked):
            case "ports":
                return f"port {asked.target.port} is not one of its ports"
            case "networks":
                named = f"network {asked.network}" if asked.network else "no network"
                return f"{named} is not one of its networks"
            case "requesters":
                return f"{asked.who} is not one of its requesters"
            case "groups":
                return f"{asked.who} is in none of its groups"
            case "hosts":
                return f"{host} is a name, and {_has('not one of its', self.hosts)} hosts"
            case "cidrs":
                return f"{host} is an address, and {_has('in none of its', self.cidrs)} cidrs"
            case _:
                return ""


def _has(words: str, listed: Sequence[object]) -> str:
    return words if listed else "it has no"


def _covered(patterns: tuple[Pattern, ...], text: str) -> bool:
    return any(pattern.covers(text, {}) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One rule; ``where`` is its place, for people."""

    name: str
    effect: Effect
    match: Match = Match()
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one rule says to a question; ``misfit`` is empty when it matches."""

    rule: PolicyRule
    misfit: str
    decides: bool


class Per(Enum):
    """Who has a pot together."""

    REQUESTER = "requester"
    NETWORK = "network"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much, for whom; 0 is no limit. ``bytes_per_s`` is for each direction by itself."""

    name: str
    per: Per = Per.REQUESTER
    match: Match = Match()
    max_tunnels: int = 0
    dials_per_s: float = 0.0
    dial_burst: int = 0
    bytes_per_s: int = 0
    burst_bytes: int = 0
    where: str = field(default="", compare=False)

    def key(self, asked: Question) -> str:
        """Whose pot of this share it is."""
        if self.per is Per.REQUESTER:
            return asked.who
        return asked.network if self.per is Per.NETWORK else ""

    @property
    def rule(self) -> str:
        """What audit and metrics call it; a rule's name has no slash."""
        return f"share/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """Puts what it matches into a class; ``where`` is its place, for people.

    ``objects`` are patterns of what a client says that its request is about; a
    dial that says nothing, or is not believed, fits none.
    """

    name: str
    traffic: TrafficClass
    match: Match = Match()
    objects: tuple[Pattern, ...] = ()
    where: str = field(default="", compare=False)

    def fits(self, asked: Question, about: str) -> bool:
        """Tell whether it decides; ``about`` is the object, empty when none is said."""
        if self.objects and not any(it.covers(about, {}) for it in self.objects):
            return False
        return self.match.fits(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every rule in order, and what holds when none matches.

    ``shares`` and ``classes`` stand in the same file and say how much of what is allowed, and what
    goes before what on a link; see rules_shares.py and tunnel/traffic_classes.py.
    """

    rules: tuple[PolicyRule, ...]
    default: Effect = Effect.DENY
    shares: tuple[Share, ...] = ()
    classes: tuple[ClassRule, ...] = ()
    source: str = field(default="", compare=False)

    def decide(self, asked: Question) -> Decision:
        """Find the first rule that matches, or the default.

        Where an address means several, a rule that denies one of them by its ``cidrs`` denies it.
        """
        return self._decision(asked, self._deciding(asked))

    def verdicts(self, asked: Question) -> Iterator[Verdict]:
        """What every rule says, also those behind the one that decides."""
        deciding = self._deciding(asked)
        for rule in self.rules:
            decides = rule is deciding
            misfit = "" if decides else rule.match.misfit(asked)
            yield Verdict(rule=rule, misfit=misfit, decides=decides)

    def _deciding(self, asked: Question) -> PolicyRule | None:
        if asked.where is None:
            return next((rule for rule in self.rules if rule.match.fits(asked)), None)
        return weigh(asked.where, lambda address: self._on(asked, address)).by

    def _on(self, asked: Question, address: IpAddress) -> Weighed[PolicyRule | None]:
        rule = next((rule for rule in self.rules if rule.match.fits(asked, address)), None)
        if rule is None or not rule.match.cidrs:
            # It says the same of every address, and so nothing of this one.
            return Weighed(OnAddress.UNLISTED, rule)
        allows = rule.effect is Effect.ALLOW
        return Weighed(OnAddress.ALLOWED if allows else OnAddress.DENIED, rule)

    def _decision(self, asked: Question, rule: PolicyRule | None) -> Decision:
        effect = rule.effect if rule is not None else self.default
        name = rule.name if rule is not None else BY_DEFAULT
        where = rule.where if rule is not None else self.source
        why = ""
        if effect is Effect.DENY:
            # Whoever is denied learns the rule's name, and not where this server keeps its files.
            why = f"rule {name} denies it" if rule is not None else "no rule allows it"
        return Decision(
            allowed=effect is Effect.ALLOW, network=asked.network, rule=name, where=where, why=why
        )


def decide(
    networks: Networks | None,
    policy: Policy | None,
    *,
    target: HostPort,
    requester: Identity,
    asked: str,
    claimed: Callable[[str], Collection[str]],
) -> Decision:
    """Find the network of a target, and whether it may be dialed there.

    ``asked`` and ``claimed`` are those of Networks.route. Without networks there is no restriction
    by them, without a policy everything in them is allowed.
    """
    network = ""
    if networks is not None:
        found = networks.route(target, asked, claimed)
        if isinstance(found, Nowhere):
            return Decision(allowed=False, rule=BY_NETWORK, why=found.why)
        network = found.name
    if policy is None:
        return Decision(allowed=True, network=network)
    return policy.decide(Question(requester=requester, network=network, target=target))


def deciding(rules: Iterable[ClassRule], asked: Question, about: str = "") -> ClassRule | None:
    """The first rule that matches; None: the dial is like any other."""
    return next((rule for rule in rules if rule.fits(asked, about)), None)


def class_of(policy: Policy | None, asked: Question, about: str = "") -> TrafficClass:
    """The class of a dial by what its policy says, NORMAL unless a rule says otherwise."""
    rule = deciding(policy.classes, asked, about) if policy is not None else None
    return rule.traffic if rule is not None else NORMAL
