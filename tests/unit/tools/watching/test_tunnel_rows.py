"""Rows out of snapshots: whose they are, which are chosen, in what order, how fast they are."""

from __future__ import annotations

import pytest
from rows import row, seen, tunnel

from isthmus.tools.watching.command_tunnels import changes
from isthmus.tools.watching.tunnel_rows import SORTS, Rates, chosen, rows_of


def ids(found: list[object]) -> list[str]:
    return [each.id for each in found]  # type: ignore[attr-defined]


def test_tunnels_of_several_programs() -> None:
    server = seen(1, "ServerSnapshot", tunnel(1), tunnel(2), serverId="cp-1")
    agent = seen(2, "AgentSnapshot", tunnel(7, connectionId="aa-1"), tunnel(8), agentId="node-1")
    both = [(each.server, each.id) for each in rows_of([server, agent])]
    assert both == [("cp-1", "1"), ("cp-1", "2"), ("node-1", "7"), ("node-1", "8")]
    once = [(each.server, each.id) for each in rows_of([server, agent], once=True)]
    assert once == [("cp-1", "1"), ("cp-1", "2"), ("node-1", "8")]


def test_a_relayed_tunnel_is_that_of_the_server_that_was_asked() -> None:
    asks = seen(1, "ServerSnapshot", tunnel(1, relay="cp-2"), serverId="cp-1")
    helps = seen(2, "ServerSnapshot", tunnel(4, frontend="relay", connectionId="aa-1"), tunnel(5))
    found = rows_of([asks, helps], once=True)
    assert [(each.id, each.relay) for each in found] == [("1", "cp-2"), ("5", "")]
    alone = rows_of([helps], once=True)
    assert ids(list(alone)) == ["4", "5"]  # who asked is not seen: it is somebody's all the same
    agent = seen(3, "AgentSnapshot", tunnel(9, connectionId="aa-1"))
    assert ids(list(rows_of([asks, helps, agent], once=True))) == ["1", "5"]


def test_two_programs_of_one_name_are_told_apart() -> None:
    twins = [seen(port, "ServerSnapshot", tunnel(port), serverId="cp") for port in (1, 2)]
    assert [each.server for each in rows_of(twins)] == ["cp@127.0.0.1:1", "cp@127.0.0.1:2"]


def test_what_another_version_leaves_out_is_no_error() -> None:
    (found,) = rows_of([seen(1, "NewKindSnapshot", {"id": "x", "stalled": None})])
    assert (found.id, found.stalled, found.bytes, found.target) == ("x", "", 0, "")
    assert rows_of([seen(1, "ServerSnapshot", tunnels=None)]) == []


def test_chosen() -> None:
    rows = [row(1), row(2, agent="node-2"), row(3, stalled="client stopped reading; …")]
    assert ids(chosen(rows)) == ["1", "2", "3"]  # type: ignore[arg-type]
    assert ids(chosen(rows, stalled=True)) == ["3"]  # type: ignore[arg-type]
    assert ids(chosen(rows, agent="node-2")) == ["2"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "pattern", "fits"),
    [
        ("10.0.0.5:443", "10.0.0.5:443", True),
        ("10.0.0.5:443", "10.0.0.5", True),
        ("10.0.0.5:443", "10.0.*", True),
        ("10.0.0.5:443", "*:443", True),
        ("10.0.0.5:443", ":443", True),
        ("10.0.0.5:443", "*:44", False),
        ("10.0.0.5:443", "10.0.0", False),
        ("[fd00::5]:443", "fd00::5", True),
        ("[fd00::5]:443", "[fd00::5]:443", False),  # brackets are a set of characters here
        ("[fd00::5]:443", "fd00::*", True),
    ],
)
def test_target_patterns(target: str, pattern: str, fits: bool) -> None:
    assert bool(chosen([row(1, target=target)], target=pattern)) is fits


def test_orders() -> None:
    rows = [row(1, age_s=5, to_client=9, rate=None), row(2, age_s=9), row(10, age_s=1, rate=5000)]
    by = {name: [each.id for each in sorted(rows, key=key)] for name, key in SORTS.items()}
    assert by["age"] == ["2", "1", "10"]
    assert by["bytes"] == ["1", "2", "10"]
    assert by["rate"] == ["10", "2", "1"]
    assert by["id"] == ["1", "2", "10"]


def test_rates() -> None:
    rates = Rates()
    first = rates.take([row(1, to_client=1000, rate=None), row(2, rate=None)], now=10.0)
    assert [each.rate for each in first] == [None, None]
    again = [row(1, to_client=3000, rate=None), row(3, rate=None), row(2, rate=None)]
    second = rates.take(again, now=12.0)
    assert [each.rate for each in second] == [1000.0, None, 0.0]
    (restarted,) = rates.take([row(1, to_client=5, rate=None)], now=13.0)
    assert restarted.rate is None, "fewer bytes than before: it is another tunnel"


def test_changes() -> None:
    before = {each.key: each for each in (row(1), row(2), row(3))}
    found = changes(before, [row(1), row(2, state="stalled"), row(4)])
    assert [(each.id, each.state) for each in found] == [
        ("2", "stalled"),
        ("4", "open"),
        ("3", "ended"),
    ]
