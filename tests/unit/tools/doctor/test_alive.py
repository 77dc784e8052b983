"""What a running program says of itself: readiness, links, versions, counts, failures."""

from __future__ import annotations

from typing import Any

import pytest
from doctor_bed import agent, by_check, only, running, server, states

from isthmus import __version__
from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.finding import DIAL_ADVICE, LINK_ADVICE, CheckId, CheckState
from isthmus.frame.patient import READINESS
from isthmus.tools.doctor.alive import (
    judge_dials,
    judge_known,
    judge_link,
    see_dial_failures,
    see_link_failures,
    see_links,
    see_readiness,
    see_server_count,
    see_versions,
)
from isthmus.tools.pki.making import PkiFiles


def link(**more: Any) -> dict[str, Any]:
    return {"peerId": "a", "peerAddress": "10.0.0.7:1", "state": "open", "rttSeconds": 0.01, **more}


def test_one_dial_is_one_dial() -> None:
    (few,) = judge_dials({DialFailure.DENIED: 1.0}, 0.0, "since its start", "/metrics")
    assert few.seen == "1 dial: denied by policy"
    assert "--endpoint-deny" in few.todo, "the agent's lists deny as well"
    (of_many,) = judge_dials({DialFailure.REFUSED: 1.0}, 40.0, "in the last hour", "/history")
    assert of_many.seen == "1 of 40 dials: connection refused"


def test_readiness_is_read(certificates: PkiFiles) -> None:
    settings = agent(certificates)
    text = "[+]ping ok\n[-]links failed: no server is connected\n"
    who = running("agent", settings, ready=False, readiness=text)
    finding = only(see_readiness(who), CheckId.READINESS)
    assert finding.state is CheckState.FAILED
    assert finding.seen == "links failed: no server is connected"
    assert states(see_readiness(running("agent", settings)), CheckId.READINESS) == [CheckState.OK]
    silent = running("agent", settings, ready=False)
    assert states(see_readiness(silent), CheckId.READINESS) == [CheckState.FAILED]
    unasked = running("agent", settings, missing={READINESS: "did not answer in time"})
    assert states(see_readiness(unasked), CheckId.READINESS) == [CheckState.SKIPPED]


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, CheckState.OK),
        ({"rttSeconds": None}, CheckState.OK),
        ({"rttSeconds": 3.0}, CheckState.WARNING),
        ({"state": "greeting"}, CheckState.WARNING),
        ({"state": "draining"}, CheckState.WARNING),
        ({"state": "stuck"}, CheckState.FAILED),
    ],
)
def test_a_link_is_judged(changed: dict[str, Any], state: CheckState) -> None:
    assert judge_link(link(**changed), "link to a").state is state


def test_no_link_at_all_is_found(certificates: PkiFiles) -> None:
    who = running("server", server(certificates), snapshot={"links": []})
    finding = only(see_links(who), CheckId.LINKS)
    assert finding.state is CheckState.FAILED
    assert "agents" in finding.seen and "on the agents' machines" in finding.todo
    who = running("agent", agent(certificates), snapshot={"links": []})
    finding = only(see_links(who), CheckId.LINKS)
    assert "servers" in finding.seen and "agents' machines" not in finding.todo


def test_a_server_that_relays_lacks_agents_and_no_more(certificates: PkiFiles) -> None:
    relay = {"serverId": "cp-2", "direction": "to", "address": "10.0.0.2:8091", "agents": True}
    snapshot = {"links": [], "relays": [relay | {"state": "open", "rttSeconds": 0.01}]}
    none, well = see_links(running("server", server(certificates), snapshot=snapshot))
    assert (none.state, none.seen) == (CheckState.WARNING, "none: dials are relayed through cp-2")
    assert (well.state, well.about) == (CheckState.OK, "link to server cp-2 at 10.0.0.2:8091")
    snapshot = {"links": [], "relays": [relay | {"state": "stuck", "agents": False}]}
    found = list(see_links(running("server", server(certificates), snapshot=snapshot)))
    assert [each.state for each in found] == [CheckState.FAILED, CheckState.FAILED]


def test_versions_are_compared(certificates: PkiFiles) -> None:
    agents = [{"version": __version__}, {"version": ""}, {"version": "0.0.9"}]
    snapshot = {"version": __version__, "agents": agents}
    own, theirs = see_versions(running("server", server(certificates), snapshot=snapshot))
    assert own.state is CheckState.OK
    assert theirs.state is CheckState.WARNING
    assert "1 of 0.0.9" in theirs.seen
    older = running("agent", agent(certificates), snapshot={"version": "0.0.1"})
    assert states(see_versions(older), CheckId.VERSIONS) == [CheckState.WARNING]


@pytest.mark.parametrize(
    ("known", "linked", "leases", "state"),
    [
        (3, 3, None, CheckState.OK),
        (3, 3, 3, CheckState.OK),
        (3, 1, None, CheckState.FAILED),
        (1, 1, 3, CheckState.WARNING),
        (3, 3, 2, CheckState.WARNING),
    ],
)
def test_servers_are_counted(
    known: int, linked: int, leases: int | None, state: CheckState
) -> None:
    assert judge_known(known, linked, leases).state is state


def test_links_to_one_server_count_once(certificates: PkiFiles) -> None:
    snapshot = {"knownServers": 2, "links": [link(), link()]}
    who = running("agent", agent(certificates), snapshot=snapshot)
    assert only(see_server_count(who), CheckId.SERVER_COUNT).state is CheckState.FAILED


@pytest.mark.parametrize("stage", LinkStage)
def test_every_failed_link_has_its_advice(certificates: PkiFiles, stage: LinkStage) -> None:
    metrics = (
        "# TYPE isthmus_agent_link_failures_total counter\n"
        f'isthmus_agent_link_failures_total{{reason="{stage.name.lower()}"}} 4\n'
    )
    who = running("agent", agent(certificates), metrics=metrics)
    finding = only(see_link_failures(who), CheckId.LINK_FAILURES)
    assert finding.state is CheckState.WARNING
    assert finding.seen == f"4 times: {stage.value}"
    assert finding.todo == LINK_ADVICE[stage]


@pytest.mark.parametrize("failure", DialFailure)
@pytest.mark.parametrize("source", ["history", "metrics"])
def test_every_failed_dial_has_its_advice(
    certificates: PkiFiles, failure: DialFailure, source: str
) -> None:
    steps = [{"dials": 5, "failures": {failure.value: 2}}, {"dials": 1, "failures": {}}]
    metrics = (
        "# TYPE isthmus_agent_dial_failures_total counter\n"
        f'isthmus_agent_dial_failures_total{{reason="{failure.name.lower()}"}} 2\n'
    )
    said = {"history": {"steps": steps}} if source == "history" else {"metrics": metrics}
    who = running("agent", agent(certificates), **said)
    finding = only(see_dial_failures(who), CheckId.DIAL_FAILURES)
    assert finding.state is CheckState.WARNING
    assert finding.todo == DIAL_ADVICE[failure]
    assert failure.name.lower() in finding.about


def test_few_failures_among_many_dials_are_everyday_life(certificates: PkiFiles) -> None:
    steps = [{"dials": 1000, "failures": {DialFailure.REFUSED.value: 2}}]
    who = running("agent", agent(certificates), history={"steps": steps})
    assert states(see_dial_failures(who), CheckId.DIAL_FAILURES) == [CheckState.OK]


def test_nothing_failed(certificates: PkiFiles) -> None:
    who = running("agent", agent(certificates))
    found = by_check([*see_dial_failures(who), *see_link_failures(who)])
    assert {one.state for each in found.values() for one in each} == {CheckState.OK}
