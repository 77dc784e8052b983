"""What findings mean that no test with real programs brings about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.tools.bootstrap import rules as bootstrap
from isthmus.tools.bootstrap.rules import NEEDS, AddressSeen, CheckReport, CheckState, StepName
from isthmus.values import HostPort

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def seen(**more: Any) -> AddressSeen:
    given = {"interface": "isthmus0", "ours": True, "ruled": True, "guarded": None}
    return AddressSeen(**(given | more))


def test_a_step_needs_only_what_comes_before_it() -> None:
    order = list(StepName)
    for name, needs in NEEDS.items():
        assert all(order.index(need) < order.index(name) for need in needs)


def test_a_skipped_step_skips_what_needs_it() -> None:
    broken = bootstrap.failed(StepName.LISTENER, "no", "")
    done = {StepName.LISTENER: broken}
    for name in (StepName.DESTINATION, StepName.CERTIFICATE, StepName.NAME):
        step = bootstrap.skipped_for(name, done)
        assert step is not None and step.state is CheckState.SKIPPED
        done[name] = step
    assert bootstrap.skipped_for(StepName.LINK, done) is None


def test_the_report_names_the_first_that_failed() -> None:
    steps = [bootstrap.ok(StepName.AGENT, "a")]
    steps += [bootstrap.failed(name, "b", "c") for name in (StepName.GATE, StepName.API)]
    report = CheckReport(tuple(steps)).to_json()
    assert (report["ok"], report["failed"]) == (False, "gate")


@pytest.mark.parametrize(
    ("look", "state"),
    [
        (seen(guarded=True), CheckState.OK),
        (seen(), CheckState.OK),
        (seen(guarded=False), CheckState.FAILED),
        (seen(ruled=False), CheckState.WARNING),
        (seen(ruled=False, guarded=False), CheckState.WARNING),
        (seen(ruled=False, guarded=True), CheckState.OK),
    ],
)
def test_rules(look: AddressSeen, state: CheckState) -> None:
    assert bootstrap.judge_rule("10.0.0.1", look).state is state


def test_an_address_of_somebody_else_is_a_warning() -> None:
    step = bootstrap.judge_address("10.0.0.1", seen(ours=False, interface="eth0"))
    assert step.state is CheckState.WARNING
    assert "eth0" in step.found


@pytest.mark.parametrize(
    ("silent", "state"), [((True,), CheckState.FAILED), ((True, False), CheckState.WARNING)]
)
def test_konnectivitys_own_server(silent: tuple[bool, ...], state: CheckState) -> None:
    servers = [{"serverId": "go", "carries": "unknown", "silent": each} for each in silent]
    step = bootstrap.judge_feature({"nodeTraffic": {"servers": servers}}, "Gate")
    assert step.state is state
    assert "use a server of Isthmus" in step.advice


def test_a_cut_connection_is_found_by_its_own_address() -> None:
    failures = [
        {"client": f"10.0.0.1:{port}", "destination": "d:1", "result": result, "reason": result}
        for port, result in ((1, "failed"), (2, "denied"))
    ]
    snapshot = {"nodeTraffic": {"recentFailures": failures}}
    assert "allowed-destination=d:1" in bootstrap.judge_cut(snapshot, "10.0.0.1:2", "").advice
    assert "running there" in bootstrap.judge_cut(snapshot, "10.0.0.1:1", "").advice
    assert bootstrap.judge_cut(snapshot, "10.0.0.1:3", "cut").found == "cut"
    # An agent of an older version, and one that does not answer.
    assert bootstrap.judge_cut({"nodeTraffic": None}, "10.0.0.1:1", "cut").found == "cut"
    assert bootstrap.judge_cut(None, "10.0.0.1:1", "cut").found == "cut"


def test_there_is_advice_for_every_result_that_ends_in_a_reset() -> None:
    named = {each.name.lower() for each in NodeResult} - {"joined", "left", "gave_up"}
    assert bootstrap._ADVICE.keys() == named


@pytest.mark.parametrize(
    ("begins", "ends", "strict", "state", "text"),
    [
        (-DAY, 90 * DAY, "", CheckState.OK, "valid until 2026-04-02"),
        (-DAY, 9 * DAY, "", CheckState.WARNING, "expires on 2026-01-11"),
        (-9 * DAY, -DAY, "certificate has expired", CheckState.FAILED, "expired on 2026-01-01"),
        (DAY, 9 * DAY, "not yet valid", CheckState.FAILED, "not valid before 2026-01-03"),
        (-DAY, 90 * DAY, "certificate has expired", CheckState.FAILED, "certificate has expired"),
    ],
)
def test_expiry(
    begins: timedelta, ends: timedelta, strict: str, state: CheckState, text: str
) -> None:
    step = bootstrap.judge_expiry(NOW + begins, NOW + ends, NOW, strict)
    assert step.state is state
    assert text in step.found


@pytest.mark.parametrize(
    ("found", "fine"),
    [
        (["10.0.0.1:6443"], True),
        (["10.0.0.1:6443", "10.0.0.2:6443"], False),
        (["10.0.0.1:443"], False),
        ([], False),
    ],
)
def test_endpoints(found: list[str], fine: bool) -> None:
    step = bootstrap.judge_endpoints(HostPort("10.0.0.1", 6443), list(map(HostPort.parse, found)))
    assert (step.state is CheckState.OK) is fine
