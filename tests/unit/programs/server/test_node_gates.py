"""A gate on one side of a link only: what is said, how loudly, and how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isthmus.frame import gate_state
from isthmus.frame.gate_state import GateState, Known, state_of
from isthmus.links.server_side import AgentLink
from isthmus.programs.agent import server_links
from isthmus.programs.server import agents
from isthmus.programs.server.agents import GateNotes
from isthmus.settings.gates import CLUSTER_TO_MASTER

ON, OFF = frozenset({CLUSTER_TO_MASTER, "Another"}), frozenset({"Another"})


def link(agent_id: str, features: frozenset[str] | None) -> AgentLink:
    seen: Any = SimpleNamespace(
        agent_id=agent_id, id=1, peer_address="10.0.0.7:1", features=features
    )
    return cast("AgentLink", seen)


@pytest.mark.parametrize(
    ("here", "there", "state"),
    [
        (True, ON, GateState.AGREE),
        (False, OFF, GateState.AGREE),
        (False, frozenset(), GateState.AGREE),
        (False, None, GateState.AGREE),
        (False, ON, GateState.THERE_ONLY),
        (True, OFF, GateState.HERE_ONLY),
        (True, frozenset(), GateState.HERE_ONLY),
        (True, None, GateState.SILENT),
    ],
)
def test_states(here: bool, there: frozenset[str] | None, state: GateState) -> None:
    assert state_of(here=here, there=there) is state


def test_every_state_but_one_has_a_sentence() -> None:
    assert agents._SAID_OF_GATES.keys() == set(GateState) - {GateState.AGREE}
    assert server_links._SAID.keys() == agents._SAID_OF_GATES.keys() - {GateState.SILENT}


def test_it_is_said_once_for_each_agent_and_again_when_it_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.server")  # which a program's set-up gave a level
    notes = GateNotes(enabled=True)
    for agent_id, features in (
        ("a", OFF), ("a", OFF), ("b", OFF), ("a", ON), ("a", ON), ("a", OFF), ("c", None),
        ("c", None), ("d", ON),
    ):  # fmt: skip
        notes.linked(link(agent_id, features))
    said = [(it.fields["agent_id"], it.levelname) for it in caplog.records]  # type: ignore[attr-defined]
    assert said == [("a", "INFO"), ("b", "INFO"), ("a", "INFO"), ("c", "DEBUG")]


def test_an_agent_that_will_be_denied_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "isthmus.server")
    GateNotes(enabled=False).linked(link("a", ON))
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert "--feature-gates=EnableClusterToMasterTraffic=true is set here, too" in said.message


def test_peers_that_come_and_go_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_state, "MOST_KNOWN", 3)
    known = Known()
    for number in range(10):
        assert known.is_news(str(number), GateState.HERE_ONLY)
    assert len(known) == 3
    assert [known.is_news(each, GateState.HERE_ONLY) for each in ("9", "7", "6")] == [
        False,
        False,
        True,
    ]
