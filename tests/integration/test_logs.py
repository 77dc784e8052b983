"""Logs as docs/how-to/logs.md shows them: how much, in which form, one id for a connection."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from clients import Target, ask, free_port, head_for
from programs import Program, Programs
from stack import http_get, wait_until

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "logs.md"
LINE = re.compile(r"[DIWEF][0-9]{4} [0-9:]{8}\.[0-9]{3} [a-z0-9_.-]+\] \S.*")


def one_of_each(programs: Programs, server: Program) -> tuple[str, str]:
    """The ids of a connection that worked and of one that did not, as their clients heard them."""
    with Target() as target, programs.connect_uds() as client:
        client.send(head_for(target.name))
        head = client.read_head().decode()
        with target.accept() as far:
            client.send(b"12")
            assert far.read_exactly(2) == b"12"
    with programs.connect_uds() as refused:
        answer = ask(refused, head_for(f"127.0.0.1:{free_port()}"))
    found = [re.search(r"(?i)isthmus-connection-id: (\S+)", each) for each in (head, answer.head)]
    assert found[0] is not None and found[1] is not None
    return found[0][1], found[1][1]


def lines(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.log.splitlines()]


def about(program: Program, connection: str) -> list[str]:
    return [each["msg"] for each in lines(program) if each.get("connection") == connection]


def start(programs: Programs, *more: str) -> tuple[Program, Program]:
    """A server and its agent, whatever their logs look like."""
    health, port = free_port(), free_port()
    fixed = (f"--health-port={health}", f"--agent-port={port}")
    server = programs.start("server", *programs.server_flags(), *fixed, *more)
    agent = programs.start("agent", *programs.agent_flags(port), *more)

    def ready() -> bool:
        try:
            return http_get(health, "/readyz")[0] == 200
        except OSError:
            return False

    wait_until(ready, "the server is ready")
    return server, agent


def test_json_lines_with_one_id_for_one_connection(programs: Programs) -> None:
    server, agent = start(programs, "--log-format=json", "-v=5")
    worked, failed = one_of_each(programs, server)
    for program in (server, agent):
        wait_until(lambda it=program: about(it, worked) == ["tunnel ended"], "it is logged")  # type: ignore[misc]
        wait_until(lambda it=program: about(it, failed) == ["dial failed"], "it is logged")  # type: ignore[misc]
    (ended,) = [each for each in lines(server) if each.get("connection") == worked]
    assert (ended["to_target"], ended["level"], ended["logger"]) == (2, "debug", "isthmus.tunnel")
    assert datetime.fromisoformat(ended["ts"]).utcoffset() is not None
    shown = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith('{"ts"'))
    assert list(json.loads(shown)) == list(ended), "the document shows another line"


def test_text_lines(programs: Programs) -> None:
    server, _ = start(programs, "-v=5")
    worked, _ = one_of_each(programs, server)
    server.wait_log(f'connection="{worked}"')
    written = server.log.splitlines()
    assert all(LINE.fullmatch(line) for line in written)
    shown = [line for line in DOCUMENT.read_text().splitlines() if LINE.fullmatch(line)]
    assert len(shown) == 4
    for line in shown:
        sentence = re.split(r" \w+=", line)[0].partition("] ")[2]
        (real,) = [each for each in written if f"] {sentence} " in each]
        keys = re.findall(r" (\w+)=", line)
        assert [key for key in re.findall(r" (\w+)=", real) if key in keys] == keys, sentence


@pytest.mark.parametrize(("level", "says"), [(0, False), (2, True)])
def test_a_program_that_works_is_quiet(programs: Programs, level: int, says: bool) -> None:
    server, agent = start(programs, f"--v={level}")
    worked, failed = one_of_each(programs, server)
    server.wait_log(f'connection="{failed}"')
    for program in (server, agent):
        assert worked not in program.log, "nothing is said of what worked"
    assert ("serving" in server.log) is says and ("linked" in agent.log) is says
    assert len(server.log.splitlines()) == (3 if says else 1)
