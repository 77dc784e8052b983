"""Snapshots as values: JSON form, chunks, recent endings, and the sentence for a stall."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from isthmus.frame.model import snapshot
from isthmus.frame.model.snapshot import (
    CHUNK_ITEMS,
    AgentProgramView,
    AgentView,
    CertificateView,
    LinkState,
    LinkView,
    RecentEndings,
    ServerView,
    Totals,
    TunnelState,
    TunnelView,
    json_chunks,
    to_json,
)
from isthmus.programs import programs
from isthmus.tunnel.end import Ending
from isthmus.values import ANONYMOUS, AgentId, DialRequest, HostPort, ServerId, TunnelId

DOCS = Path(__file__).parents[3] / "docs" / "snapshot.md"


def tunnel(number: int, stalled: str = "") -> TunnelView:
    return TunnelView(
        id=TunnelId(number),
        frontend="http-connect",
        requester="certificate:kube-apiserver",
        target="10.0.0.1:10250",
        agent_id=AgentId("node-1"),
        link_id=3,
        state=TunnelState.HALF_CLOSED,
        age_s=1.23456789,
        bytes_to_target=10,
        bytes_to_client=20,
        stalled=stalled,
    )


def server(tunnels: tuple[TunnelView, ...] = (), truncated: int = 0) -> ServerView:
    return ServerView(
        server_id=ServerId("s1"),
        version="0.1.0",
        uptime_s=60.0,
        draining=False,
        totals=Totals(dials=7),
        agents=(
            AgentView(
                id=AgentId("node-1"),
                identity="certificate:node-1",
                identifiers=("host=node-1",),
                version="0.1.0",
                zone="a",
                links=1,
                tunnels=len(tunnels),
                draining=False,
                rtt_s=None,
            ),
        ),
        links=(
            LinkView(
                id=3,
                peer_id="node-1",
                peer_address="10.0.0.7:41822",
                peer_version="0.1.0",
                carrier="mux",
                state=LinkState.OPEN,
                age_s=50.0,
                streams=2,
                rtt_s=0.0004,
                held_bytes=0,
                sent_bytes=1,
                received_bytes=2,
                window_growth_bytes=3,
                window_growth_peak_bytes=4,
            ),
        ),
        tunnels=tunnels,
        truncated=truncated,
        certificates=(
            CertificateView(
                file="server.crt",
                not_after=datetime(2031, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
            ),
        ),
    )


def test_a_tunnel_in_json_has_camel_case_keys_in_order() -> None:
    assert list(to_json(tunnel(1)).items()) == [
        ("id", 1),
        ("frontend", "http-connect"),
        ("requester", "certificate:kube-apiserver"),
        ("target", "10.0.0.1:10250"),
        ("agentId", "node-1"),
        ("linkId", 3),
        ("state", "half-closed"),
        ("ageSeconds", 1.234568),
        ("bytesToTarget", 10),
        ("bytesToClient", 20),
        ("stalled", ""),
        ("slow", ""),
        ("connectionId", ""),
        ("relay", ""),
    ]


def test_wall_times_are_rfc_3339_in_utc_and_absent_ones_null() -> None:
    view = to_json(server())
    assert view["certificates"][0]["notAfter"] == "2031-02-03T02:05:06Z"
    assert view["takenAt"] is None
    taken = dataclasses.replace(server(), taken_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert to_json(taken)["takenAt"] == "2030-01-01T00:00:00Z"


def test_what_is_not_part_of_a_snapshot_is_refused() -> None:
    with pytest.raises(TypeError, match="not part of a snapshot: bytes"):
        to_json(b"secret")


@pytest.mark.parametrize("count", [0, 1, CHUNK_ITEMS, CHUNK_ITEMS + 1, 3 * CHUNK_ITEMS + 5])
def test_chunks_joined_are_the_same_json(count: int) -> None:
    view = server(tuple(tunnel(n) for n in range(count)), truncated=4)
    pieces = list(json_chunks(view))
    assert json.loads("".join(pieces)) == to_json(view)
    assert list(json.loads("".join(pieces))) == list(to_json(view))
    assert max(piece.count('"bytesToTarget"') for piece in pieces) <= CHUNK_ITEMS


def test_an_agents_view_is_json_too() -> None:
    view = AgentProgramView(
        agent_id=AgentId("node-1"),
        version="0.1.0",
        uptime_s=1.0,
        draining=True,
        known_servers=2,
        totals=Totals(),
        links=(),
        tunnels=(tunnel(1),),
    )
    read = json.loads("".join(json_chunks(view)))
    assert (read["kind"], read["draining"], read["knownServers"]) == ("AgentSnapshot", True, 2)


def test_recent_endings_are_bounded_and_newest_first() -> None:
    recent = RecentEndings(limit=2)
    for at in (1.0, 2.0, 3.0):
        request = DialRequest(HostPort(f"t{at:.0f}", 80), ANONYMOUS)
        recent.add((at, request, Ending.LINK_LOST, "agent", 1, 2, 0.5))
    views = recent.views(now=10.0)
    assert [(v.target, v.age_s, v.ending) for v in views] == [
        ("t3:80", 7.0, "link lost"),
        ("t2:80", 8.0, "link lost"),
    ]


def test_the_docs_name_every_key_and_no_other() -> None:
    rooms = [sys.modules[it.view_class.__module__] for it in programs() if it.view]
    classes = [
        v for module in (snapshot, *rooms) for v in vars(module).values() if isinstance(v, type)
    ]
    views = [v for v in classes if dataclasses.is_dataclass(v)]
    keys = {key for view in views for _, key in snapshot._keys(view)}
    written = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(written) == keys
