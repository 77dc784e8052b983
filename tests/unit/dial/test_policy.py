"""Rules: the first that matches decides, and what each part of one is held against."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.dial.rules_policy import (
    BY_DEFAULT,
    Decision,
    Effect,
    Match,
    Policy,
    PolicyRule,
    Ports,
    Question,
)
from isthmus.text.patterns import Pattern
from isthmus.values import HostPort, Identity

APISERVER = Identity("kube-apiserver", ("system:masters", "admins"))
ANYTHING = Match()
ROOT = Identity("0", kind="uid")


def ask(target: str = "10.1.2.3:443", who: Identity = APISERVER, network: str = "east") -> Question:
    return Question(requester=who, network=network, target=HostPort.parse(target))


def rule(name: str, effect: Effect, match: Match = ANYTHING) -> PolicyRule:
    return PolicyRule(name=name, effect=effect, match=match, where=f"p.yaml:{name}")


def patterns(*texts: str, fold: bool = False) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, fold=fold) for text in texts)


TEN = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def test_the_first_match_wins() -> None:
    policy = Policy(
        rules=(
            rule("no-ssh", Effect.DENY, Match(ports=(Ports(22, 22),))),
            rule("inside", Effect.ALLOW, Match(cidrs=TEN)),
            rule("rest", Effect.DENY),
        ),
        source="p.yaml",
    )
    assert policy.decide(ask()) == Decision(
        allowed=True, network="east", rule="inside", where="p.yaml:inside"
    )
    denied = policy.decide(ask("10.1.2.3:22"))
    assert (denied.allowed, denied.rule, denied.why) == (False, "no-ssh", "rule no-ssh denies it")
    assert policy.decide(ask("11.0.0.1:443")).rule == "rest"


@pytest.mark.parametrize("default", Effect)
def test_when_nothing_matches(default: Effect) -> None:
    policy = Policy(
        rules=(rule("a", Effect.ALLOW, Match(ports=(Ports(1, 2),))),),
        default=default,
        source="p.yaml",
    )
    decision = policy.decide(ask())
    assert decision.allowed is (default is Effect.ALLOW)
    assert (decision.rule, decision.where) == (BY_DEFAULT, "p.yaml")
    assert decision.why == ("" if decision.allowed else "no rule allows it")


def test_deny_is_what_is_meant() -> None:
    assert not Policy(rules=()).decide(ask()).allowed


@pytest.mark.parametrize(
    ("match", "asked", "misfit"),
    [
        (Match(), ask(), ""),
        (Match(requesters=patterns("uid:0", "certificate:kube-*")), ask(), ""),
        (
            Match(requesters=patterns("certificate:*")),
            ask(who=ROOT),
            "uid:0 is not one of its requesters",
        ),
        # A certificate that is called 0 is not the user 0.
        (
            Match(requesters=patterns("uid:0")),
            ask(who=Identity("0")),
            "certificate:0 is not one of its requesters",
        ),
        (Match(groups=patterns("system:*")), ask(), ""),
        (Match(groups=patterns("admins")), ask(who=ROOT), "uid:0 is in none of its groups"),
        (Match(networks=patterns("e*")), ask(), ""),
        (Match(networks=patterns("west")), ask(), "network east is not one of its networks"),
        (
            Match(networks=patterns("west")),
            ask(network=""),
            "no network is not one of its networks",
        ),
        (Match(ports=(Ports(1, 5), Ports(443, 443))), ask(), ""),
        (Match(ports=(Ports(444, 65535),)), ask(), "port 443 is not one of its ports"),
        (Match(cidrs=TEN), ask(), ""),
        (Match(cidrs=TEN), ask("[fd00::1]:443"), ""),
        (Match(cidrs=TEN), ask("[::ffff:10.0.0.1]:443"), ""),
        (Match(cidrs=TEN), ask("11.0.0.1:443"), "11.0.0.1 is an address, and in none of its cidrs"),
        (Match(cidrs=TEN), ask("db.example:443"), "db.example is a name, and it has no hosts"),
        (Match(hosts=patterns("*.example", fold=True)), ask("DB.Example.:443"), ""),
        (
            Match(hosts=patterns("*.example", fold=True)),
            ask("db.test:443"),
            "db.test is a name, and not one of its hosts",
        ),
        # A pattern of everything is still one of names.
        (
            Match(hosts=patterns("*", fold=True)),
            ask("10.1.2.3:443"),
            "10.1.2.3 is an address, and it has no cidrs",
        ),
        (Match(cidrs=TEN, hosts=patterns("db.example", fold=True)), ask("db.example:443"), ""),
        (Match(cidrs=TEN, hosts=patterns("db.example", fold=True)), ask(), ""),
        (
            Match(cidrs=TEN, ports=(Ports(80, 80),), groups=patterns("admins")),
            ask(),
            "port 443 is not one of its ports",
        ),
    ],
)
def test_every_part_has_to_fit(match: Match, asked: Question, misfit: str) -> None:
    assert match.misfit(asked) == misfit
    decided = Policy(rules=(rule("it", Effect.ALLOW, match),)).decide(asked)
    assert decided.allowed is (not misfit)


def test_what_every_rule_says() -> None:
    policy = Policy(
        rules=(
            rule("a", Effect.DENY, Match(ports=(Ports(22, 22),))),
            rule("b", Effect.ALLOW, Match(cidrs=TEN)),
            rule("c", Effect.DENY),
        )
    )
    found = [(it.rule.name, it.misfit == "", it.decides) for it in policy.verdicts(ask())]
    assert found == [("a", False, False), ("b", True, True), ("c", True, False)]


def test_ports_are_shown_as_they_are_written() -> None:
    assert (str(Ports(1, 1)), str(Ports(1, 9))) == ("1", "1-9")
