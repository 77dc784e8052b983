"""Snapshots of workers merged into one."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

import msgspec
import pytest

from isthmus.dial.rules_name_order import Outcome, Source, Way
from isthmus.frame.model.history import Tally
from isthmus.frame.model.merge import Merge, merges, rules_of
from isthmus.frame.model.snapshot import (
    AgentProgramView,
    AgentView,
    EndedView,
    LinkState,
    LinkView,
    ProgramView,
    RelayView,
    ServerView,
    Totals,
    TunnelState,
    TunnelView,
)
from isthmus.frame.workers import operating
from isthmus.frame.workers.operating import WorkerView, merge, worker_of
from isthmus.programs.apiserver_proxy.view import ApiserverProxyView as Apiserver
from isthmus.programs.sidecar.view import LookupView, NamesView, SidecarView, WayView
from isthmus.programs.sni_router.view import SniRouterView
from isthmus.values import AgentId, ServerId, TunnelId


def tunnel(number: int, age_s: float) -> TunnelView:
    return TunnelView(
        id=TunnelId(number), frontend="http-connect", requester="uid:0", target="t:1",
        agent_id=AgentId("a"), link_id=1, state=TunnelState.OPEN, age_s=age_s,
        bytes_to_target=1, bytes_to_client=2,
    )  # fmt: skip


def link(number: int) -> LinkView:
    return LinkView(
        id=number, peer_id="a", peer_address="10.0.0.1:1", carrier="mux",
        peer_version="1", state=LinkState.OPEN,
        age_s=1.0, streams=1, rtt_s=0.1, held_bytes=0, sent_bytes=1, received_bytes=1,
        window_growth_bytes=0, window_growth_peak_bytes=0,
    )  # fmt: skip


def agent(rtt_s: float) -> AgentView:
    return AgentView(
        id=AgentId("a"), identity="x", identifiers=(), version="1", zone="", links=1, tunnels=2,
        draining=False, rtt_s=rtt_s,
    )  # fmt: skip


def ended(age_s: float) -> EndedView:
    return EndedView(
        target="t:1", ending="clean", by="both", bytes_to_target=1, bytes_to_client=1,
        duration_s=1.0, age_s=age_s,
    )  # fmt: skip


def server(*tunnels: TunnelView, rtt_s: float = 0.1, ended_s: float = 1.0) -> ServerView:
    return ServerView(
        server_id=ServerId("x-w0"), version="1", taken_at=datetime.now(UTC), uptime_s=1.0,
        draining=False, totals=Totals(dials=3, bytes_to_target=10), agents=(agent(rtt_s),),
        links=(link(1),), tunnels=tunnels, recent_endings=(ended(ended_s),),
    )  # fmt: skip


def merged(*views: ServerView, limit: int = 10, restarts: int = 0) -> ServerView:
    found = [
        WorkerView(index=index, restarts=restarts, view=view) for index, view in enumerate(views)
    ]
    view = merge(found, limit=limit, gone=Totals(dials=4), same={"server_id": "x"})
    assert isinstance(view, ServerView)
    return view


def test_tunnels_and_links_have_numbers_that_say_whose_they_are() -> None:
    view = merged(server(tunnel(12, 5.0)), server(tunnel(12, 9.0), tunnel(13, 1.0)))
    assert [it.id for it in view.tunnels] == [1201, 1200, 1301]  # the oldest first
    assert [it.link_id for it in view.tunnels] == [101, 100, 101]
    assert [it.id for it in view.links] == [100, 101]
    assert [worker_of(it.id) for it in view.tunnels] == [(1, 0, 12), (0, 0, 12), (1, 0, 13)]


def test_a_number_of_an_earlier_life_is_another_one() -> None:
    first, again = merged(server(tunnel(12, 5.0))), merged(server(tunnel(12, 5.0)), restarts=2)
    assert first.tunnels[0].id != again.tunnels[0].id
    assert worker_of(again.tunnels[0].id) == (0, 2, 12)
    assert again.tunnels[0].id < 2**53  # what JavaScript counts to


def test_what_adds_up_is_added_and_an_agent_is_one() -> None:
    view = merged(server(rtt_s=0.3, ended_s=5.0), server(rtt_s=0.2, ended_s=1.0))
    assert view.server_id == "x"
    assert view.totals == Totals(dials=10, bytes_to_target=20)
    (one,) = view.agents
    assert (one.links, one.tunnels, one.rtt_s) == (2, 4, 0.2)
    assert [it.age_s for it in view.recent_endings] == [1.0, 5.0]


def test_the_limit_is_that_of_all() -> None:
    view = merged(server(tunnel(1, 2.0), tunnel(2, 1.0)), server(tunnel(1, 3.0)), limit=2)
    assert len(view.tunnels) == 2
    assert view.truncated == 1


def relay(state: LinkState, streams: int, server_id: str = "two-w0") -> RelayView:
    return RelayView(
        server_id=ServerId(server_id), direction="to", address="10.0.0.9:8091", identity="two",
        state=state, agents=True, streams=streams, age_s=streams, rtt_s=None,
    )  # fmt: skip


def test_links_to_other_servers_are_shown_once_for_each_and_the_stuck_one_is_seen() -> None:
    one = replace(server(), relays=(relay(LinkState.OPEN, 2), relay(LinkState.OPEN, 1, "three")))
    other = replace(server(), relays=(relay(LinkState.STUCK, 3),))
    found = merged(one, other).relays
    assert [(it.server_id, it.state, it.streams, it.agents) for it in found] == [
        ("two-w0", LinkState.STUCK, 5, True),
        ("three", LinkState.OPEN, 1, True),
    ]


def sidecar(*, works: bool, failing_s: float) -> SidecarView:
    return SidecarView(
        program="socks5-proxy", version="1", uptime_s=1.0, draining=False, server="unix:/x",
        handshakes=1, requests=2, totals=Totals(), tunnels=(),
        names=NamesView(
            tunnel_works=works, failing_s=failing_s, ways=(WayView(way=Way.TUNNEL, count=2),),
            lookups=(LookupView(source=Source.GUEST_DNS, result=Outcome.FOUND, count=3),),
        ),
    )  # fmt: skip


def test_a_tunnel_that_works_for_one_worker_alone_does_not_work() -> None:
    views = (sidecar(works=True, failing_s=0.0), sidecar(works=False, failing_s=9.0))
    found = [WorkerView(index=n, restarts=0, view=view) for n, view in enumerate(views)]
    view = merge(found, limit=1, gone=Totals(), same={})
    assert isinstance(view, SidecarView)
    assert (view.names.tunnel_works, view.names.failing_s) == (False, 9.0)
    assert [it.count for it in (*view.names.lookups, *view.names.ways)] == [6, 4]
    assert (view.handshakes, view.requests) == (2, 4)


@pytest.mark.parametrize(
    "kind", [ServerView, SidecarView, SniRouterView, Apiserver, AgentProgramView]
)
def test_every_field_of_every_snapshot_has_a_rule(kind: type[ProgramView]) -> None:
    assert rules_of(kind).keys() == {it.name for it in fields(kind)}


def test_a_snapshot_with_a_field_without_a_rule_cannot_be_declared() -> None:
    @dataclass(frozen=True, slots=True)
    class Row:
        key: int
        value: int

    with pytest.raises(TypeError, match="Row: no merge rule for value"):
        merges(key=Merge.KEY)(Row)
    with pytest.raises(TypeError, match="Row: merge rules for no field: other"):
        merges(key=Merge.KEY, value=Merge.SUM, other=Merge.SUM)(Row)


@pytest.mark.parametrize("kind", [ServerView, SidecarView, SniRouterView, Apiserver])
def test_every_kind_of_snapshot_goes_from_one_process_to_the_other(
    kind: type[ProgramView],
) -> None:
    msgspec.msgpack.Decoder(kind)  # a type that it does not know is refused here


def test_a_snapshot_is_the_same_on_the_other_side() -> None:
    view = server(tunnel(1, 2.0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=ServerView) == view


def test_histories_add_up_what_workers_counted_bucket_by_bucket() -> None:
    each = [
        Tally(dials=3, failures={"timed out": 1}, dial_times={0.1: 2, math.inf: 0}, agents=2),
        Tally(dials=4, failures={"timed out": 2}, dial_times={0.1: 1, math.inf: 1}, agents=3),
        Tally(),  # a worker that has reported nothing yet
    ]
    together = operating._together(each)
    assert together.dial_times == {0.1: 3, math.inf: 1}
    assert together.failures == {"timed out": 3}
    assert (together.dials, together.agents) == (7, 3)
