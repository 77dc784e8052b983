"""What an agent may claim, given its proven identity: agent id, identifiers and network.

The rules list what is allowed; everything else is refused. One rule has to cover the whole claim:
if rules were added up, an agent could combine the id of one with the addresses of another.
dial/settings_entitlements.py reads the file of rules; the caller refuses and audits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, collapse_addresses

from isthmus.settings.identifiers import DEFAULT_ROUTE, Identifiers
from isthmus.settings.rules_roles import fold_san
from isthmus.text.addresses import IpNetwork, plain_network
from isthmus.text.patterns import Pattern, Proved
from isthmus.values import Identity, is_address

CERTIFICATE = "certificate"
TOKEN = "token"
# Konnectivity's agents name no network; theirs is the one that kube-apiserver calls "cluster".
DEFAULT_NETWORK = "cluster"

CERTIFICATE_KEYS = ("commonName", "organization", "san")
TOKEN_KEYS = ("serviceAccount", "pod")
SUBJECT_KEYS = (*CERTIFICATE_KEYS, *TOKEN_KEYS, "node")

_MAX_SHOWN = 5
_MAX_NAME_CHARS = 400
_ACCOUNT = "system:serviceaccount:"
_NODE, _NODES = "system:node:", "system:nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """The identifiers that a rule allows; nothing by default."""

    ipv4: tuple[IpNetwork, ...] = ()
    ipv6: tuple[IpNetwork, ...] = ()
    host: tuple[Pattern, ...] = ()
    cidr: tuple[IpNetwork, ...] = ()
    default_route: bool = False

    def __post_init__(self) -> None:
        # Two listed halves of a network allow the whole network.
        v4 = collapse_addresses(net for net in self.cidr if isinstance(net, IPv4Network))
        v6 = collapse_addresses(net for net in self.cidr if isinstance(net, IPv6Network))
        object.__setattr__(self, "cidr", (*v4, *v6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An agent that matches every pattern of ``subject`` may claim what the other fields list.

    ``path`` and ``where`` name the rule in messages only.
    """

    subject: tuple[tuple[str, Pattern], ...]
    agent_ids: tuple[Pattern, ...]
    grants: Grants = Grants()
    networks: tuple[Pattern, ...] = (Pattern(DEFAULT_NETWORK),)
    path: str = field(default="", compare=False)
    where: str = field(default="", compare=False)

    def admit(self, proved: Proved) -> Proved | None:
        """The proven values, without the organizations and names that the rule does not match.

        None if the rule does not match the agent.
        """
        narrowed = dict(proved)
        for key, pattern in self.subject:
            kept = tuple(value for value in proved.get(key, ()) if pattern.covers(value, {}))
            if not kept:
                return None
            narrowed[key] = kept
        return narrowed


@dataclass(frozen=True, slots=True)
class _Gap:
    """A claim that a rule does not cover, and the key that would have to list it."""

    rank: int
    claim: str
    field: str
    listed: Sequence[str]

    def explain(self, rule: Rule) -> str:
        shown = ", ".join(repr(text) for text in self.listed[:_MAX_SHOWN])
        more = len(self.listed) - _MAX_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        lists = f"lists only {shown}{rest}" if self.listed else "does not allow any"
        return f"{rule.path}.{self.field} {lists} ({rule.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlements:
    """Every rule, and the file that they come from."""

    rules: tuple[Rule, ...]
    source: str = field(default="", compare=False)

    def judge(
        self,
        identity: Identity,
        agent_id: str,
        identifiers: Identifiers,
        network: str = "",
        *,
        node: str = "",
        pod: str = "",
        sans: Sequence[str] = (),
    ) -> str:
        """Say why an agent may not claim this; empty if it may.

        ``node`` and ``pod`` are what its token is bound to, ``sans`` the names in its verified
        certificate. The answer is printable text for the log and the audit log.
        """
        proved = proved_by(identity, node=node, pod=pod, sans=sans)
        who = _name(identity, node=node, pod=pod)
        if not proved:
            return f"{who} proved nothing that a rule of {self.source} could be for"
        gaps: list[tuple[Rule, _Gap]] = []
        for rule in self.rules:
            narrowed = rule.admit(proved)
            if narrowed is None:
                continue
            gap = next(_gaps(rule, narrowed, agent_id, identifiers, network), None)
            if gap is None:
                return ""
            gaps.append((rule, gap))
        if not gaps:
            return f"no rule of {self.source} is for {who}"
        # The rules that came closest are the most useful ones to name.
        furthest = max(gap.rank for _, gap in gaps)
        near = [(rule, gap) for rule, gap in gaps if gap.rank == furthest]
        claim = near[0][1].claim
        why = [gap.explain(rule) for rule, gap in near if gap.claim == claim]
        return f"{who} may not claim {claim}: {', '.join(why[:_MAX_SHOWN])}"


def proved_by(
    identity: Identity, *, node: str = "", pod: str = "", sans: Sequence[str] = ()
) -> Proved:
    """What an identity proves, by the keys that subjects and placeholders use.

    A certificate never proves what a token does, nor the other way round, whatever its names are.
    A node is proved by a token bound to it, or by a certificate such as those of kubelets.
    """
    found: dict[str, tuple[str, ...]] = {}
    if identity.kind == CERTIFICATE:
        found["commonName"] = (identity.name,)
        found["organization"] = identity.groups
        found["san"] = tuple(map(fold_san, sans))
        if identity.name.startswith(_NODE) and _NODES in identity.groups:
            found["node"] = (identity.name.removeprefix(_NODE),)
    elif identity.kind == TOKEN:
        space, colon, account = identity.name.removeprefix(_ACCOUNT).partition(":")
        if identity.name.startswith(_ACCOUNT) and space and colon and account:
            found["serviceAccount"] = (f"{space}/{account}",)
            found["serviceAccountName"] = (account,)
        found["node"] = (node,)
        found["pod"] = (pod,)
    kept = {key: tuple(filter(None, values)) for key, values in found.items()}
    return {key: values for key, values in kept.items() if values}


def _gaps(
    rule: Rule, proved: Proved, agent_id: str, identifiers: Identifiers, network: str
) -> Iterator[_Gap]:
    """The claims that the rule does not cover, those that matter most first."""

    def listed(patterns: Sequence[Pattern], claim: str) -> bool:
        return any(pattern.covers(claim, proved) for pattern in patterns)

    network = network or DEFAULT_NETWORK
    if not listed(rule.agent_ids, agent_id):
        yield _Gap(0, f"agent id {_short(agent_id)}", "agentIDs", _texts(rule.agent_ids))
    if not listed(rule.networks, network):
        yield _Gap(1, f"network {_short(network)}", "networks", _texts(rule.networks))
    if identifiers.default_route and not rule.grants.default_route:
        yield _Gap(2, f"{DEFAULT_ROUTE}=true", "identifiers.defaultRoute", [])
    for key, claim in _claims(identifiers):
        grants: tuple[Pattern, ...] | tuple[IpNetwork, ...] = getattr(rule.grants, key)
        if key == "host":
            covered = listed(rule.grants.host, claim)
        else:
            covered = _lies_in(claim, getattr(rule.grants, key))
        if not covered:
            yield _Gap(3, f"{key}={_short(claim)}", f"identifiers.{key}", _texts(grants))


def _claims(identifiers: Identifiers) -> Iterator[tuple[str, str]]:
    """Each identifier once, with the key that has to list it."""
    for key in ("ipv4", "ipv6", "cidr", "host"):
        for claim in dict.fromkeys(getattr(identifiers, key)):
            # Dials to an address go to the agent that claims it, even if it was claimed as a host.
            if key == "host" and is_address(claim):
                yield ("ipv6" if ":" in claim else "ipv4"), claim
            else:
                yield key, claim


def _lies_in(claim: str, networks: Sequence[IpNetwork]) -> bool:
    # A zone (%eth0) is meaningful on one machine only; no dial has one.
    claimed = plain_network(claim) if "%" not in claim else None
    if isinstance(claimed, IPv4Network):
        return any(claimed.subnet_of(n) for n in networks if isinstance(n, IPv4Network))
    if isinstance(claimed, IPv6Network):
        return any(claimed.subnet_of(n) for n in networks if isinstance(n, IPv6Network))
    return False


def _texts(listed: Sequence[Pattern] | Sequence[IpNetwork]) -> list[str]:
    return [entry.text if isinstance(entry, Pattern) else str(entry) for entry in listed]


def _short(claim: str) -> str:
    return repr(claim if len(claim) <= 100 else f"{claim[:99]}…")


def _name(identity: Identity, *, node: str, pod: str) -> str:
    bound = [f"{key} {value}" for key, value in (("pod", pod), ("node", node)) if value]
    text = f"{identity} ({', '.join(bound)})" if bound else str(identity)
    shown = text if len(text) <= _MAX_NAME_CHARS else f"{text[: _MAX_NAME_CHARS - 1]}…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def _own(subject: str, glob: str, name: str, *hosts: str) -> Rule:
    return Rule(
        subject=((subject, Pattern(glob)),),
        agent_ids=(Pattern(name),),
        grants=Grants(host=tuple(Pattern(host, fold=True) for host in hosts)),
        path=f"the rule for {subject}",
        where="name",
    )


# --agent-identity-binding=name: an agent has the name that it proved, and serves itself only.
# docs/how-to/bind-agents.md has the same rule as a file.
BY_NAME = Entitlements(
    rules=(
        _own("commonName", "*", "{commonName}", "{commonName}"),
        _own("node", "*", "{node}", "{node}"),
        _own("pod", "*", "{pod}", "{pod}", "{node}"),
        _own("serviceAccount", "*/*", "{serviceAccountName}"),
    ),
    source="--agent-identity-binding=name",
)
