"""Deltas: put together again they give the next full, and they say no more than has changed."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.frame.dashboard.delta import Moment, at_once, delta, event, full
from isthmus.frame.dashboard.picture import MOST_RECORDS, MOST_ROWS, Picture
from isthmus.frame.model.history import STEPS, HistoryStep
from isthmus.frame.model.snapshot import (
    AgentView,
    EndedView,
    LinkState,
    LinkView,
    ServerView,
    Totals,
    TunnelState,
    TunnelView,
)
from isthmus.values import AgentId, ServerId, TunnelId

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

counts = st.integers(0, 3)
words = st.sampled_from(["", "a", "<script>\n", "ü"])
ages = st.floats(0, 1e6)
tunnels = st.builds(
    TunnelView,
    id=st.integers(1, 12).map(TunnelId),
    frontend=words,
    requester=words,
    target=words,
    agent_id=words.map(AgentId),
    link_id=counts,
    state=st.sampled_from(TunnelState),
    age_s=ages,
    bytes_to_target=counts,
    bytes_to_client=counts,
    stalled=words,
    connection_id=words,
)
links = st.builds(
    LinkView,
    id=st.integers(1, 6),
    peer_id=words,
    peer_address=words,
    peer_version=words,
    carrier=words,
    state=st.sampled_from(LinkState),
    age_s=ages,
    streams=counts,
    rtt_s=st.none() | st.sampled_from([0.1, 0.25]),
    held_bytes=counts,
    sent_bytes=counts,
    received_bytes=counts,
    window_growth_bytes=counts,
    window_growth_peak_bytes=counts,
)
agents = st.builds(AgentView, rtt_s=st.none() | st.just(0.5))
endings = st.builds(
    EndedView,
    target=words,
    ending=words,
    by=words,
    bytes_to_target=counts,
    bytes_to_client=counts,
    duration_s=st.just(1.5),
    age_s=ages,
    connection_id=words,
)


def by_id(rows: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(rows, max_size=most, unique_by=lambda row: row.id).map(tuple)


views = st.builds(
    ServerView,
    kind=st.just("ServerSnapshot"),
    server_id=st.just(ServerId("one")),
    version=st.just("1"),
    taken_at=st.integers(0, 9).map(lambda s: NOON + timedelta(seconds=s)),
    uptime_s=ages,
    draining=st.booleans(),
    totals=st.builds(Totals, dials=counts),
    agents=st.lists(agents, max_size=2).map(tuple),
    links=by_id(links, 4),
    tunnels=by_id(tunnels, 8),
    truncated=counts,
    recent_endings=st.lists(endings, max_size=3).map(tuple),
    certificates=st.just(()),
    feature_gates=st.just(()),
    allowed_destinations=st.lists(words, max_size=2).map(tuple),
)


def step(number: int) -> HistoryStep:
    return HistoryStep(
        number=number, time=NOON, dials=number, failures={"refused": 1}, bytes_to_target=0,
        bytes_to_client=0, tunnels=0, agents=0, links=0,
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> list[Moment]:
    """Some moments, one after the other, with steps and records that only grow."""
    found: list[Moment] = []
    steps: tuple[HistoryStep, ...] = ()
    records: tuple[bytes, ...] = ()
    for view in draw(st.lists(views, min_size=2, max_size=5)):
        for _ in range(draw(counts)):
            steps = (*steps, step(len(steps) + 1))
            records = (*records, json.dumps({"n": len(records)}).encode())
        found.append(
            Moment(view=view, steps=steps, audited=True, records=records, recorded=len(records))
        )
    return found


def head(moment: Moment) -> dict[str, Any]:
    return {"source": "0", "at": str(moment.view.taken_at)}


def comparable(data: dict[str, Any]) -> dict[str, Any]:
    """A full without what goes on by itself, and with rows by id: their order is not promised."""

    def ageless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ageless(one) for key, one in value.items() if key != "ageSeconds"}
        return [ageless(one) for one in value] if isinstance(value, list) else value

    made: dict[str, Any] = ageless(copy.deepcopy(data))
    for name in ("uptimeSeconds", "takenAt"):
        del made["snapshot"][name]
    for name in ("tunnels", "links"):
        made["snapshot"][name] = {row["id"]: row for row in made["snapshot"][name]}
    return made


def through_json(data: dict[str, Any], name: str) -> dict[str, Any]:
    lines = at_once(event(name, data)).decode().split("\n")
    assert lines[0] == f"event: {name}" and lines[2:] == ["", ""]
    found: dict[str, Any] = json.loads(lines[1].removeprefix("data: "))
    assert found == data
    return found


@given(runs())
def test_deltas_put_together_give_the_next_full(moments: list[Moment]) -> None:
    picture = Picture(through_json(at_once(full(moments[0], head(moments[0]))), "full"))
    for before, after in itertools.pairwise(moments):
        picture.apply(through_json(at_once(delta(before, after, head(after))), "delta"))
        assert comparable(picture.full()) == comparable(at_once(full(after, head(after))))


@given(runs())
def test_nothing_changed_is_nothing_but_the_time(moments: list[Moment]) -> None:
    before = moments[0]
    assert isinstance(before.view, ServerView)
    later = replace(
        before.view,
        uptime_s=before.view.uptime_s + 1,
        taken_at=NOON + timedelta(seconds=60),
        tunnels=tuple(replace(row, age_s=row.age_s + 1) for row in before.view.tunnels),
        links=tuple(replace(row, age_s=row.age_s + 1) for row in before.view.links),
        recent_endings=tuple(
            replace(row, age_s=row.age_s + 1) for row in before.view.recent_endings
        ),
    )
    after = replace(before, view=later)
    assert at_once(delta(before, after, head(after))) == head(after)


def tunnel(number: int, **changed: Any) -> TunnelView:
    known = TunnelView(
        id=TunnelId(number), frontend="http-connect", requester="me", target="pod:80",
        agent_id=AgentId("a"), link_id=1, state=TunnelState.OPEN, age_s=1.0, bytes_to_target=0,
        bytes_to_client=0,
    )  # fmt: skip
    return replace(known, **changed)


def moment(*rows: TunnelView, **changed: Any) -> Moment:
    view = ServerView(
        server_id=ServerId("one"), version="1", uptime_s=1.0, draining=False, totals=Totals(),
        agents=(), links=(), tunnels=rows, **changed,
    )  # fmt: skip
    return Moment(view=view)


def test_what_a_delta_says_of_tunnels() -> None:
    before = moment(tunnel(1), tunnel(2), tunnel(3), tunnel(4))
    after = moment(
        tunnel(1, age_s=2.0),
        tunnel(2, bytes_to_target=5),
        tunnel(3, bytes_to_client=7, state=TunnelState.STALLED, stalled="target stopped reading"),
        tunnel(5),
        truncated=2,
    )
    found = at_once(delta(before, after, {"source": "0"}))
    assert found["snapshot"] == {"truncated": 2}
    assert found["tunnels"]["moved"] == [[2, 5, 0]]
    assert found["tunnels"]["gone"] == [4]
    assert [(row["id"], row["state"]) for row in found["tunnels"]["set"]] == [
        (3, "stalled"), (5, "open"),
    ]  # fmt: skip
    assert found.keys() == {"source", "snapshot", "tunnels"}


def test_long_lists_are_made_in_steps() -> None:
    before = moment(*(tunnel(n) for n in range(1, 1001)))
    after = moment(*(tunnel(n, bytes_to_client=1, frontend="grpc") for n in range(1, 1001)))
    found = at_once(delta(before, after, {"source": "0"}))
    assert len(found["tunnels"]["set"]) == 1000
    assert len(list(delta(before, after, {}))) >= 10
    assert len(list(full(after, {}))) >= 10
    assert len(list(event("delta", found))) >= 9
    through_json(found, "delta")


def test_what_is_kept_is_bounded() -> None:
    start = at_once(full(moment(), {"source": "0", "at": ""}))
    picture = Picture(start)
    records = [{"n": number} for number in range(MOST_RECORDS)]
    for _ in range(3):
        history = [{"number": number} for number in range(STEPS)]
        picture.apply({"at": "", "history": history, "audit": records})
    assert len(picture.full()["history"]) == STEPS
    assert picture.full()["audit"]["records"] == records
    rows = [{"id": number} for number in range(MOST_ROWS + 1)]
    with pytest.raises(ProtocolError, match="more than 20000 tunnels"):
        picture.apply({"at": "", "tunnels": {"set": rows}})


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"at": "", "tunnels": {"moved": [[99, 1, 2]]}},
        {"at": "", "tunnels": {"gone": [99]}},
        {"at": "", "tunnels": {"set": [{}]}},
        {"at": "", "tunnels": 5},
        {"at": "", "snapshot": 5},
        {"at": "", "history": 5},
        {"at": "", "links": {"moved": [[1]]}},
    ],
)
def test_a_delta_that_does_not_follow_is_refused(broken: dict[str, Any]) -> None:
    picture = Picture(at_once(full(moment(tunnel(1)), {"source": "0", "at": ""})))
    with pytest.raises(ProtocolError, match="invalid delta event"):
        picture.apply(broken)


def test_a_full_that_is_none_is_refused() -> None:
    several: list[dict[str, Any]] = [{}, {"snapshot": []}, {"snapshot": {"tunnels": [1]}}]
    for broken in several:
        with pytest.raises(ProtocolError, match="full event"):
            Picture(broken)
