"""What is to be drawn: out of a topology and of snapshots that may be anything."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from picture_examples import (
    DUAL_STACK,
    HA,
    HA_LIVE,
    ISOLATED,
    ISOLATED_LIVE,
    at,
    link,
    network,
    server_snapshot,
    tunnel,
)

from isthmus.lab.picture import ProcessMark, picture, shape_text
from isthmus.lab.picture_live import LiveState, clean
from isthmus.lab.picture_svg import svg
from isthmus.lab.picture_text import draw
from isthmus.lab.topology import Allow, LabHost, LineShape, Topology, Wall


def test_nothing_live_gives_the_topology_alone() -> None:
    drawn = picture(ISOLATED, LiveState())
    assert drawn.links == ()
    assert [one.name for one in drawn.networks] == ["control", "nodes", "pods"]
    assert {one.mark for host in drawn.hosts for one in host.processes} == {ProcessMark.WAITING}


def test_networks_with_a_server_come_first() -> None:
    assert [one.name for one in HA.networks] == ["nodes", "control"]
    assert [one.name for one in picture(HA, LiveState()).networks] == ["control", "nodes"]


def test_a_host_on_two_networks_is_drawn_in_the_first_and_a_guest_in_the_other() -> None:
    control, nodes, pods = picture(DUAL_STACK, LiveState()).networks
    assert [host.name for host in nodes.hosts] == ["node"]
    assert [host.name for host in pods.hosts] == ["pod"]
    assert [(guest.host, guest.place.shape) for guest in pods.guests] == [("node", "5 ms")]
    assert control.guests == nodes.guests == ()


def test_an_opening_there_and_back_is_one() -> None:
    openings = picture(ISOLATED, LiveState()).openings
    assert [(one.who, one.whom, one.both) for one in openings] == [
        ("nodes", "master:8091", False),
        ("nodes", "pods", True),
    ]
    first, second = openings
    assert first.admits("node", "master") and not first.admits("master", "node")
    assert second.admits("pod", "node") and second.admits("node", "pod")


def test_an_allowance_inside_one_network_is_no_opening() -> None:
    topology = replace(ISOLATED, allows=(Allow(source="node", target="nodes"),))
    assert picture(topology, LiveState()).openings == ()


def test_an_opening_is_between_networks_that_have_a_gateway() -> None:
    topology = Topology(
        name="uplinks",
        title="",
        networks=(
            network("a", "10.0.0.0/24", gateway=False),
            network("b", "10.0.0.0/24", gateway=False),
            network("up-a", "192.0.2.0/24"),
            network("up-b", "198.51.100.0/24"),
        ),
        hosts=(
            LabHost(name="x", attachments=(at("a", "10.0.0.1"), at("up-a", "192.0.2.2"))),
            LabHost(name="y", attachments=(at("b", "10.0.0.1"), at("up-b", "198.51.100.2"))),
        ),
        allows=(Allow(source="y", target="x", ports=(8091,)),),
    )
    (opening,) = picture(topology, LiveState()).openings
    assert (opening.source, opening.target) == ("up-b", "up-a")


def test_a_network_says_whose_it_is() -> None:
    island = network("island", "10.8.0.0/24", gateway=False)
    pods = replace(network("pods", "10.9.0.0/24", gateway=False), behind="node")
    networks = picture(
        replace(ISOLATED, networks=(*ISOLATED.networks, island, pods)), LiveState()
    ).networks
    assert [one.note for one in networks][-2:] == ["no gateway", "behind node"]
    assert networks[0].note == ""


def test_processes_run_or_are_dead_or_were_never_started() -> None:
    drawn = picture(ISOLATED, LiveState(running={"server": False}))
    assert [one.mark for host in drawn.hosts for one in host.processes] == [
        ProcessMark.DEAD,
        ProcessMark.WAITING,
    ]


def test_links_are_found_by_the_agent_id_flag() -> None:
    links = picture(HA, HA_LIVE).links
    assert [(one.server_process, one.agent_process, one.state) for one in links] == [
        ("server1", "agent1", "open"),
        ("server1", "agent2", "open"),
        ("server2", "agent1", "open"),
        ("server2", "agent2", "stuck"),
    ]
    assert [one.open for one in links] == [2, 0, 0, 1]
    assert links[3].stalled == 1


def test_links_are_found_by_the_id_that_the_agent_tells() -> None:
    live = LiveState(
        snapshots={
            "server": server_snapshot("server", [link(1, "7f3a")], []),
            "agent": {"kind": "AgentSnapshot", "agentId": "7f3a"},
        }
    )
    assert [one.agent_process for one in picture(ISOLATED, live).links] == ["agent"]


def test_an_agent_is_believed_where_its_server_does_not_answer() -> None:
    told = {
        "kind": "AgentSnapshot",
        "agentId": "agent",
        "links": [link(5, "server", sentBytes=7, receivedBytes=9)],
        "tunnels": [tunnel(1, "pod:8080", 5)],
    }
    alone = picture(ISOLATED, LiveState(snapshots={"agent": told})).links
    assert [(one.server_process, one.to_agent, one.to_server) for one in alone] == [
        ("server", 9, 7)
    ]
    assert [one.target for one in alone[0].tunnels] == ["pod:8080"]
    both = LiveState(snapshots={**ISOLATED_LIVE.snapshots, "agent": told})
    assert len(picture(ISOLATED, both).links) == 1


def test_a_link_to_somebody_else_is_kept_without_a_process() -> None:
    live = LiveState(snapshots={"server": server_snapshot("server", [link(1, "stranger")], [])})
    (found,) = picture(ISOLATED, live).links
    assert (found.agent, found.agent_process) == ("stranger", "")
    assert "stranger" in draw(picture(ISOLATED, live), color=False)
    assert "stranger" in svg(picture(ISOLATED, live))


def test_an_agent_without_a_listed_link_is_still_seen() -> None:
    shot = server_snapshot("server", [], [])
    shot["agents"] = [{"id": "agent", "tunnels": 4, "draining": True, "rttSeconds": 0.5}]
    (found,) = picture(ISOLATED, LiveState(snapshots={"server": shot})).links
    assert (found.state, found.open, found.rtt_s, found.to_agent) == ("draining", 4, 0.5, None)


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("pod:8080", "pod"),
        ("10.221.0.10:7", "pod"),
        ("10.96.0.10:80", "pod"),
        ("web.default.svc:80", "pod"),
        ("node:10250", "node"),
        ("192.0.2.7:80", ""),
        ("", ""),
    ],
)
def test_a_target_is_found_in_the_lab(target: str, host: str) -> None:
    shot = server_snapshot("server", [link(1, "agent")], [tunnel(1, target)])
    (found,) = picture(ISOLATED, LiveState(snapshots={"server": shot})).links
    assert [one.host for one in found.tunnels] == [host]


def test_an_address_on_both_sides_is_the_one_away_from_the_server() -> None:
    twin = LabHost(name="twin", attachments=(at("control", "10.221.0.10"),))
    topology = replace(ISOLATED, hosts=(*ISOLATED.hosts, twin))
    shot = server_snapshot("server", [link(1, "agent")], [tunnel(1, "10.221.0.10:80")])
    (found,) = picture(topology, LiveState(snapshots={"server": shot})).links
    assert [one.host for one in found.tunnels] == ["pod"]


def test_truncated_tunnels_are_counted() -> None:
    shot = server_snapshot("server", [link(1, "agent", streams=5000)], [tunnel(1, "pod:7")])
    (found,) = picture(ISOLATED, LiveState(snapshots={"server": shot})).links
    assert found.open == 5000
    assert "4999 more" in draw(
        picture(ISOLATED, LiveState(snapshots={"server": shot})), color=False
    )


def test_texts_cannot_act() -> None:
    assert clean("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert clean("\ud800\uffff漢e\u0301") == "???e?"
    assert clean("x" * 500) == "x" * 79 + "…"
    assert clean(7) == ""


KEYS = st.sampled_from(
    [
        "kind",
        "serverId",
        "agentId",
        "agents",
        "links",
        "tunnels",
        "id",
        "peerId",
        "linkId",
        "state",
        "stalled",
        "target",
        "streams",
        "rttSeconds",
        "sentBytes",
        "receivedBytes",
        "bytesToTarget",
        "bytesToClient",
        "frontend",
        "draining",
    ]
)
TEXTS = st.text(max_size=12) | st.sampled_from(["agent", "server", "open", "pod:8080", "[::1", ":"])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)
ENTRIES = st.lists(st.dictionaries(KEYS, ANYTHING, max_size=8), max_size=3)
SNAPSHOTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["ServerSnapshot", "AgentSnapshot"])},
    optional={
        "serverId": ANYTHING,
        "agentId": ANYTHING,
        "agents": ENTRIES | ANYTHING,
        "links": ENTRIES | ANYTHING,
        "tunnels": ENTRIES | ANYTHING,
    },
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["server", "agent"]), SNAPSHOTS | ANYTHING))
def test_garbage_is_drawn_around(snapshots: dict[str, Any]) -> None:
    drawn = picture(ISOLATED, LiveState(running={"server": True}, snapshots=snapshots))
    lines = draw(drawn, width=80, color=False).splitlines()
    assert max(map(len, lines)) <= 80
    draw(drawn, width=80, color=False, ascii=True).encode("ascii")
    ET.fromstring(svg(drawn))


def test_a_lab_of_nothing_is_drawn() -> None:
    nothing = Topology(name="nothing", title="", networks=(), hosts=(), wall=Wall.DROP)
    assert draw(picture(nothing, LiveState()), color=False).startswith("nothing")
    ET.fromstring(svg(picture(nothing, LiveState())))
    bare = replace(nothing, networks=(network("a", "10.0.0.0/8"), network("b", "fd00::/64")))
    assert "drops" in draw(picture(bare, LiveState()), color=False)
    ET.fromstring(svg(picture(bare, LiveState())))


def test_the_shape_of_a_line_is_short() -> None:
    assert (
        shape_text(LineShape(delay_ms=50, loss=0.01, rate_mbit=20)) == "50 ms, 1 % loss, 20 Mbit/s"
    )
    assert shape_text(None) == shape_text(LineShape()) == ""


def test_other_addresses_are_shown() -> None:
    also = replace(ISOLATED.hosts[2], also=(ip_address("192.0.2.9"),))
    drawn = picture(replace(ISOLATED, hosts=(*ISOLATED.hosts[:2], also)), LiveState())
    assert "192.0.2.9" in draw(drawn, color=False)
    assert "192.0.2.9" in svg(drawn)
