"""Which dials are allowed: rules in order, the first that matches decides.

A name has no address here, and an address no name: ``hosts`` match only names and ``cidrs``
only addresses, so that a resolver's answer cannot bypass a rule. settings_policy.py reads the
rules file; settings_networks.py finds the network of a target.

The traffic classes and the shares are in the same file and have the same matchers;
tunnel/traffic_classes.py implements classes, rules_shares.py shares.
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

#: Shown instead of a rule's name; rule names have no brackets.
BY_DEFAULT = "(default)"
BY_NETWORK = "(network)"
BY_AUDIT = "(audit)"
#: The kinds of identity that frontends authenticate (values.Identity).
REQUESTER_KINDS = ("certificate", "uid", "none")


class Effect(Enum):
    """The effect of a rule on matching dials."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a dial is allowed, and by which rule.

    ``rule`` is a rule's name, BY_DEFAULT or BY_NETWORK, or empty without a policy;
    ``where`` its position in the file; ``why`` the reason of a denial.
    """

    allowed: bool
    network: str = ""
    rule: str = ""
    where: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A requester and its target; rules are matched against ``who`` and ``where``."""

    requester: Identity
    network: str
    target: HostPort
    who: str = field(init=False)
    where: Reached | None = field(init=False)  # None: a name

    def __post_init__(self) -> None:
        # Computed once, not for every rule.
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
    """What a rule matches: every given part has to match, by one of its entries.

    ``cidrs`` and ``hosts`` are one part, the destination: an address matches one of the first, a
    name one of the second.
    """

    requesters: tuple[Pattern, ...] = ()  # of "kind:name"
    groups: tuple[Pattern, ...] = ()
    networks: tuple[Pattern, ...] = ()
    cidrs: tuple[IpNetwork, ...] = ()
    hosts: tuple[Pattern, ...] = ()
    ports: tuple[Ports, ...] = ()

    def fits(self, asked: Question, address: IpAddress | None = None) -> bool:
        """Whether all parts match; ``address`` is an alternative meaning of the target."""
        return self._misfit(asked, address) == ""

    def _misfit(self, asked: Question, address: IpAddress | None = None) -> str:
        """The first part that does not match; empty if all do."""
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
        """A message about the part that does not match; empty if all do."""
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
    """One rule; ``where`` is its position, for messages."""

    name: str
    effect: Effect
    match: Match = Match()
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one rule for a question; ``misfit`` is empty if it matches."""

    rule: PolicyRule
    misfit: str
    decides: bool


class Per(Enum):
    """The dials that share a pot."""

    REQUESTER = "requester"
    NETWORK = "network"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Limits and whom they apply to; 0 is no limit. ``bytes_per_s`` is per direction."""

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
        """The key of the pot of this share."""
        if self.per is Per.REQUESTER:
            return asked.who
        return asked.network if self.per is Per.NETWORK else ""

    @property
    def rule(self) -> str:
        """Its name in audit and metrics; rule names have no slash."""
        return f"share/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """Assigns matching dials to a class; ``where`` is its position, for messages.

    ``objects`` are patterns of the object that a client names for its request; a
    dial without one, or from an untrusted client, matches none.
    """

    name: str
    traffic: TrafficClass
    match: Match = Match()
    objects: tuple[Pattern, ...] = ()
    where: str = field(default="", compare=False)

    def fits(self, asked: Question, about: str) -> bool:
        """Whether it matches; ``about`` is the object, empty without one."""
        if self.objects and not any(it.covers(about, {}) for it in self.objects):
            return False
        return self.match.fits(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All rules in order, and the default.

    ``shares`` and ``classes`` are in the same file and limit and order what is allowed;
    see rules_shares.py and tunnel/traffic_classes.py.
    """

    rules: tuple[PolicyRule, ...]
    default: Effect = Effect.DENY
    shares: tuple[Share, ...] = ()
    classes: tuple[ClassRule, ...] = ()
    source: str = field(default="", compare=False)

    def decide(self, asked: Question) -> Decision:
        """Find the first rule that matches, or the default.

        If an address has several meanings, a rule whose ``cidrs`` deny one of them denies it.
        """
        return self._decision(asked, self._deciding(asked))

    def verdicts(self, asked: Question) -> Iterator[Verdict]:
        """The result of every rule, including those after the deciding one."""
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
            # It matches every address alike, and so does not distinguish this one.
            return Weighed(OnAddress.UNLISTED, rule)
        allows = rule.effect is Effect.ALLOW
        return Weighed(OnAddress.ALLOWED if allows else OnAddress.DENIED, rule)

    def _decision(self, asked: Question, rule: PolicyRule | None) -> Decision:
        effect = rule.effect if rule is not None else self.default
        name = rule.name if rule is not None else BY_DEFAULT
        where = rule.where if rule is not None else self.source
        why = ""
        if effect is Effect.DENY:
            # The client learns the rule's name, but not the server's file names.
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

    ``asked`` and ``claimed`` are those of Networks.route. Without networks the network is not
    restricted, and without a policy everything in them is allowed.
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
    """The first matching rule; None: the class is NORMAL."""
    return next((rule for rule in rules if rule.fits(asked, about)), None)


def class_of(policy: Policy | None, asked: Question, about: str = "") -> TrafficClass:
    """The class of a dial under a policy, by default NORMAL."""
    rule = deciding(policy.classes, asked, about) if policy is not None else None
    return rule.traffic if rule is not None else NORMAL
