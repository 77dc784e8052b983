"""What ``make conformance`` compares and reports, without running any of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.report import FAILED, PASSED, SKIPPED, Round, SpecResult, markdown, ours, read
from conformance.selections import SELECTIONS
from conformance.variants import Variant, variant_of
from isthmus.lab import catalog

JUNIT = """\
<testsuites><testsuite>
<testcase name="[It] [sig-cli] works" status="passed" time="1.5"/>
<testcase name="[It] [sig-cli] fails" time="2"><failure message="no&#10; answer"/></testcase>
<testcase name="[It] [sig-cli] has no cloud"><skipped message="skipped - needs a cloud"/></testcase>
<testcase name="[It] [sig-cli] not selected"><skipped message="skipped"/></testcase>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"/>
</testsuite></testsuites>
"""
TOPOLOGY = catalog.load("kubernetes")


def test_results_are_read_from_junit(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    assert {name: (one.status, one.why) for name, one in read(path).items()} == {
        "[sig-cli] works": (PASSED, ""),
        "[sig-cli] fails": (FAILED, "no answer"),
        "[sig-cli] has no cloud": (SKIPPED, "needs a cloud"),
    }


def a_round(direct: bool, **statuses: str) -> Round:
    results = {name: SpecResult(name=name, status=status) for name, status in statuses.items()}
    return Round(selection="s", variant="v", direct=direct, results=results, took_s=1)


def test_a_failure_is_ours_only_if_the_control_run_passes() -> None:
    rounds = [
        a_round(False, one=FAILED, two=FAILED, three=PASSED),
        a_round(True, one=PASSED, two=FAILED, three=FAILED),
    ]
    assert [failed.name for _, failed in ours(rounds)] == ["one"]
    text = markdown(rounds, "v1")
    assert "| s | v | 1 | 2 | 0 | 1 s |" in text
    assert "- **v**: one" in text and "**v**: two" not in text


def test_without_a_failure_the_report_says_so() -> None:
    assert "No test failed that passes in the control run" in markdown(
        [a_round(False, a=PASSED)], ""
    )


def test_a_variant_changes_what_it_names() -> None:
    found = variant_of(TOPOLOGY, Variant(mode="iptables", egress="HTTPConnect"))
    files = dict(found.files)
    assert "--proxy-mode=iptables" in files["cluster.sh"]
    assert "proxyProtocol: HTTPConnect" in files["egress.yaml"]
    (server,) = [one for one in found.processes if one.name == "server"]
    assert "--mode=http-connect" in server.command
    assert variant_of(TOPOLOGY, Variant()) == TOPOLOGY


def test_the_control_run_has_nothing_of_isthmus_and_no_wall() -> None:
    found = variant_of(TOPOLOGY, Variant(direct=True))
    words = [word for process in found.processes for word in process.command]
    assert "isthmus" not in words and not any("egress" in word for word in words)
    assert "node-proxy" not in dict(found.files)["cluster.sh"]
    assert {at.network for at in found.host("master").attachments} == {"control", "nodes"}
    proxies = [one for one in found.processes if one.command[0] == "kube-proxy"]
    assert [one.host for one in proxies] == ["node1", "node2"]


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_are_regular_expressions(name: str) -> None:
    re.compile(SELECTIONS[name].focus)
    assert re.search(SELECTIONS[name].skip, "[sig-x] y [Slow]")
