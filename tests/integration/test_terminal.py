"""The terminal tools against real programs: status, tunnels, agents."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from clients import LIMIT_S, Client, Target, ask, echo_target, free_port, head_for
from own_network import needs_root
from programs import COMMAND, ENVIRONMENT
from stack import Stack, http_get, wait_until
from terminal import Terminal

from isthmus.cli.main import main
from isthmus.frame import tunnels
from isthmus.frame.tunnels import why_stalled
from isthmus.frame.views import tally
from isthmus.tools.up.state import own_directory, tell_admin_ports
from isthmus.tools.watching import admin_flags

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "terminal.md"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def running(certificates: Any, link: str) -> Iterator[Stack]:
    """A server with two agents."""
    with Stack(certificates, link) as stack:
        stack.add_server(server_id="cp-1", enable_profiling=False)
        stack.add_agent(agent_id="node-1")
        stack.add_agent(agent_id="node-2")
        yield stack


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_ADMIN", raising=False)


def url(stack: Stack, program: Any = None) -> str:
    return f"http://127.0.0.1:{(program or stack.server).admin_port}"


def run(capsys: Captured, *args: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(args)
    return code, *capsys.readouterr()


def data(capsys: Captured, *args: str) -> Any:
    code, out, err = run(capsys, *args, "-o", "json")
    assert (code, err) == (0, ""), (out, err)
    return json.loads(out)


@contextlib.contextmanager
def carrying(stack: Stack, count: int) -> Iterator[list[Client]]:
    """So many open tunnels that have each carried a byte."""
    with echo_target() as target, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(stack.tunnel("uds", target.name)) for _ in range(count)]
        for client in clients:
            client.send(b"1")
            assert client.read_exactly(1) == b"1"
        yield clients


def test_status(stack: Stack, capsys: Captured) -> None:
    admin = ["--admin", url(stack), "--admin", url(stack, stack.agent)]
    with carrying(stack, 2):
        found = data(capsys, "status", *admin)
        code, out, _ = run(capsys, "status", *admin)
    assert found["kind"] == "Status" and found["ready"] is True and found["errors"] == []
    server, agent = found["programs"]
    assert (server["program"], server["id"]) == ("server", "cp-1")
    assert (server["agents"], server["links"], server["tunnels"]) == (2, 2, 2)
    assert (agent["program"], agent["id"], agent["agents"]) == ("agent", "node-1", None)
    assert agent["links"] == 1 and server["dials"] >= 2
    lines = out.splitlines()
    assert code == 0 and "\x1b" not in out
    assert lines[0].startswith("server  cp-1  ") and "  ready         yes" in lines
    assert "  open          2 agents, 2 links, 2 tunnels" in lines
    assert run(capsys, "status", "-o", "yaml", *admin)[1].startswith("kind: Status\n")


def test_status_of_the_last_minutes(fresh: Stack, capsys: Captured) -> None:
    server = fresh.add_server()
    fresh.add_agent()
    with fresh.uds() as refused:
        assert ask(refused, head_for(f"127.0.0.1:{free_port()}")).status == 502
    # What the program does every ten seconds.
    counted = fresh.do(lambda: tally(server.metrics, tunnels=0))
    fresh.do(lambda: server.health.history.take(counted, at=datetime.now(UTC)))
    (program,) = data(capsys, "status", "--admin", url(fresh))["programs"]
    assert program["dialsFailed"] == 1
    assert program["recent"]["seconds"] >= 10 and program["recent"]["dials"] == 1
    assert program["recent"]["failures"] == {"connection refused": 1}
    assert program["lookAt"][-1].startswith("1 of 1 dial failed in the last ")
    args = [*COMMAND, "status", "--admin", url(fresh)]
    with Terminal(args, ENVIRONMENT | {"PYTHONUTF8": "1"}, (24, 200)) as terminal:
        assert terminal.wait_exit() == 0
        assert "1 failed (connection refused 1)  " in terminal.text and "█" in terminal.text


def test_status_says_what_is_not_ready(fresh: Stack, capsys: Captured) -> None:
    fresh.add_server()
    code, out, _ = run(capsys, "status", "--admin", url(fresh))
    assert code == 1
    assert "  ready         no: agents: no connection to any proxy agent\n" in out
    dead = f"http://127.0.0.1:{free_port()}"
    fresh.add_agent()
    code, out, _ = run(capsys, "status", "-o", "json", "--admin", url(fresh), "--admin", dead)
    assert code == 1 and json.loads(out)["errors"][0]["url"] == dead
    code, out, err = run(capsys, "status", "--admin", dead)
    assert (code, out) == (1, "")
    assert err == f"isthmus: {dead}: nothing listens there (connection refused)\n"


def test_whatever_runs_on_the_usual_ports_is_found(
    stack: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the tests every port is a free one: these stand for the usual ones.
    ports = {stack.server.admin_port: "server", free_port(): "x", stack.agent.admin_port: "a"}
    ports[stack.server.health_port] = "no admin port"
    monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", ports)
    with carrying(stack, 3):
        programs = data(capsys, "status")["programs"]
        found = data(capsys, "tunnels")["items"]
    assert [each["id"] for each in programs] == ["cp-1", "node-1"]
    assert [each["server"] for each in found] == ["cp-1"] * 3, "once, though the agent has some"


def test_or_else_what_isthmus_up_started(
    stack: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", {free_port(): "server"})
    with own_directory(tmp_path / "isthmus") as directory:
        tell_admin_ports(directory, [stack.server.admin_port, free_port(), stack.agent.admin_port])
        programs = data(capsys, "status")["programs"]
        assert [each["id"] for each in programs] == ["cp-1", "node-1"]
    assert run(capsys, "status")[0] == 2, "it is gone"


def test_nothing_runs_here(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # somebody may be trying isthmus up
    port = free_port()
    monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", {port: "server"})
    for command in (["status"], ["tunnels"], ["agents"], ["top", "-b"], ["tunnels", "end", "1"]):
        assert run(capsys, *command) == (
            2,
            "",
            f"isthmus: no Isthmus program is running here (tried ports {port} (server)); name one"
            " with --admin=URL\n",
        )


@contextlib.contextmanager
def older(port: int) -> Iterator[str]:
    """An admin port as it was before: only a snapshot and readiness, passed on from a real one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = 404, "404 page not found\n"
            if self.path.startswith(("/snapshot", "/readyz")):
                status, text = http_get(port, self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(LIMIT_S)


def test_an_older_program_is_shown_as_far_as_it_tells(stack: Stack, capsys: Captured) -> None:
    with older(stack.server.admin_port) as old, carrying(stack, 1):
        (program,) = data(capsys, "status", "--admin", old)["programs"]
        assert program["recent"] is None and program["tunnels"] == 1
        assert "not known" in run(capsys, "status", "--admin", old)[1]
        (tunnel,) = data(capsys, "tunnels", "--admin", old)["items"]
        code, _, err = run(capsys, "tunnels", "end", str(tunnel["id"]), "--yes", "--admin", old)
        assert code == 2 and f"or {old} is too old to end tunnels" in err


def test_tunnels(stack: Stack, capsys: Captured) -> None:
    with carrying(stack, 3) as clients, Target() as other, stack.tunnel("tls", other.name) as last:
        last.send(b"12345")
        with other.accept() as far:
            assert far.read_exactly(5) == b"12345"
            admin = ["--admin", url(stack)]
            code, out, err = run(capsys, "tunnels", *admin)
            assert (code, err) == (0, "")
            head, *rows = (line.split() for line in out.splitlines())
            assert head == [
                "ID",
                "TARGET",
                "AGENT",
                "FRONTEND",
                "STATE",
                "TO-TARGET",
                "TO-CLIENT",
                "AGE",
            ]
            assert len(rows) == 4 and all(re.fullmatch(r"[0-9]+s", row[-1]) for row in rows)
            assert rows[-1][1] == other.name and rows[-1][5:7] == ["5B", "0B"]
            found = data(capsys, "tunnels", "--target", other.name, *admin)["items"]
            assert [each["target"] for each in found] == [other.name]
            assert found[0]["bytesToTarget"] == 5 and found[0]["requester"].startswith("cert")
            assert len(data(capsys, "tunnels", "--target", "127.*", *admin)["items"]) == 4
            largest = data(capsys, "tunnels", "--sort", "bytes", *admin)["items"][0]
            assert largest["target"] == other.name
            agents = {each["agentId"] for each in data(capsys, "tunnels", *admin)["items"]}
            for agent in agents:
                for each in data(capsys, "tunnels", "--agent", agent, *admin)["items"]:
                    assert each["agentId"] == agent
            rates = data(capsys, "tunnels", "--sort", "rate", *admin)["items"]
            assert all(each["bytesPerSecond"] == 0 for each in rates)
            assert data(capsys, "tunnels", "--stalled", *admin)["items"] == []
        assert len(clients) == 3
    stack.wait_idle()
    assert run(capsys, "tunnels", "--admin", url(stack)) == (
        0, "", "No tunnels found.\n",
    )  # fmt: skip


def test_top_as_data(stack: Stack, capsys: Captured) -> None:
    with carrying(stack, 1):
        frame = data(capsys, "top", "--count=1", "--admin", url(stack))
        assert frame["kind"] == "Top" and frame["errors"] == []
        (row,) = frame["items"]
        assert row["agentId"] in ("node-1", "node-2")
        code, out, _ = run(capsys, "top", "-b", "-n1", "-o", "wide", "--admin", url(stack))
        assert code == 0
        assert "REQUESTER" in out and row["connectionId"] in out


def completed(words: str) -> list[str]:
    """What a shell hears for the last word of a command line."""
    count = len(words.split(" ")) - 1
    asking = {"_ISTHMUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = subprocess.run(
        COMMAND, env=ENVIRONMENT | asking, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


def test_a_shell_is_told_the_ids_of_tunnels_and_agents(stack: Stack, capsys: Captured) -> None:
    admin = url(stack)
    assert completed(f"isthmus tunnels --admin {admin} --agent no") == ["node-1", "node-2"]
    assert completed(f"isthmus tunnels --admin {admin} --agent x") == []
    with carrying(stack, 2):
        ids = [str(each["id"]) for each in data(capsys, "tunnels", "--admin", admin)["items"]]
        assert sorted(completed(f"isthmus tunnels --admin {admin} end ")) == sorted(ids)
        assert sorted(completed(f"isthmus tunnels end --admin {admin} ")) == sorted(ids)
    nobody = f"http://127.0.0.1:{free_port()}"
    assert completed(f"isthmus tunnels end --admin {nobody} ") == []


def test_tunnels_of_several_programs(stack: Stack, capsys: Captured) -> None:
    admin = ["--admin", url(stack), "--admin", url(stack, stack.agent)]
    with carrying(stack, 4):
        found = data(capsys, "tunnels", *admin)["items"]
        wide = run(capsys, "tunnels", "-o", "wide", *admin)[1].splitlines()
        dead = f"http://127.0.0.1:{free_port()}"
        code, out, err = run(
            capsys, "tunnels", "-o", "json", "--admin", url(stack), "--admin", dead
        )
    assert {each["server"] for each in found} >= {"cp-1"}
    assert wide[0].split()[:2] == ["ID", "SERVER"]
    assert wide[0].split()[-3:] == ["REQUESTER", "CONNECTION", "STALLED"]
    assert code == 1 and "nothing listens there" in err and len(json.loads(out)["items"]) == 4
    assert run(capsys, "tunnels", "--admin", dead)[0] == 1


def test_watching_tunnels(stack: Stack) -> None:
    args = [*COMMAND, "tunnels", "-w", "--admin", url(stack)]
    with Terminal(args, ENVIRONMENT) as terminal:
        with carrying(stack, 2):
            terminal.wait(lambda: terminal.text.count("open") == 2, "both are shown")
        terminal.wait(lambda: terminal.text.count("ended") == 2, "both are said to have ended")
        assert terminal.text.count("FRONTEND") == 1, "one line of heads"
        terminal.type("\x03")
        assert terminal.wait_exit() == 130


def test_ending_a_tunnel(stack: Stack, capsys: Captured) -> None:
    with carrying(stack, 2) as clients:
        first, second = data(capsys, "tunnels", "--admin", url(stack))["items"]
        ended = ["tunnels", "end", str(first["id"]), "--admin", url(stack)]
        assert run(capsys, *ended) == (
            2,
            "",
            "isthmus: cannot ask without a terminal; give --yes to end the tunnel\n",
        )
        assert len(data(capsys, "tunnels", "--admin", url(stack))["items"]) == 2
        assert run(capsys, *ended, "--yes") == (
            0, f"tunnel {first['id']} to {first['target']} ended\n", "",
        )  # fmt: skip
        assert clients[0].recv() == b"", "a UNIX socket cannot be reset"
        # By its connection id, with the flags before the word, at a terminal.
        args = [*COMMAND, "tunnels", "--admin", url(stack), "end", second["connectionId"]]
        with Terminal(args, ENVIRONMENT) as terminal:
            terminal.wait(lambda: "[y/N]" in terminal.text, "it asks")
            terminal.type("n\n")
            assert terminal.wait_exit() == 130
        with Terminal(args, ENVIRONMENT) as terminal:
            terminal.wait(lambda: "[y/N]" in terminal.text, "it asks")
            terminal.type("y\n")
            assert terminal.wait_exit() == 0
        assert clients[1].recv() == b""
    code, _, err = run(capsys, *ended, "--yes")
    assert (code, err) == (2, f"isthmus: no such tunnel: {first['id']}\n")


def test_a_number_that_is_another_tunnels_by_now_is_not_ended() -> None:
    asked: list[str] = []

    class BeganAnew(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tunnel = {"id": 1, "target": "10.0.0.1:443", "connectionId": f"life-{len(asked)}"}
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"kind": "ServerSnapshot", "tunnels": [tunnel]}).encode())

        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BeganAnew) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        there = f"http://127.0.0.1:{server.server_port}"
        args = [*COMMAND, "tunnels", "end", "1", "--admin", there]
        with Terminal(args, ENVIRONMENT) as terminal:
            terminal.wait_screen("End tunnel 1, unknown to 10.0.0.1:443")
            terminal.type("y\r")
            assert terminal.wait_exit() == 2
            assert "the tunnel 1 to 10.0.0.1:443 has ended already" in terminal.text
        server.shutdown()
        thread.join(LIMIT_S)
    assert len(asked) == 2 and all(path.startswith("/snapshot") for path in asked)


def test_a_tunnel_that_two_programs_have(fresh: Stack, capsys: Captured) -> None:
    fresh.add_server(server_id="cp-1")
    agent = fresh.add_agent(agent_id="node-1")
    admin = ["--admin", url(fresh), "--admin", url(fresh, agent)]
    with carrying(fresh, 1) as (client,):
        (tunnel,) = data(capsys, "tunnels", "--admin", url(fresh))["items"]
        ending = ["tunnels", "end", tunnel["connectionId"], "--yes"]
        code, _, err = run(capsys, *ending, *admin)
        assert code == 2 and err.endswith("; choose one with --admin\n") and "cp-1 (" in err
        # The agent can end it as well.
        assert run(capsys, *ending, "--admin", url(fresh, agent))[0] == 0
        assert client.recv() == b""


def test_a_stalled_tunnel_says_why(
    fresh: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quickly(**held: Any) -> str:
        return why_stalled(**held, after_s=0.1)

    monkeypatch.setattr(tunnels, "why_stalled", quickly)
    fresh.add_server()
    fresh.add_agent()
    admin = ["--admin", url(fresh)]
    with Target() as target, fresh.tunnel("uds", target.name), target.accept() as far:
        far.sock.setblocking(False)

        def stalled() -> bool:
            with contextlib.suppress(BlockingIOError):
                far.sock.send(b"z" * 65536)
            return bool(data(capsys, "tunnels", "--stalled", *admin)["items"])

        wait_until(stalled, "nobody reads, and that is said")
        head, row = run(capsys, "tunnels", "--stalled", *admin)[1].splitlines()
        status = run(capsys, "status", *admin)[1]
    assert head.endswith("STALLED") and "client stopped reading; " in row
    assert f"to {target.name}: client stopped reading; " in status
    assert "1 tunnel is stalled: isthmus tunnels --stalled" in status


def test_agents(stack: Stack, capsys: Captured) -> None:
    admin = ["--admin", url(stack)]
    with carrying(stack, 2):
        code, out, err = run(capsys, "agents", *admin)
        found = data(capsys, "agents", *admin)["items"]
        wide = run(capsys, "agents", "-o", "wide", *admin)[1]
    head, *rows = (line.split() for line in out.splitlines())
    assert (code, err) == (0, "")
    assert head == ["ID", "VERSION", "ZONE", "NETWORK", "TUNNELS", "LINKS", "PING", "STATE", "AGE"]
    assert [(row[0], row[5], row[7]) for row in rows] == [
        ("node-1", "1", "Ready"), ("node-2", "1", "Ready"),
    ]  # fmt: skip
    assert sum(each["tunnels"] for each in found) == 2
    assert all(each["ageSeconds"] >= 0 and each["addresses"] for each in found)
    assert "certificate:isthmus-agent" in wide and "mux" in wide
    agent = ["--admin", url(stack, stack.agent)]
    code, _, err = run(capsys, "agents", *agent)
    assert code == 2 and "only servers know agents" in err
    both = run(capsys, "agents", *admin, *agent)[1]
    assert both.splitlines()[0].split()[1] == "VERSION", "there is one server only"


def test_agents_of_several_servers(fresh: Stack, capsys: Captured) -> None:
    first, second = fresh.add_server(server_id="a"), fresh.add_server(server_id="b")
    fresh.add_agent(agent_id="node-1")
    admin = ["--admin", url(fresh, first), "--admin", url(fresh, second)]
    head, row = run(capsys, "agents", *admin)[1].splitlines()
    assert head.split()[:2] == ["ID", "SERVER"] and row.split()[:2] == ["node-1", "a"]


def test_over_tls_with_a_certificate(fresh: Stack, capsys: Captured) -> None:
    files = fresh.files
    fresh.add_server(
        admin_cert=str(files.server_cert),
        admin_key=str(files.server_key),
        admin_client_ca=str(files.client_ca_cert),
    )
    fresh.add_agent()
    there = f"https://localhost:{fresh.server.admin_port}"
    known = ["--cacert", str(files.ca_cert)]
    shown = [*known, "--cert", str(files.client_cert), "--key", str(files.client_key)]
    assert len(data(capsys, "agents", "--admin", there, *shown)["items"]) == 1
    code, _, err = run(capsys, "agents", "--admin", there, *known)
    assert code == 1 and "wants a client certificate" in err
    code, _, err = run(capsys, "agents", "--admin", there)
    assert code == 1 and "its certificate is not trusted" in err
    code, _, err = run(capsys, "agents", "--admin", there.replace("https", "http"))
    assert code == 1 and "HTTPS" in err.upper()


def test_with_a_token(fresh: Stack, capsys: Captured, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-to-be-one\n")
    fresh.add_server(admin_token_file=str(token))
    fresh.add_agent()
    admin = ["--admin", url(fresh)]
    assert len(data(capsys, "agents", *admin, "--token-file", str(token))["items"]) == 1
    assert data(capsys, "status", *admin, "--token-file", str(token))["ready"] is True
    code, _, err = run(capsys, "agents", *admin)
    assert code == 1 and err.endswith("wants a token; give --token-file\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-that-is-long-enough-too")
    code, _, err = run(capsys, "agents", *admin, "--token-file", str(wrong))
    assert code == 1 and err.endswith("does not know the token of --token-file\n")


def test_a_token_file_that_is_not_there_is_said(
    stack: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", {stack.server.admin_port: "server"})
    assert run(capsys, "status", "--token-file", "/nowhere/token") == (
        2,
        "",
        "isthmus: cannot read --token-file /nowhere/token: no such file\n",
    )


@needs_root
def test_a_token_is_not_shown_to_whoever_listens_on_a_usual_port(
    fresh: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-to-be-one\n")
    token.chmod(0o600)
    fresh.add_server(server_id="cp-1", admin_token_file=str(token))
    fresh.add_agent()
    with stranger() as (port, heard):
        usual = {port: "server", fresh.server.admin_port: "agent"}
        monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", usual)
        code, out, err = run(capsys, "status", "-o", "json", "--token-file", str(token))
        said = json.loads(out)
        asked = heard()
    assert code == 0 and [each["id"] for each in said["programs"]] == ["cp-1"]
    assert f"127.0.0.1:{port} is not shown the token" in err
    assert asked.startswith("GET /snapshot") and "Authorization" not in asked
    # Whoever may read it anyway is shown it.
    token.chmod(0o644)
    with stranger() as (port, heard):
        monkeypatch.setattr(admin_flags, "PROGRAM_PORTS", {port: "server"})
        code, out, err = run(capsys, "status", "--token-file", str(token))
        assert "does not know the token" in err and "Authorization: Bearer a-token" in heard()


@contextlib.contextmanager
def stranger() -> Iterator[tuple[int, Callable[[], str]]]:
    """Another user's program that says 401 to everything; its port, and what it heard first."""
    script = (
        "import os, socket\n"
        "os.setuid(65534)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    client = listener.accept()[0]\n"
        "    print(client.recv(9999).decode().replace('\\r\\n', '|'), flush=True)\n"
        "    client.sendall(b'HTTP/1.1 401 No\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
        "    client.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.stdout.readline
        finally:
            process.kill()


def test_the_environment_names_programs(
    stack: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_ADMIN", f"{url(stack)} {url(stack, stack.agent)}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert len(data(capsys, "status")["programs"]) == 2
    assert len(data(capsys, "status", "--admin", url(stack))["programs"]) == 1


def test_colours_and_bars_are_for_terminals(stack: Stack) -> None:
    args = [*COMMAND, "status", "--admin", url(stack)]
    env = {key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"}
    with Terminal(args, env | {"PYTHONUTF8": "1"}) as terminal:
        assert terminal.wait_exit() == 0
        assert "\x1b[32myes" in terminal.raw and "ready         yes" in terminal.text
    with Terminal(args, env | {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait_exit() == 0
        assert "\x1b[" not in terminal.raw and "ready         yes" in terminal.text


def test_the_document_lists_every_key(stack: Stack, capsys: Captured) -> None:
    text = DOCUMENT.read_text()
    listed = set(re.findall(r"^\| `([A-Za-z]+)` \|", text, re.MULTILINE))
    admin = ["--admin", url(stack)]
    with carrying(stack, 1):
        printed = [data(capsys, *words, *admin) for words in (["status"], ["tunnels"], ["agents"])]
    keys = set().union(*printed)
    for found in printed:
        for each in (*found.get("programs", ()), *found.get("items", ())):
            keys |= each.keys()
            keys |= (each.get("recent") or {}).keys()
            keys |= {key for one in each.get("certificates", ()) for key in one}
    assert keys <= listed, "not in the document"


def test_what_the_document_shows_can_be_typed(stack: Stack, capsys: Captured) -> None:
    lines = re.findall(r"^(?:\$ )?isthmus (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        words = line.split(" | ")[0].split()
        command = next(word for word in words if not word.startswith("-"))
        assert run(capsys, command, "--help")[0] == 0
        for flag in re.findall(r"(?<!\S)(--[a-z-]+)", line):
            assert (
                flag
                in run(capsys, command, "--help")[1]
                + run(capsys, command, *(["end"] if "end" in words else []), "--help")[1]
            ), line


def test_yaml_is_what_json_is(stack: Stack, capsys: Captured) -> None:
    admin = ["--admin", url(stack)]
    with carrying(stack, 1):
        (one,) = yaml.safe_load(run(capsys, "tunnels", "-o", "yaml", *admin)[1])["items"]
        (other,) = data(capsys, "tunnels", *admin)["items"]
    assert one | {"ageSeconds": 0} == other | {"ageSeconds": 0}
