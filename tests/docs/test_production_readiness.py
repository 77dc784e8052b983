"""What docs/production-readiness.md points to is there: metrics, alerts, log lines, a test each."""

from __future__ import annotations

import re

import pytest
import yaml
from doc_blocks import ROOT

TEXT = (ROOT / "docs" / "production-readiness.md").read_text("utf-8")
RULES = ROOT / "deploy" / "prometheus" / "isthmus-rules.yaml"
#: Of another program.
THEIRS = {"apiserver_egress_dialer_dial_failure_count"}
_METRIC = re.compile(r"`((?:isthmus|konnectivity|kubernetes|kubeproxy|apiserver)_\w+)`")


def failure_modes() -> list[list[str]]:
    """The rows of the last table: failure, detection, mitigation, diagnostics, test."""
    lines = TEXT.partition("## Failure modes")[2].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert rows[0] == ["failure", "detection", "mitigation", "diagnostics", "test"]
    return rows[1:]


def test_metrics_are_declared() -> None:
    declared = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    named = set(_METRIC.findall(TEXT))
    assert len(named) > 10
    assert {name for name in named - THEIRS if f"`{name}`" not in declared} == set()


def test_alerts_and_recorded_series_exist() -> None:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    named = set(re.findall(r"\bIsthmus[A-Z]\w+", TEXT))
    assert named and named <= {rule.get("alert") for rule in rules}
    series = set(re.findall(r"isthmus:\w+:\w+", TEXT))
    assert series and series <= {rule.get("record") for rule in rules}


@pytest.mark.parametrize("row", failure_modes(), ids=lambda row: row[0])
def test_a_failure_mode_says_everything(row: list[str]) -> None:
    assert len(row) == 5 and all(cell.strip() for cell in row)
    assert re.search(r"`tests/[\w/]+\.py", row[4]), "whether the test exists: test_named_tests.py"


def test_log_lines_are_what_programs_say() -> None:
    named = set(re.findall(r"log: `([^`]+)`", TEXT))
    assert len(named) > 5
    sources = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    assert {line for line in named if not any(line in source for source in sources)} == set()
