"""The programs that never ran have what real ones have: a page is not tested with less."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
import scenes

from isthmus.frame.model import snapshot
from isthmus.frame.model.snapshot import camel

SERVER = scenes.server().snapshot
AGENT = scenes.agent_program().snapshot


@pytest.mark.parametrize(
    ("made", "view"),
    [
        (SERVER, snapshot.ServerView),
        (SERVER["agents"][0], snapshot.AgentView),
        (SERVER["links"][0], snapshot.LinkView),
        (SERVER["tunnels"][0], snapshot.TunnelView),
        (SERVER["recentEndings"][0], snapshot.EndedView),
        (SERVER["certificates"][0], snapshot.CertificateView),
        (SERVER["featureGates"][0], snapshot.GateView),
        (scenes.relay("cp-2", "to"), snapshot.RelayView),
        (scenes.other_server("cp-2"), snapshot.KnownServerView),
        (AGENT, snapshot.AgentProgramView),
        (AGENT["links"][0], snapshot.LinkView),
        (AGENT["nodeTraffic"], snapshot.NodeTrafficView),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else "",
)
def test_a_scene_has_the_keys_of_a_snapshot(made: scenes.Json, view: type) -> None:
    assert set(made) == {camel(field.name) for field in fields(view)}


def test_a_moved_link_is_told_as_the_feed_tells_it() -> None:
    from isthmus.frame.dashboard.delta import MOVED

    link = scenes.link(1, "node-1", random.Random(1))
    assert scenes.moved_link(link) == [link["id"], *(link[camel(key)] for key in MOVED["links"])]
