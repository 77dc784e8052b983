from ipaddress import ip_network

import pytest

from isthmus.kube import tokens
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.rules_entitlements import (
    BY_NAME,
    CERTIFICATE,
    TOKEN,
    Entitlements,
    Grants,
    Rule,
    proved_by,
)
from isthmus.text.patterns import Pattern
from isthmus.values import ANONYMOUS, Identity

ACCOUNT = Identity(
    "system:serviceaccount:kube-system:agent", ("system:serviceaccounts",), kind=TOKEN
)
NOTHING = Identifiers()


def patterns(*texts: str, fold: bool = False) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, fold=fold) for text in texts)


def rule(
    ids: str = "*", *, grants: Grants | None = None, networks: str = "cluster", **subject: str
) -> Rule:
    return Rule(
        subject=tuple((key, Pattern(text)) for key, text in subject.items()),
        agent_ids=patterns(*ids.split()),
        grants=grants or Grants(),
        networks=patterns(*networks.split()),
        path="rules[0]",
        where="bind.yaml:4",
    )


def binding(*rules: Rule) -> Entitlements:
    return Entitlements(rules=rules, source="bind.yaml")


# Who it is


def test_the_kinds_are_those_that_transports_prove() -> None:
    assert Identity("x").kind == CERTIFICATE
    assert tokens.IDENTITY_KIND == TOKEN


def test_a_certificate_proves_its_names_and_not_what_a_token_does() -> None:
    shown = Identity("system:serviceaccount:kube-system:agent", ("a", "b"))
    assert proved_by(shown, node="n", pod="p", sans=["A.Example.", "spiffe://x/Y"]) == {
        "commonName": (shown.name,),
        "organization": ("a", "b"),
        "san": ("a.example", "spiffe://x/Y"),
    }


def test_a_token_proves_its_account_and_what_it_is_bound_to() -> None:
    assert proved_by(ACCOUNT, node="n1", pod="p1", sans=["ignored"]) == {
        "serviceAccount": ("kube-system/agent",),
        "serviceAccountName": ("agent",),
        "node": ("n1",),
        "pod": ("p1",),
    }
    assert "node" not in proved_by(ACCOUNT)


@pytest.mark.parametrize(
    ("name", "groups", "node"),
    [
        ("system:node:n1", ("system:nodes",), ("n1",)),
        ("system:node:n1", ("nodes",), None),
        ("system:node:", ("system:nodes",), None),
        ("n1", ("system:nodes",), None),
    ],
)
def test_a_kubelets_certificate_proves_its_node(
    name: str, groups: tuple[str, ...], node: tuple[str, ...] | None
) -> None:
    assert proved_by(Identity(name, groups)).get("node") == node


@pytest.mark.parametrize(
    "identity",
    [ANONYMOUS, Identity("0", kind="uid"), Identity(""), Identity("admin", kind=TOKEN)],
    ids=str,
)
def test_who_proves_nothing_may_claim_nothing(identity: Identity) -> None:
    anything = binding(rule(commonName="*"), rule(serviceAccount="*"), rule(node="*"))
    said = anything.judge(identity, "a", NOTHING)
    assert said == f"{identity} proved nothing that a rule of bind.yaml could be for"


def test_every_key_of_a_subject_must_fit() -> None:
    rules = binding(rule(commonName="site-*", organization="sites"))
    assert rules.judge(Identity("site-1", ("x", "sites")), "a", NOTHING) == ""
    for other in (Identity("site-1", ("x",)), Identity("Site-1", ("sites",)), ACCOUNT):
        assert rules.judge(other, "a", NOTHING) == f"no rule of bind.yaml is for {other}"


# What it claims


def test_an_agent_id_that_is_not_listed_is_named_with_what_is() -> None:
    rules = binding(rule("{commonName} edge-*", commonName="*"))
    assert rules.judge(Identity("cn"), "cn", NOTHING) == ""
    assert rules.judge(Identity("cn"), "edge-", NOTHING) == ""
    assert rules.judge(Identity("cn"), "CN", NOTHING) == (
        "certificate:cn may not claim agent id 'CN': "
        "rules[0].agentIDs lists only '{commonName}', 'edge-*' (bind.yaml:4)"
    )


def test_a_star_that_was_proved_is_only_a_star() -> None:
    rules = binding(rule("{commonName}", commonName="*"))
    assert rules.judge(Identity("*"), "*", NOTHING) == ""
    assert rules.judge(Identity("*"), "x", NOTHING) != ""
    assert rules.judge(Identity("{node}"), "{node}", NOTHING) == ""


def test_what_was_not_proved_covers_nothing() -> None:
    rules = binding(rule("{node}", serviceAccount="*"))
    assert rules.judge(ACCOUNT, "n1", NOTHING, node="n1") == ""
    assert "may not claim agent id ''" in rules.judge(ACCOUNT, "", NOTHING)


def test_only_the_names_that_the_subject_is_about_are_put_in() -> None:
    rules = binding(rule("{san}", san="*.edge"))
    sans = ["a.edge", "b.edge", "c.core"]
    shown = Identity("x")
    assert [rules.judge(shown, san, NOTHING, sans=sans) == "" for san in sans] == [
        True,
        True,
        False,
    ]


def test_the_network_of_an_agent_that_names_none_is_cluster() -> None:
    plain, sites = binding(rule(commonName="*")), binding(rule(commonName="*", networks="sites"))
    shown = Identity("x")
    assert plain.judge(shown, "a", NOTHING) == plain.judge(shown, "a", NOTHING, "cluster") == ""
    assert sites.judge(shown, "a", NOTHING, "sites") == ""
    assert sites.judge(shown, "a", NOTHING) == (
        "certificate:x may not claim network 'cluster': "
        "rules[0].networks lists only 'sites' (bind.yaml:4)"
    )


GRANTS = Grants(
    ipv4=(ip_network("10.0.0.0/8"),),
    ipv6=(ip_network("fd00::/8"),),
    host=patterns("*.edge.example", "{commonName}", fold=True),
    cidr=(ip_network("10.0.0.0/9"), ip_network("10.128.0.0/9"), ip_network("fd00::/16")),
)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "ipv4=10.255.255.255",
        "ipv6=fdff::1",
        "host=A.B.EDGE.example.&host=node-1",
        "cidr=10.0.0.0/8&cidr=10.1.0.0/16&cidr=fd00::/17",
        "host=10.1.2.3&host=fd00::1",
        "default-route=false",
    ],
)
def test_identifiers_inside_what_is_listed_are_covered(query: str) -> None:
    rules = binding(rule(commonName="*", grants=GRANTS))
    assert rules.judge(Identity("Node-1"), "a", Identifiers.parse(query)) == ""


@pytest.mark.parametrize(
    ("query", "claim", "listed"),
    [
        ("ipv4=10.0.0.1&ipv4=11.0.0.0", "ipv4='11.0.0.0'", "ipv4 lists only '10.0.0.0/8'"),
        ("ipv6=fe00::1", "ipv6='fe00::1'", "ipv6 lists only 'fd00::/8'"),
        ("ipv6=::ffff:10.0.0.1", "ipv6='::ffff:a00:1'", "ipv6 lists only 'fd00::/8'"),
        (
            "host=edge.example",
            "host='edge.example'",
            "host lists only '*.edge.example', '{commonName}'",
        ),
        ("host=11.0.0.1", "ipv4='11.0.0.1'", "ipv4 lists only '10.0.0.0/8'"),
        ("host=::1", "ipv6='::1'", "ipv6 lists only 'fd00::/8'"),
        ("cidr=10.0.0.0/7", "cidr='10.0.0.0/7'", "cidr lists only '10.0.0.0/8', 'fd00::/16'"),
        ("cidr=fd00::/15", "cidr='fd00::/15'", "cidr lists only '10.0.0.0/8', 'fd00::/16'"),
        ("cidr=0.0.0.0/0", "cidr='0.0.0.0/0'", "cidr lists only '10.0.0.0/8', 'fd00::/16'"),
        ("default-route=true", "default-route=true", "defaultRoute does not allow any"),
        ("ipv6=fd00::1%251", "ipv6='fd00::1%1'", "ipv6 lists only 'fd00::/8'"),
    ],
)
def test_an_identifier_outside_is_named_with_what_is_listed(
    query: str, claim: str, listed: str
) -> None:
    rules = binding(rule(commonName="*", grants=GRANTS))
    said = rules.judge(Identity("node-1"), "a", Identifiers.parse(query))
    assert said == (
        f"certificate:node-1 may not claim {claim}: rules[0].identifiers.{listed} (bind.yaml:4)"
    )


@pytest.mark.parametrize("claim", ["ipv6=::ffff:10.0.0.1", "cidr=::ffff:10.0.0.0/104"])
def test_all_of_ipv6_is_nothing_of_ipv4(claim: str) -> None:
    """A network has the agents that claim its addresses, and takes these for IPv4."""
    everything = (ip_network("::/0"),)
    rules = binding(rule(commonName="*", grants=Grants(ipv6=everything, cidr=everything)))
    assert "may not claim" in rules.judge(Identity("x"), "a", Identifiers.parse(claim))


def test_without_grants_nothing_is_covered_but_the_default_route_where_allowed() -> None:
    route = Identifiers(default_route=True)
    assert binding(rule(commonName="*")).judge(Identity("x"), "a", route) != ""
    granted = rule(commonName="*", grants=Grants(default_route=True))
    assert binding(granted).judge(Identity("x"), "a", route) == ""
    said = binding(granted).judge(Identity("x"), "a", Identifiers(ipv4=("1.1.1.1",)))
    assert said.endswith("rules[0].identifiers.ipv4 does not allow any (bind.yaml:4)")


# Several rules


def test_one_rule_has_to_cover_everything() -> None:
    ten, eleven = (Grants(ipv4=(ip_network(f"{n}.0.0.0/8"),)) for n in (10, 11))
    rules = binding(rule("a", commonName="*", grants=ten), rule("b", commonName="*", grants=eleven))
    for agent, address, allowed in [
        ("a", "10.0.0.1", True),
        ("b", "11.0.0.1", True),
        ("a", "11.0.0.1", False),
        ("b", "10.0.0.1", False),
    ]:
        said = rules.judge(Identity("x"), agent, Identifiers(ipv4=(address,)))
        assert (said == "") is allowed
        # Of the two, only the rule that has the id is worth telling about.
        assert allowed or f"ipv4='{address}'" in said


def test_rules_that_are_equally_near_are_all_told() -> None:
    rules = binding(rule("a", commonName="*"), rule("b", commonName="*"))
    said = rules.judge(Identity("x"), "c", NOTHING)
    assert "lists only 'a' (" in said
    assert "lists only 'b' (" in said


def test_the_sentence_is_short_and_printable() -> None:
    many = binding(rule(" ".join(f"id-{n}" for n in range(99)), commonName="*"))
    said = many.judge(Identity("a\nb\x1b[31m"), "x\n" * 5000, NOTHING)
    assert said.isprintable()
    assert len(said) < 500
    assert "and 94 more" in said


# By name


@pytest.mark.parametrize("agent_id", ["n1", "p1", "agent"])
def test_by_name_a_token_is_its_node_its_pod_or_its_account(agent_id: str) -> None:
    assert BY_NAME.judge(ACCOUNT, agent_id, NOTHING, node="n1", pod="p1") == ""


def test_by_name_an_agent_stands_for_itself() -> None:
    shown = Identity("Agent-1")
    assert BY_NAME.judge(shown, "Agent-1", Identifiers(host=("agent-1",))) == ""
    assert BY_NAME.judge(ACCOUNT, "p1", Identifiers(host=("n1",)), node="n1", pod="p1") == ""
    assert BY_NAME.judge(Identity("system:node:n1", ("system:nodes",)), "n1", NOTHING) == ""
    for query in ("host=agent-2", "ipv4=10.0.0.1", "cidr=10.0.0.0/8", "default-route=true"):
        assert BY_NAME.judge(shown, "Agent-1", Identifiers.parse(query)) != ""
    assert BY_NAME.judge(shown, "agent-1", NOTHING) != ""
    assert BY_NAME.judge(shown, "Agent-1", NOTHING, "other") != ""


def test_by_name_the_answer_tells_what_would_be_right() -> None:
    assert BY_NAME.judge(ACCOUNT, "n2", NOTHING, node="n1", pod="p1") == (
        "token:system:serviceaccount:kube-system:agent (pod p1, node n1) may not claim agent id "
        "'n2': the rule for node.agentIDs lists only '{node}' (name), the rule for pod.agentIDs "
        "lists only '{pod}' (name), the rule for serviceAccount.agentIDs lists only "
        "'{serviceAccountName}' (name)"
    )


# Patterns


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("x" * 513, "is longer than 512 characters"),
        ("a\nb", "has characters that cannot be printed"),
        ("{cn}", "has '{cn}', which is none of"),
        ("{}", "has '{}', which is none of"),
        ("{node{", "has '{node{', which is none of"),
        ("}node}", "has '}node}', which is none of"),
        ("a{", "has 'a{', which is none of"),
        ("a[0-9]", "only * is a wildcard"),
        ("a?", "only * is a wildcard"),
        ("{san}.{organization}", "has both {organization} and {san}"),
    ],
)
def test_a_pattern_that_is_none_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        Pattern(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value", "covered"),
    [
        ("*", "", True),
        ("**", "x", True),
        ("a*a", "a", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b*b", "ab", False),
        ("a*b*b", "abb", True),
        ("*ab*ab", "xab", False),
        ("*.x", ".x", True),
        ("*.x", "x", False),
        ("a*", "ba", False),
        ("a.c", "abc", False),
    ],
)
def test_pieces_of_a_pattern_do_not_overlap(text: str, value: str, covered: bool) -> None:
    assert Pattern(text).covers(value, {}) is covered
