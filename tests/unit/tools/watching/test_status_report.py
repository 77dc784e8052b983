"""What ``isthmus status`` makes of what a program says, and how it prints it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from isthmus.tools.watching.command_status import print_reports, report_json
from isthmus.tools.watching.status_report import Heard, Report, report

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def server(**more: Any) -> dict[str, Any]:
    return {
        "kind": "ServerSnapshot",
        "serverId": "cp-1",
        "version": "0.1.0",
        "takenAt": "2026-03-01T12:00:00Z",
        "uptimeSeconds": 3600.0,
        "draining": False,
        "totals": {"dials": 100, "dialsFailed": 3},
        "agents": [{"id": "node-1", "draining": False}],
        "links": [{"peerId": "node-1", "state": "open"}],
        "tunnels": [],
        "truncated": 0,
        "certificates": [],
        "featureGates": [],
        **more,
    }


def step(dials: int = 0, data: int = 0, **failures: int) -> dict[str, Any]:
    return {
        "dials": dials, "failures": failures, "bytesToTarget": data, "bytesToClient": 2 * data,
    }  # fmt: skip


def made(
    snapshot: dict[str, Any], *, ready: tuple[int, str] = (200, "ok"), steps: Any = None
) -> Report:
    history = None if steps is None else {"stepSeconds": 10, "steps": steps}
    heard = Heard(
        address="127.0.0.1:8095",
        program="server",
        id="cp-1",
        snapshot=snapshot,
        ready_status=ready[0],
        ready_text=ready[1],
        history=history,
    )
    return report(heard, now=NOW)


def test_a_server_that_is_well() -> None:
    found = made(server(), steps=[step(1, 1000)] * 40)
    assert (found.ready, found.agents, found.links, found.tunnels) == (True, 1, 1, 0)
    assert found.started_at == "2026-03-01T11:00:00Z", "reckoned: it has no /configz"
    assert found.recent is not None
    assert (found.recent.dials, found.recent.seconds) == (30, 300)
    assert (found.recent.rate_to_target, found.recent.rate_to_client) == (100, 200)
    assert found.look_at == ()


def test_when_it_was_started_is_what_it_says() -> None:
    # A snapshot's time is in whole seconds: what is reckoned from it is one off every other time.
    said = {"startedAt": "2026-03-01T11:00:01Z"}
    heard = Heard(
        address="127.0.0.1:8095", program="server", id="", snapshot=server(), configuration=said
    )
    assert report(heard, now=NOW).started_at == said["startedAt"]


def test_an_older_program_knows_no_history() -> None:
    found = made(server())
    assert found.recent is None and report_json(found)["recent"] is None
    assert made(server(), steps=[]).recent is not None


def test_the_first_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    print_reports([made(server(), steps=[])], [], wide=False)
    out, _ = capsys.readouterr()
    assert "  dials         100 since the start, 3 failed\n" in out
    assert "  traffic       not known yet (ten seconds after the start)\n" in out


def test_why_it_is_not_ready() -> None:
    found = made(server(), ready=(500, "[+]drain ok\n[-]agents failed: no connection\n"))
    assert found.ready is False and found.not_ready == ("agents: no connection",)
    assert found.checks == ("[+]drain ok", "[-]agents failed: no connection")
    assert found.look_at == ("not ready: agents: no connection",)
    assert made(server(), ready=(503, "")).not_ready == ("status 503",)
    assert made(server(), ready=(404, "")).ready is None


def test_failures_are_counted_by_reason() -> None:
    found = made(server(), steps=[step(5, 0, refused=1), step(5, 0, refused=2, unreachable=1)])
    assert found.recent is not None and found.recent.failures == {"refused": 3, "unreachable": 1}
    assert found.look_at == ("4 of 10 dials failed in the last 20s, most often: refused (3)",)


def test_certificates() -> None:
    ends = ("2026-02-01T00:00:00Z", "2026-03-02T11:00:00Z", "2026-03-20T12:00:00Z", "2030-01-01T00:00:00Z", "?")  # fmt: skip  # noqa: E501
    given = [{"file": f"{at}.crt", "notAfter": when} for at, when in enumerate(ends)]
    found = made(server(certificates=given))
    assert [each.file for each in found.certificates] == ["0.crt", "1.crt", "2.crt", "3.crt"]
    assert found.look_at == (
        "0.crt has ended (2026-02-01T00:00:00Z)",
        "1.crt expires within a day (2026-03-02T11:00:00Z)",
        "2.crt expires in 19 days (2026-03-20T12:00:00Z)",
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"draining": True}, "draining: new dials are refused"),
        (
            {"links": [{"peerId": "node-1", "state": "stuck"}]},
            "the link to node-1 is stuck",
        ),
        ({"agents": [{"id": "node-1", "draining": True}]}, "1 agent drains: node-1"),
        ({"knownServers": 3}, "linked to 1 of 3 servers"),
        (
            {"relays": [{"serverId": "cp-2", "state": "stuck"}]},
            "the link to server cp-2 is stuck",
        ),
        (
            {"links": [], "relays": [{"serverId": "cp-2", "state": "open", "agents": True}]},
            "no agent is linked here: dials go through cp-2",
        ),
        ({"nodeTraffic": {"waitsFor": "no server"}}, "connections of this node wait: no server"),
        (
            {"names": {"tunnelWorks": False}},
            "the guest cluster's DNS is unreachable through the tunnel",
        ),
        (
            {"upstreams": [{"address": "a:1", "up": False, "lastCheck": "refused"}]},
            "upstream a:1 is down: refused",
        ),
        (
            {"routes": [{"name": "t", "backends": [{"address": "b:1", "failed": True}]}]},
            "route t: b:1 failed",
        ),
        (
            {"tunnels": [{"id": 7, "target": "t:1", "stalled": "client stopped reading"}]},
            "1 tunnel is stalled: isthmus tunnels --stalled",
        ),
    ],
)
def test_what_to_look_at(more: dict[str, Any], says: str) -> None:
    assert made(server(**more)).look_at == (says,)


def test_on_paper(capsys: pytest.CaptureFixture[str]) -> None:
    stalled = {"id": 7, "target": "t\x1b:1", "stalled": "client stopped reading"}
    gates = [{"name": "A", "enabled": True}, {"name": "B", "enabled": False}]
    certificate = {"file": "s.crt", "notAfter": "2026-03-11T12:00:00Z"}
    later = {"file": "ca.crt", "notAfter": "2036-03-11T12:00:00Z"}
    snapshot = server(
        tunnels=[stalled] * 7, featureGates=gates, certificates=[certificate, later], truncated=3
    )
    found = made(
        snapshot, ready=(500, "[-]agents failed: none\n"), steps=[step(2, 1024, refused=1)]
    )
    print_reports([found], [("http://x:1", "http://x:1: nothing listens there")], wide=False)
    out, err = capsys.readouterr()
    assert err == "isthmus: http://x:1: nothing listens there\n"
    assert out.splitlines() == [
        "server  cp-1  0.1.0  127.0.0.1:8095",
        "  up            60m, since 2026-03-01T11:00:00Z",
        "  ready         no: agents: none",
        "  open          1 agent, 1 link, 10 tunnels",
        "  dials         2 in 10s, 1 failed (refused 1); 100 since the start, 3 failed",
        "  traffic       102B/s to targets, 205B/s to clients",
        *["  stalled       7 to t\\x1b:1: client stopped reading"] * 5,
        "  stalled       and 2 more: isthmus tunnels --stalled",
        "  certificate   s.crt expires in 10 days",
        "  feature gates A",
        "  look at       1 of 2 dials failed in the last 10s, most often: refused (1)",
        "  look at       7 tunnels are stalled: isthmus tunnels --stalled",
    ]
    assert report_json(found)["stalled"][0]["id"] == 7, "a number, as in the snapshot"
    print_reports([found], [], wide=True)
    wide, _ = capsys.readouterr()
    assert "  check         [-]agents failed: none\n" in wide
    assert "  certificate   ca.crt expires in 3663 days\n" in wide
    assert wide.count("  stalled  ") == 7


def test_the_memory_budget() -> None:
    held = [{"peer": "uid 0", "bytes": 3 << 20}, {"peer": "10.0.0.7", "bytes": 4096}]
    memory = {"usedBytes": (3 << 20) + 4096, "budgetBytes": 8 << 20, "peers": 4, "largest": held}
    found = made(server(memory=memory))
    assert found.look_at == ()
    assert report_json(found)["memory"] == memory
    assert report_json(made(server()))["memory"] is None, "an older program says nothing"
    full = made(server(memory={**memory, "usedBytes": 8 << 20}))
    assert [line for line in full.look_at if "memory budget is exhausted" in line]


def test_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    held = [{"peer": f"10.0.0.{number}\n", "bytes": 1 << 20} for number in range(3)]
    memory = {"usedBytes": 3 << 20, "budgetBytes": 8 << 20, "peers": 3, "largest": held}
    print_reports([made(server(memory=memory))], [], wide=False)
    shown = [line for line in capsys.readouterr().out.splitlines() if "memory" in line]
    assert len(shown) == 1
    assert "3.0MiB of 8.0MiB kept for peers, most for 10.0.0.0" in shown[0]
    assert "10.0.0.1" in shown[0] and "10.0.0.2" not in shown[0]
    print_reports([made(server(memory={**memory, "largest": [], "usedBytes": 0}))], [], wide=False)
    assert "memory        0B of 8.0MiB kept for peers\n" in capsys.readouterr().out
