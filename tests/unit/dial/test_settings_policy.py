"""Policy documents: every field is read, and every error has its place, as in tests/golden/policy.

Write a golden file anew with ISTHMUS_GOLDEN=1, and read what changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest

from isthmus.dial.rules_policy import Effect, Match, Policy, PolicyRule, Ports
from isthmus.dial.settings_policy import MAX_RULES, parse
from isthmus.errors import ConfigError
from isthmus.text.patterns import Pattern

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "policy"
BAD = sorted(path.stem for path in GOLDEN.glob("*.yaml") if path.stem != "good")
HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\n"


def test_every_field_is_read() -> None:
    found = parse((GOLDEN / "good.yaml").read_text(), "p.yaml")
    metadata = (ip_network("169.254.169.254/32"), ip_network("fd00:ec2::254/128"))
    kubelets = Match(
        requesters=(Pattern("certificate:kube-apiserver"), Pattern("uid:0")),
        groups=(Pattern("system:*"),),
        networks=(Pattern("east"), Pattern("edge-*")),
        cidrs=(ip_network("10.0.0.0/8"),),
        hosts=(Pattern("*.nodes.example", fold=True),),
        ports=(Ports(10250, 10250), Ports(8000, 8999), Ports(443, 443)),
    )
    assert found == Policy(
        rules=(
            PolicyRule(name="no-metadata", effect=Effect.DENY, match=Match(cidrs=metadata)),
            PolicyRule(name="kubelets", effect=Effect.ALLOW, match=kubelets),
            PolicyRule(name="rest", effect=Effect.DENY),
        ),
        default=Effect.ALLOW,
    )
    assert found.source == "p.yaml"
    assert [rule.where for rule in found.rules] == ["p.yaml:5", "p.yaml:8", "p.yaml:17"]


def test_deny_is_the_default() -> None:
    assert parse(HEAD + "rules: []\n", "p.yaml") == Policy(rules=(), default=Effect.DENY)


@pytest.mark.parametrize("name", BAD)
def test_errors_have_their_places(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse((GOLDEN / f"{name}.yaml").read_text(), f"{name}.yaml")
    said = str(caught.value) + "\n"
    expected = GOLDEN / f"{name}.txt"
    if os.environ.get("ISTHMUS_GOLDEN"):
        expected.write_text(said)
    assert said == expected.read_text()


def test_there_are_not_too_many_rules() -> None:
    rules = "".join(f"- {{name: r{i}, effect: deny}}\n" for i in range(MAX_RULES))
    assert len(parse(f"{HEAD}rules:\n{rules}", "p.yaml").rules) == MAX_RULES
    with pytest.raises(ConfigError, match="at most 1000 are possible"):
        parse(f"{HEAD}rules:\n{rules}- {{name: more, effect: deny}}\n", "p.yaml")


@pytest.mark.parametrize("page", ["how-to/networks-and-policy.md", "reference/policy.md"])
def test_the_documents_show_policies_that_can_be_read(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    shown = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    policies = [each for each in shown if "ConnectivityPolicy" in each]
    assert policies
    for each in policies:
        assert parse(each, page).rules


def test_yaml_is_not_imported_for_nothing() -> None:
    code = (
        "import sys, isthmus.programs.server.settings, isthmus.dial.rules_policy;"
        "print('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
