"""What the admin port of real programs shows: history, logs, flags, networks; and its token."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, Target, free_port
from programs import COMMAND, ENVIRONMENT, Program, Programs
from stack import Stack, http_get, wait_until

import isthmus
from isthmus.frame import health
from isthmus.frame.health import Heartbeat

TOKEN = "0123456789abcdef0123456789abcdef"


def shown(port: int, path: str, token: str = "") -> Any:
    """What an admin port shows as JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


def test_the_history_of_a_server_and_its_agent(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "Heartbeat", partial(Heartbeat, beat_s=0.02))
    monkeypatch.setattr(health, "STEP_S", 0.05)
    fresh.add_server()
    fresh.add_agent()

    def steps(port: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = shown(port, "/history")["steps"]
        return found

    refused = free_port()
    with Target() as target, fresh.tunnel("uds", target.name) as client, target.accept() as far:
        client.send(b"x" * 1000)
        assert len(far.read_exactly(1000)) == 1000
        far.send(b"y" * 300)
        assert len(client.read_exactly(300)) == 300
        with fresh.uds() as other:
            other.send(f"CONNECT 127.0.0.1:{refused} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert other.read_head().startswith(b"HTTP/1.1 502 ")
        for program, agents in ((fresh.server, 1), (fresh.agent, 0)):
            port = program.admin_port

            def seen(port: int = port) -> bool:
                found = steps(port)
                failed = sum(it["failures"].get("connection refused", 0) for it in found)
                keys = ("dials", "bytesToTarget", "bytesToClient")
                sums = [sum(it[key] for it in found) for key in keys]
                return (failed, sums) == (1, [2, 1000, 300])

            wait_until(seen, "the steps add up to what was done")
            last = steps(port)[-1]
            assert (last["tunnels"], last["agents"], last["links"]) == (1, agents, 1)
    numbers = [it["number"] for it in steps(fresh.server.admin_port)]
    assert numbers == sorted(set(numbers))


def test_networks_and_who_is_in_them(fresh: Stack) -> None:
    server = fresh.add_server(
        cluster_network=(
            "east=127.1.0.0/16",
            "west=127.2.0.0/16",
            "near=127.3.0.0/16;via=direct",
            "far=127.4.0.0/16;via=server:http-connect:///run/far.sock",
        )
    )
    fresh.add_agent(agent_id="a", agent_network="EAST")
    fresh.add_agent(agent_id="b", agent_identifiers="ipv4=127.1.0.1")
    fresh.add_agent(agent_id="lost", agent_network="north")
    view = shown(server.admin_port, "/snapshot")
    assert view["networks"] == [
        {"name": "east", "way": "agents", "agents": 2},
        {"name": "west", "way": "agents", "agents": 0},
        {"name": "near", "way": "direct", "agents": 0},
        {"name": "far", "way": "server:http-connect:///run/far.sock", "agents": 0},
    ]
    assert {it["id"]: it["network"] for it in view["agents"]} == {
        "a": "east",
        "b": "east",
        "lost": "",
    }


def test_without_networks_an_agent_is_where_it_says(fresh: Stack) -> None:
    server = fresh.add_server()
    fresh.add_agent(agent_id="a", agent_network="north")
    view = shown(server.admin_port, "/snapshot")
    assert view["networks"] == [] and view["agents"][0]["network"] == "north"


def token_file(directory: Path, text: str = TOKEN) -> Path:
    path = directory / "token"
    path.write_text(text)
    path.chmod(0o600)
    return path


def linked(programs: Programs, *flags: str) -> tuple[Program, Program]:
    server = programs.server(*flags)
    return server, programs.agent(server, *flags)


def test_programs_show_their_log_and_their_flags(programs: Programs) -> None:
    for program, name in zip(linked(programs, "--v=3"), ("server", "agent"), strict=True):
        port = program.port("admin_port")
        lines = shown(port, "/logs")["lines"]
        assert any(it["msg"] == "serving" and it["admin_port"] == port for it in lines)
        assert all({"ts", "level", "logger", "msg"} <= it.keys() for it in lines)
        found = shown(port, "/configz")
        assert (found["program"], found["pid"]) == (name, program.process.pid)
        assert found["version"] == isthmus.__version__
        flags = found["flags"]
        assert flags["v"] == {"value": "3", "given": True}
        assert flags["log-format"] == {"value": "text", "given": False}
        if name == "server":
            assert flags["mode"]["given"] and flags["uds-name"]["value"] == programs.uds
            assert shown(port, "/audit") == {
                "kind": "AuditRecords",
                "enabled": False,
                "records": [],
            }


def test_a_program_with_a_token(programs: Programs, tmp_path: Path) -> None:
    path = token_file(tmp_path)
    for program in linked(programs, f"--admin-token-file={path}"):
        port = program.port("admin_port")
        assert http_get(port, "/livez") == (200, "ok")
        assert http_get(port, "/ui/")[0] == 200
        assert http_get(port, "/")[0] == 200  # which leads to /ui/
        for closed in ("/snapshot", "/logs", "/configz", "/debug/pprof/", "/ui/events"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            connection.request("GET", closed)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("WWW-Authenticate")) == (401, "Bearer"), closed
            connection.close()
        assert shown(port, "/snapshot?limit=0", TOKEN)["tunnels"] == []
        flags = shown(port, "/configz", TOKEN)["flags"]
        assert flags["admin-token-file"] == {"value": str(path), "given": True}
        assert TOKEN not in json.dumps(shown(port, "/logs", TOKEN)) + program.log
        assert http_get(program.port("health_port"), "/metrics")[0] == 200


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("too-short", "the token must have at least 16 characters, not 9;"),
        (None, "no such file"),
    ],
)
def test_a_wrong_token_is_one_sentence_and_nothing_listens(
    programs: Programs, tmp_path: Path, content: str | None, sentence: str
) -> None:
    path = token_file(tmp_path, content) if content else tmp_path / "none"
    ended = subprocess.run(
        [*COMMAND, "server", *programs.server_flags(), f"--admin-token-file={path}"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=LIMIT_S,
    )  # fmt: skip
    assert ended.returncode == 2
    assert f"--admin-token-file {path}: {sentence}" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not Path(programs.uds).exists()
