import re
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest

from isthmus.dial.settings_entitlements import parse
from isthmus.errors import ConfigError
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.rules_entitlements import BY_NAME, Entitlements, Grants, Rule
from isthmus.text.patterns import Pattern
from isthmus.values import Identity

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "bind-agents.md"
HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: AgentIdentityBinding\n"
RULE = HEAD + "rules:\n- subject: {commonName: x}\n  agentIDs: [a]\n"


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "b.yaml")
    return str(caught.value).splitlines()


def test_every_field_is_read() -> None:
    text = HEAD + (
        "rules:\n"
        '- subject: {commonName: "agent-*", organization: o, san: "*.Edge", node: n}\n'
        '  agentIDs: ["{commonName}", "edge-*"]\n'
        "  identifiers:\n"
        "    ipv4: [10.0.0.0/8, 192.0.2.1]\n"
        '    ipv6: ["fd00::/8"]\n'
        '    host: ["*.Edge.example"]\n'
        '    cidr: [10.0.0.0/8, "fd00::/8"]\n'
        "    defaultRoute: true\n"
        "  networks: [cluster, sites]\n"
        "- subject: {serviceAccount: kube-system/agent, pod: p}\n"
        "  agentIDs: [x]\n"
    )
    first = Rule(
        subject=(
            ("commonName", Pattern("agent-*")),
            ("organization", Pattern("o")),
            ("san", Pattern("*.edge")),
            ("node", Pattern("n")),
        ),
        agent_ids=(Pattern("{commonName}"), Pattern("edge-*")),
        grants=Grants(
            ipv4=(ip_network("10.0.0.0/8"), ip_network("192.0.2.1/32")),
            ipv6=(ip_network("fd00::/8"),),
            host=(Pattern("*.Edge.example", fold=True),),
            cidr=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")),
            default_route=True,
        ),
        networks=(Pattern("cluster"), Pattern("sites")),
    )
    second = Rule(
        subject=(("serviceAccount", Pattern("kube-system/agent")), ("pod", Pattern("p"))),
        agent_ids=(Pattern("x"),),
    )
    found = parse(text, "b.yaml")
    assert found == Entitlements(rules=(first, second))
    assert found.source == "b.yaml"
    assert [(rule.path, rule.where) for rule in found.rules] == [
        ("rules[0]", "b.yaml:4"),
        ("rules[1]", "b.yaml:13"),
    ]


def test_an_anchor_saves_typing() -> None:
    text = (
        HEAD + "rules:\n- {subject: &s {node: n}, agentIDs: [a]}\n- {subject: *s, agentIDs: [b]}\n"
    )
    first, second = parse(text, "b.yaml").rules
    assert first.subject == second.subject


def blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_the_name_binding_is() -> None:
    _, by_name = blocks()
    assert parse(by_name, "page") == BY_NAME


def test_the_example_of_the_page_does_what_it_says() -> None:
    rules = parse(blocks()[0], "/etc/isthmus/bind.yaml")
    account = Identity("system:serviceaccount:kube-system:konnectivity-agent", kind="token")
    claim = Identifiers.parse("ipv4=10.0.3.4&host=n1.nodes.example")
    assert rules.judge(account, "n1", claim, node="n1", pod="p") == ""
    assert rules.judge(account, "n2", claim, node="n1", pod="p") != ""
    site = Identity("site-7", ("sites",))
    claim = Identifiers.parse("cidr=172.16.7.0/24&host=db.site-7.example")
    assert rules.judge(site, "site-7-b", claim, "sites") == ""
    assert rules.judge(site, "site-7-b", claim) != ""
    shown = PAGE.read_text()
    assert rules.judge(site, "site-8", Identifiers()) in shown
    assert rules.judge(Identity("old-agent"), "x", Identifiers()) in shown
    route = Identifiers(default_route=True)
    assert rules.judge(Identity("g"), "gateway", route, sans=["gateway.example"]) == ""


def test_the_errors_on_the_page_are_those_one_gets() -> None:
    wrong = blocks()[0].replace('["{node}"]', "[{node}]").replace("10.0.0.0/16", "10.0.0.1/16")
    with pytest.raises(ConfigError) as caught:
        parse(wrong, "/etc/isthmus/bind.yaml")
    assert f"```text\n{caught.value}\n```" in PAGE.read_text()


def test_all_errors_come_at_once_and_in_order() -> None:
    text = (
        "apiVersion: v1\n"
        "kind: AgentIdentityBinding\n"
        "rulez: []\n"
        "rules:\n"
        "- subject: {commonName: a, pod: b}\n"
        "  agentIDs: [{commonName}, 12]\n"
        "  identifiers: {ipv4: [10.0.0.1/8], ipv4: []}\n"
    )
    assert errors(text) == [
        "b.yaml:1:13: apiVersion: must be isthmus.dev/v1alpha1, not 'v1'",
        "b.yaml:3:1: unknown key 'rulez', did you mean rules?",
        "b.yaml:5:12: rules[0].subject: matches no agent: commonName is of a certificate and pod of"
        " a token",
        "b.yaml:6:14: rules[0].agentIDs[0]: must be text, not a mapping: put it in quotes",
        "b.yaml:6:28: rules[0].agentIDs[1]: must be text, not '12' (YAML: int): put it in quotes",
        "b.yaml:7:24: rules[0].identifiers.ipv4[0]: '10.0.0.1/8' has bits below its prefix, did "
        "you mean 10.0.0.0/8?",
        "b.yaml:7:37: rules[0].identifiers.ipv4: is there twice",
    ]


def test_a_hundred_errors_are_cut() -> None:
    lines = errors(HEAD + "rules: [" + "7, " * 100 + "]")
    assert len(lines) == 21
    assert lines[-1] == "b.yaml: and 80 more"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("  networks: []", "6:13: rules[0].networks: is empty, so the rule allows nothing"),
        ("  networks:", "6:12: rules[0].networks: must be a list, not nothing"),
        ("  networks: x", "6:13: rules[0].networks: must be a list, not 'x'"),
        ("  metadata: {}", "6:3: rules[0]: unknown key 'metadata'"),
        ("  [a]: {}", "6:3: rules[0]: unknown key a list"),
        ("  identifiers: []", "6:16: rules[0].identifiers: must be a mapping, not a list"),
        ("- 7", "6:3: rules[1]: must be a mapping, not '7' (YAML: int)"),
    ],
)
def test_a_wrong_rule_is_told_with_its_place(more: str, said: str) -> None:
    assert errors(RULE + more) == [f"b.yaml:{said}"]


@pytest.mark.parametrize(
    ("identifiers", "said"),
    [
        ("ipv4: ['fd00::/8']", "ipv4[0]: 'fd00::/8' is IPv6, list it under ipv6"),
        ("ipv6: [10.0.0.0/8]", "ipv6[0]: '10.0.0.0/8' is IPv4, list it under ipv4"),
        ("cidr: [10.0.0.0/33]", "cidr[0]: '10.0.0.0/33' is not a network such as 10.0.0.0/8, "),
        ("cidr: [10.0.0.0/255.0.0.0]", "cidr[0]: '10.0.0.0/255.0.0.0' is not a network"),
        ("cidr: ['fe80::%1/64']", "cidr[0]: 'fe80::%1/64' is not a network"),
        ("host: [10.0.0.1]", "host[0]: '10.0.0.1' is an address, list it under ipv4 or ipv6"),
        ("host: ['a b']", "host[0]: 'a b' is not a host name, nor a pattern of one"),
        ("host: ['{x}']", "host[0]: '{x}' has '{x}', which is none of {commonName}"),
        ("defaultRoute: yes", "defaultRoute: must be true or false, not 'yes' (YAML: bool)"),
        ("defaultRoute: 'true'", "defaultRoute: must be true or false, not 'true'"),
        ("default-route: true", ": unknown key 'default-route', did you mean defaultRoute?"),
    ],
)
def test_wrong_identifiers_are_told(identifiers: str, said: str) -> None:
    (line,) = errors(RULE + f"  identifiers: {{{identifiers}}}")
    assert f"rules[0].identifiers{'' if said[0] == ':' else '.'}{said}" in line


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("{}", ": is empty, it needs one of commonName, organization, san"),
        ("x", ": must be a mapping, not 'x'"),
        ("{serviceAccount: agent}", ".serviceAccount: 'agent' is not NAMESPACE/NAME"),
        ("{node: '{pod}'}", ".node: '{pod}' cannot have {pod}"),
        ("{node: ''}", ".node: '' is empty"),
        ("{commonname: x}", ": unknown key 'commonname', did you mean commonName?"),
        ("{san: on}", ".san: must be text, not 'on' (YAML: bool): put it in quotes"),
    ],
)
def test_a_wrong_subject_is_told(subject: str, said: str) -> None:
    (line,) = errors(HEAD + f"rules:\n- subject: {subject}\n  agentIDs: [a]\n")
    assert f"rules[0].subject{said}" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "b.yaml: is empty, a document of kind AgentIdentityBinding is expected"),
        ("[]", "b.yaml:1:1: must be a mapping, not a list"),
        (RULE + "---\n" + RULE, "b.yaml:6:1: not YAML: expected a single document in the stream"),
        (RULE + "  networks: [*]", "needs quotes"),
        (RULE + "  networks: [*.x]", "b.yaml:6:15: not YAML: while scanning an alias, expected"),
        (RULE + "\x00", "b.yaml: not YAML: unacceptable character"),
        ('"\\UFFFFFFFF"', "b.yaml: not YAML: "),
        ("[" * 5000, "b.yaml: nested too deeply"),
        ("#" * 1024 * 1025, "b.yaml: longer than 1048576 characters"),
        (HEAD + "rules: []", "b.yaml:3:8: rules: is empty, and would refuse every agent"),
        (HEAD + "rules: &a [*a]", "b.yaml:3:8: rules[0]: must be a mapping, not a list"),
        (HEAD, "b.yaml:1:1: rules: is missing"),
        (HEAD + "rules: [!!python/object:os.x {}]", "rules[0].subject: is missing"),
    ],
)
def test_what_is_no_document_is_told(text: str, said: str) -> None:
    assert any(said in line for line in errors(text))


def test_the_rules_themselves_need_no_yaml() -> None:
    code = "import sys, isthmus.settings.rules_entitlements; print('yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
