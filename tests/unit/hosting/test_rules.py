"""Every rule is broken by a document that breaks just that rule."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.errors import ConfigError
from isthmus.hosting.document import read
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    PlanFinding,
    Platform,
    Publishing,
    Strategy,
    StrategyVerdict,
    Weight,
)
from isthmus.hosting.models import V1BETA1
from isthmus.hosting.plan import RULES, check, table

sys.path.insert(0, str(Path(__file__).parent))
from publishing_cases import CASES, CLEAN, NEAR, changed

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "publishing.md"


def found(document: dict[str, Any]) -> tuple[PlanFinding, ...]:
    return check(read(yaml.safe_dump(document, sort_keys=False), "c.yaml"))


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(names) == set(CASES)
    assert all(CASES.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_is_broken_by_itself(rule: Any) -> None:
    for case in CASES[rule.name]:
        findings = found(changed(case.base, case.changes))
        assert {each.rule for each in findings} == {rule.name}, findings
        for each in findings:
            assert each.weight is rule.weight
            assert each.place.line > 0
            assert each.says
            assert each.do
            assert each.missed_by == rule.missed_by
        assert case.field in {each.place.field for each in findings}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_document_breaks_none(name: str) -> None:
    assert found(CLEAN[name]) == ()


@pytest.mark.parametrize("name", NEAR)
def test_what_is_nearly_wrong_is_right(name: str) -> None:
    assert found(changed(*NEAR[name])) == ()


def test_the_line_is_that_of_the_field() -> None:
    case = CASES["node-port-range"][0]
    text = yaml.safe_dump(changed(case.base, case.changes), sort_keys=False)
    (finding,) = check(read(text, "c.yaml"))
    assert text.splitlines()[finding.place.line - 1].strip() == "port: 6443"


def test_all_violations_come_at_once_in_the_order_of_lines() -> None:
    changes = {
        path: value
        for name in ("api-port-443", "allowed-cidrs-all", "aws-route", "section-of-type")
        for path, value in CASES[name][0].changes.items()
    }
    findings = found(changed(CLEAN["aws"], changes))
    assert {each.rule for each in findings} == {
        "api-port-443",
        "allowed-cidrs-all",
        "aws-route",
        "section-of-type",
    }
    lines = [each.place.line for each in findings]
    assert lines == sorted(lines)


def test_four_apiservers_are_four_entries_and_not_four_services() -> None:
    # The CRD counts entries only.
    document = changed(
        CLEAN["bare"], {f"spec.services[{index}].service": "APIServer" for index in range(4)}
    )
    rules = [each.rule for each in found(document)]
    assert sorted(rules) == ["required-services"] * 3 + ["service-once"] * 3


def test_a_cluster_that_was_never_a_document_is_checked_too() -> None:
    api = Publishing(service=ControlPlaneService.API_SERVER, strategy=Strategy.ROUTE)
    cluster = HostedCluster(
        model=V1BETA1,
        name="a",
        namespace="b",
        control_plane="b-a",
        platform=Platform.NONE,
        access=EndpointAccess.PUBLIC,
        services=(api, Publishing(service=ControlPlaneService.API_SERVER, strategy=Strategy.NONE)),
    )
    findings = check(cluster)
    assert {each.rule for each in findings if each.weight is Weight.ERROR} == {
        "required-services",
        "service-once",
        "strategy-possible",
        "api-route-hostname",
    }
    assert all(each.place.line == 0 for each in findings)


def test_no_finding_shows_a_password() -> None:
    (case,) = CASES["proxy-credentials"]
    assert "secret" not in repr(found(changed(case.base, case.changes)))


def test_the_document_has_the_table_of_rules() -> None:
    between = re.search(r"<!-- rules -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert between is not None
    # python -c "from isthmus.hosting.plan import table; print(table(), end='')"
    assert between[1] == table()


def shown_cluster() -> str:
    first: str = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    return first


def test_the_document_shows_a_cluster_that_can_be_published() -> None:
    assert check(read(shown_cluster(), PAGE.name)) == ()


def test_the_document_shows_what_is_said_of_a_wrong_one() -> None:
    wrong = (
        shown_cluster()
        .replace("allowedCIDRBlocks:", "allowedCidrBlocks:")
        .replace("cidr: 10.0.0.0/16", "cidr: 999.999.999.999/99")
        .replace("hostname: api.spring.example.com", "hostname: api")
    )
    with pytest.raises(ConfigError) as caught:
        read(wrong, "spring.yaml")
    assert f"```text\n{caught.value}\n```\n" in PAGE.read_text()


def test_the_document_has_the_matrix() -> None:
    words = {
        StrategyVerdict.PUBLISHED: "yes",
        StrategyVerdict.REFUSED: "no",
        StrategyVerdict.IGNORED: "no effect",
    }
    for service in ControlPlaneService:
        row = re.search(
            rf"^\|[^|]*\b{service.value}\b[^|]*\|(.*)\|$", PAGE.read_text(), re.MULTILINE
        )
        assert row is not None
        cells = [cell.strip().removesuffix(", with a hostname") for cell in row[1].split("|")]
        for strategy, said in zip(Strategy, [*cells, cells[-1]], strict=True):
            azure = words[V1BETA1.verdict(service, strategy, Platform.AZURE)]
            other = words[V1BETA1.verdict(service, strategy, Platform.AGENT)]
            assert said == (azure if azure == other else "on Azure"), (service, strategy)
