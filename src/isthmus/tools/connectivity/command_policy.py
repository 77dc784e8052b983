"""``isthmus policy``: test what a policy allows, and why, without a server.

The same code as in the server reads and evaluates the rules; it is imported when a command runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import TEXT, console, filled, one_line, output_option, print_data

if TYPE_CHECKING:
    from isthmus.dial.rules_policy import Decision, Policy
    from isthmus.dial.settings_networks import Networks
    from isthmus.values import HostPort, Identity

ALLOWED, DENIED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFlags:
    """The flags of ``isthmus policy test``, as click gives them."""

    policy_file: str | None
    cluster_networks: tuple[str, ...]
    requester: str
    groups: tuple[str, ...]
    destination: str
    network: str | None
    about: str | None
    every: bool
    output: str


@click.group(
    name="policy",
    short_help="Test what a policy allows",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Test what a policy allows

    \b
    Example:
      isthmus policy test --policy-file policy.yaml \\
          --requester certificate:kube-apiserver --destination 10.1.2.3:10250
    """


@command.command(short_help="Show whether a dial would be allowed, and why")
@click.option(
    "--policy-file",
    metavar="FILE",
    callback=filled,
    help="Policy file; without one everything is allowed",
)
@click.option(
    "--cluster-network",
    "cluster_networks",
    multiple=True,
    metavar="NAME=CIDR[,CIDR...][;via=WAY]",
    help="Network to define, as for the server; repeatable",
)
@click.option(
    "--requester",
    default="none:anonymous",
    show_default=True,
    metavar="KIND:NAME",
    help="Requester, as certificate:COMMON-NAME, or as uid:NUMBER for a UNIX socket",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    callback=filled,
    help="Group of the requester, an organization of its certificate; repeatable",
)
@click.option("--destination", required=True, metavar="HOST:PORT", help="Address or name to dial")
@click.option(
    "--network",
    metavar="NAME",
    callback=filled,
    help="Network that the client asks for; for a name, also the network that its agents would "
    "ask for",
)
@click.option(
    "--object",
    "about",
    metavar="NAME",
    callback=filled,
    help="Object that a client is acting for, as a trusted client may say",
)
@click.option("--all", "every", is_flag=True, help="Show the answer of every rule")
@output_option()
def test(**given: Any) -> int:
    """Show whether a dial would be allowed, and why

    Also shows which shares of the file the dial would use, and its traffic class. The exit code is
    0 if the dial is allowed, 1 if it is denied and 2 if a flag or file is wrong.

    \b
    Example:
      isthmus policy test --policy-file policy.yaml --cluster-network east=10.1.0.0/16 \\
          --requester certificate:kube-apiserver --destination 10.1.2.3:10250 --all
    """
    from isthmus.dial.settings_networks import parse_networks
    from isthmus.programs.server.networks import read_policy

    asked = PolicyFlags(**given)
    networks = parse_networks(asked.cluster_networks)
    policy = read_policy(asked.policy_file) if asked.policy_file is not None else None
    target, who = _target(asked.destination), _identity(asked.requester, asked.groups)
    decision = _decide(networks, policy, target, who, asked.network or "")
    answer = {
        "allowed": decision.allowed,
        "rule": decision.rule,
        "where": decision.where,
        "network": decision.network,
        "destination": str(target),
        "requester": str(who),
        "groups": list(who.groups),
        "why": decision.why or _why_allowed(decision),
    }
    if policy is not None and policy.shares:
        answer["shares"] = _shares(policy, decision, target, who)
    if policy is not None and policy.classes and decision.allowed:
        answer |= _class(policy, decision, target, who, asked.about or "")
    if asked.every:
        answer["rules"] = _verdicts(policy, decision, target, who)
    if asked.output == TEXT:
        _print(answer)
    else:
        print_data(answer, asked.output)
    return ALLOWED if decision.allowed else DENIED


def _target(text: str) -> HostPort:
    from isthmus.values import HostPort

    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ConfigError(f"--destination: {error}") from error


def _identity(text: str, groups: tuple[str, ...]) -> Identity:
    from isthmus.dial.rules_policy import REQUESTER_KINDS
    from isthmus.values import Identity

    kind, _, name = text.partition(":")
    if kind not in REQUESTER_KINDS or not name:
        raise ConfigError(
            f"--requester is KIND:NAME with a kind of {', '.join(REQUESTER_KINDS)}, not {text!r}"
        )
    return Identity(name, groups, kind=kind)


def _decide(
    networks: Networks | None, policy: Policy | None, target: HostPort, who: Identity, asked: str
) -> Decision:
    from isthmus.dial.rules_policy import decide

    return decide(networks, policy, target=target, requester=who, asked=asked, claimed=lambda _: ())


def _why_allowed(decision: Decision) -> str:
    if not decision.rule:
        return "there is no policy"
    return f"rule {decision.rule} allows it" if decision.rule[0] != "(" else "no rule denies it"


def _verdicts(
    policy: Policy | None, decision: Decision, target: HostPort, who: Identity
) -> list[dict[str, Any]]:
    from isthmus.dial.rules_policy import Question

    if policy is None:
        return []
    asked = Question(requester=who, network=decision.network, target=target)
    return [
        {
            "name": verdict.rule.name,
            "effect": verdict.rule.effect.value,
            "where": verdict.rule.where,
            "matches": not verdict.misfit,
            "decides": verdict.decides and decision.rule == verdict.rule.name,
            "why": verdict.misfit,
        }
        for verdict in policy.verdicts(asked)
    ]


def _shares(
    policy: Policy, decision: Decision, target: HostPort, who: Identity
) -> list[dict[str, Any]]:
    """The shares that such a dial uses, and whose part of each."""
    from isthmus.dial.rules_policy import Question
    from isthmus.dial.rules_shares import applying

    if not decision.allowed:
        return []
    asked = Question(requester=who, network=decision.network, target=target)
    return [
        {
            "name": share.name,
            "per": share.per.value,
            "of": share.key(asked),
            "where": share.where,
            "maxTunnels": share.max_tunnels,
            "dialsPerSecond": share.dials_per_s,
            "bytesPerSecond": share.bytes_per_s,
        }
        for share in applying(policy.shares, asked)
    ]


def _class(
    policy: Policy, decision: Decision, target: HostPort, who: Identity, about: str
) -> dict[str, str]:
    """The class of such a dial, and the rule that sets it, if any."""
    from isthmus.dial.rules_policy import Question, class_of, deciding

    asked = Question(requester=who, network=decision.network, target=target)
    rule = deciding(policy.classes, asked, about)
    traffic = class_of(policy, asked, about)
    return {"class": traffic.value, "classRule": rule.name if rule is not None else ""}


def _limits(share: dict[str, Any]) -> str:
    units = {"maxTunnels": "tunnels", "dialsPerSecond": "dials/s", "bytesPerSecond": "bytes/s"}
    return ", ".join(f"{share[key]} {unit}" for key, unit in units.items() if share[key])


def _print(answer: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    word, colour = ("allowed", "green") if answer["allowed"] else ("denied", "red")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("verdict", Text(word, style=f"bold {colour}"))
    for key in ("why", "rule", "where", "network", "destination", "requester"):
        if answer[key]:
            table.add_row(key, Text(one_line(answer[key])))  # as Text, since it is not markup
    for share in answer.get("shares", ()):
        whose = f"of {share['of'] or 'all together'}"
        table.add_row("share", Text(f"{share['name']}: {_limits(share)}, {whose}"))
    if "class" in answer:
        by = f", by {answer['classRule']}" if answer["classRule"] else ""
        table.add_row("class", Text(f"{answer['class']}{by}"))
    out.print(table)
    if "rules" not in answer:
        return
    rules = Table("", "Rule", "Effect", "Matches", "Why not", box=None, pad_edge=False)
    for rule in answer["rules"]:
        rules.add_row(
            "→" if rule["decides"] else "",
            Text(one_line(rule["name"])),
            rule["effect"],
            "yes" if rule["matches"] else "no",
            Text(one_line(rule["why"])),
        )
    out.print()
    out.print(rules)
