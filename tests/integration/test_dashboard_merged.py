"""``isthmus dashboard``: several running programs as one page, lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from clients import LIMIT_S, Target, free_port
from dashboard_bed import Watcher, ask, end_tunnel
from programs import COMMAND, ENVIRONMENT, Programs
from stack import Stack

from isthmus.frame.admin.ports import AdminAccess, Port, serve
from isthmus.frame.dashboard import merging, picture, source
from isthmus.frame.dashboard.merging import MergedFeed
from isthmus.frame.dashboard.routes import Dashboard, not_ours, page
from isthmus.tools.watching.admin_flags import AdminFlags
from isthmus.tools.watching.command_dashboard import _remote

TOKEN = "a-token-of-a-test-0123456789"


@contextlib.contextmanager
def merged(stack: Stack, *urls: str, **files: str) -> Iterator[int]:
    """A merged page of these sources in the loop of the stack; gives its port."""
    flags = AdminFlags(urls=urls, **files)
    remotes = [_remote(flags, client.url, client.address) for client in flags.clients()]

    async def start() -> tuple[Dashboard, Port]:
        feed = MergedFeed(remotes)
        made = page(feed, feed.end, admit=not_ours)
        opened = await serve(
            made.routes, host="127.0.0.1", port=0, host_flag="--h", port_flag="--p",
            access=AdminAccess(open_paths=made.open_paths),
        )  # fmt: skip
        return made, opened

    made, opened = stack.run(start())
    try:
        yield opened.number
    finally:
        stack.do(made.close)
        stack.run(opened.close())


def url(port: int, scheme: str = "http", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{host}:{port}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost sources are tried again soon."""
    monkeypatch.setattr(source, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(source, "LONGEST_WAIT_S", 0.1)


def test_two_programs_on_one_page(stack: Stack) -> None:
    server, agent = stack.server, stack.agent
    urls = url(server.admin_port), url(agent.admin_port)
    with Target() as target, merged(stack, *urls) as port, Watcher(port) as shown:
        name, hello = shown.event()
        assert name == "hello"
        assert hello["sources"] == [
            {"id": "0", "program": "server", "instance": server.id, "canEnd": True,
             "address": f"127.0.0.1:{server.admin_port}"},
            {"id": "1", "program": "agent", "instance": agent.id, "canEnd": True,
             "address": f"127.0.0.1:{agent.admin_port}"},
        ]  # fmt: skip
        fulls = [shown.event(), shown.event()]
        assert [(name, data["source"], data["snapshot"]["kind"]) for name, data in fulls] == [
            ("full", "0", "ServerSnapshot"), ("full", "1", "AgentSnapshot"),
        ]  # fmt: skip
        with stack.tunnel("uds", target.name) as client, target.accept() as far:
            client.send(b"x" * 77)
            far.read_exactly(77)
            for number in ("0", "1"):
                shown.until(
                    lambda *_, number=number: [
                        it["bytesToTarget"] for it in shown.tunnels(number)
                    ] == [77],
                    f"the tunnel at {number}",
                )  # fmt: skip
            with Watcher(port) as newcomer:
                assert newcomer.event()[0] == "hello"
                assert {newcomer.event()[1]["source"] for _ in range(2)} == {"0", "1"}
                assert [it["bytesToTarget"] for it in newcomer.tunnels("1")] == [77]


def test_a_source_that_ends_is_lost_and_found_again(fresh: Stack, impatient: None) -> None:
    admin_port = free_port()
    first = fresh.add_server(admin_port=admin_port)
    other = fresh.add_server()
    with (
        merged(fresh, url(admin_port), url(other.admin_port)) as port,
        Watcher(port) as shown,
    ):
        assert shown.next("hello")["sources"][0]["instance"] == first.id
        shown.next("full")
        fresh.stop(first)
        lost = shown.next("lost")
        assert lost == {"source": "0", "why": f"{url(admin_port)} ended the stream"}
        again = shown.next("lost")
        assert again["why"] == f"{url(admin_port)}: nothing listens there (connection refused)"
        # The other one goes on, and who comes now hears of both.
        shown.until(lambda name, it: (name, it["source"]) == ("delta", "1"), "the other's delta")
        with Watcher(port) as newcomer:
            assert [newcomer.event()[0] for _ in range(3)] == ["hello", "full", "lost"]
        second = fresh.add_server(admin_port=admin_port, uds_name=str(fresh.dir / "second.sock"))
        # It is another one: everybody is introduced again.
        assert shown.next("hello")["sources"][0]["instance"] == second.id
        assert {shown.event()[1]["source"] for _ in range(2)} == {"0", "1"}
        shown.until(lambda name, it: (name, it["source"]) == ("delta", "0"), "its delta")


def test_the_same_program_that_comes_back_is_a_full(fresh: Stack, impatient: None) -> None:
    admin_port = free_port()
    first = fresh.add_server(admin_port=admin_port, server_id="same")
    with merged(fresh, url(admin_port)) as port, Watcher(port) as shown:
        shown.next("full")
        fresh.stop(first)
        shown.next("lost")
        fresh.add_server(admin_port=admin_port, server_id="same")
        names = []
        while "delta" not in names:
            names.append(shown.event()[0])
        assert set(names) <= {"lost", "full", "delta"} and names[-2:] == ["full", "delta"]


def test_a_page_begins_without_those_who_do_not_answer(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh.add_server()
    monkeypatch.setattr(merging, "INTRODUCE_S", 0.3)
    with Target() as silent, merged(fresh, url(server.admin_port), url(silent.port)) as port:
        with Watcher(port) as shown:
            hello = shown.next("hello")
            assert [it["program"] for it in hello["sources"]] == ["server", ""]
            assert shown.event()[1]["source"] == "0"
        with silent.accept() as asked:
            assert b"GET /ui/events HTTP/1.1\r\n" in asked.read_head()


def test_sources_rest_while_nobody_looks(fresh: Stack) -> None:
    server = fresh.add_server()

    def tasks() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks(fresh.loop)}

    with merged(fresh, url(server.admin_port)) as port:
        with Watcher(port) as shown:
            shown.next("full")
            assert {"dashboard", f"source:127.0.0.1:{server.admin_port}"} <= fresh.do(tasks)
        fresh.wait(lambda: not any(n.startswith(("source", "dash")) for n in tasks()), "all rest")
        with Watcher(port) as shown:
            shown.next("full")


# Credentials.


def token_file(directory: Path, token: str = TOKEN) -> Path:
    file = directory / f"token-{len(list(directory.iterdir()))}"
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    return file


def test_a_source_with_a_token(fresh: Stack, tmp_path: Path, impatient: None) -> None:
    file = token_file(tmp_path)
    server = fresh.add_server(admin_token_file=str(file))
    fresh.add_agent()
    with merged(fresh, url(server.admin_port), token_file=str(file)) as port:
        with Watcher(port) as shown:
            shown.next("full")
        with Target() as target, fresh.tunnel("uds", target.name), target.accept() as far:
            reply = end_tunnel(port, "0", 1)
            assert (reply.status, json.loads(reply.body)["ended"]) == (200, 1)
            with pytest.raises(ConnectionResetError):
                far.recv()
        reply = end_tunnel(port, "0", 999)
        assert (reply.status, reply.body) == (404, b"no such tunnel: 999\n")
        assert end_tunnel(port, "7", 1).status == 404
    wrong = token_file(tmp_path, "another-token-0123456789")
    with merged(fresh, url(server.admin_port), token_file=str(wrong)) as port:
        with Watcher(port) as shown:
            said = shown.next("lost")["why"]
            assert said == f"{url(server.admin_port)} requires a valid token; see --token-file"
            wrong.write_text(TOKEN)  # read again each time
            shown.next("full")
        assert end_tunnel(port, "0", 999).status == 404


def test_a_source_with_certificates(fresh: Stack, impatient: None) -> None:
    files = fresh.files
    server = fresh.add_server(
        admin_cert=str(files.server_cert), admin_key=str(files.server_key),
        admin_client_ca=str(files.client_ca_cert),
    )  # fmt: skip
    at = url(server.admin_port, "https", "localhost")
    mine = {"cert": str(files.client_cert), "key": str(files.client_key)}
    with merged(fresh, at, cacert=str(files.ca_cert), **mine) as port, Watcher(port) as shown:
        assert shown.next("full")["snapshot"]["serverId"] == server.id
        assert end_tunnel(port, "0", 999).status == 404
    with merged(fresh, at, cacert=str(files.ca_cert)) as port, Watcher(port) as shown:
        assert "wants a client certificate" in shown.next("lost")["why"]
        reply = end_tunnel(port, "0", 999)
        assert reply.status == 502 and b"wants a client certificate" in reply.body
    with merged(fresh, at, **mine) as port, Watcher(port) as shown:
        assert "its certificate is not trusted" in shown.next("lost")["why"]
    plain = url(server.admin_port)
    with merged(fresh, plain) as port, Watcher(port) as shown:
        assert shown.next("lost")["why"].startswith(f"{plain}: ")


def test_what_is_no_program_of_ours_is_lost(fresh: Stack, impatient: None) -> None:
    with Target() as other, merged(fresh, url(other.port)) as port, Watcher(port) as shown:
        answers = {
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n": "has no dashboard",
            b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n":
                "answered with status 302",
            b"HTTP/1.1 200 OK\r\n\r\nevent: hello\ndata: {}\n\n": "invalid hello event",
            b"HTTP/1.1 200 OK\r\n\r\nevent: hello\ndata: hi\n\n": "not JSON",
            b"SSH-2.0-OpenSSH_9\r\n": "does not answer in HTTP",
            b"": "hung up without an answer",
        }  # fmt: skip
        for answer, why in answers.items():
            for _ in range(1 if answer else 2):  # who hangs up is asked once more, at once
                with other.accept() as asked:
                    asked.read_head()
                    asked.send(answer)
            assert why in shown.next("lost")["why"], answer


def test_a_source_that_grows_without_end_is_lost(
    fresh: Stack, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "MOST_BYTES", 1000)
    monkeypatch.setattr(source, "LOOKED_AT_EVERY_BYTES", 3000)
    snapshot = {"kind": "ServerSnapshot", "tunnels": [], "links": []}
    everything = {"snapshot": snapshot, "history": [], "audit": {"enabled": False, "records": []}}
    first = {"id": "0", "program": "server", "instance": "x", "canEnd": False}

    async def events(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        told = [("hello", {"sources": [first]}), ("full", everything)]
        told += [("delta", {"snapshot": {f"key-{number}": "x" * 100}}) for number in range(100)]
        for name, data in told:
            data = {**data, "source": "0", "at": "2026-11-16T12:00:00Z"}
            await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        await asyncio.sleep(LIMIT_S)
        return response

    opened = fresh.run(
        serve({"/ui/events": events}, host="127.0.0.1", port=0, host_flag="--h", port_flag="--p")
    )
    try:
        with merged(fresh, url(opened.number)) as port, Watcher(port) as shown:
            why = shown.next("lost")["why"]
    finally:
        fresh.run(opened.close())
    assert why == "a feed has grown to more than 1000 bytes"


# Who may look.


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_other_users_of_the_machine_are_refused(fresh: Stack) -> None:
    server = fresh.add_server()
    with merged(fresh, url(server.admin_port)) as port:

        def asked_by_nobody(path: str) -> str:
            curl = ["curl", "--silent", "--noproxy", "*", "--max-time", "10", f"{url(port)}{path}"]
            ran = subprocess.run(
                curl, capture_output=True, text=True, timeout=LIMIT_S, user=65534, cwd="/"
            )
            return ran.stdout

        assert asked_by_nobody("/ui/events") == (
            "this page is only for root and the user who started it; this request is from nobody\n"
        )
        assert asked_by_nobody("/ui/").startswith("<!doctype html>")


# The command.


@contextlib.contextmanager
def command(*args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command as a process, and the port that it says it serves."""
    process = subprocess.Popen(
        [*COMMAND, "dashboard", "--port=0", *args], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE, env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(
            r"dashboard at http://127\.0\.0\.1:(\d+)/ui/ of .*; Ctrl-C ends it\n", said
        )
        assert found, said
        yield process, int(found[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)


def test_the_command_shows_programs(programs: Programs) -> None:
    server = programs.server()
    agent = programs.agent(server)
    urls = [f"--admin={url(one.port('admin_port'))}" for one in (server, agent)]
    with command(*urls) as (process, port):
        assert ask(port, "/ui/").status == 200
        with Watcher(port) as shown:
            assert [it["program"] for it in shown.next("hello")["sources"]] == ["server", "agent"]
            shown.until(lambda name, it: (name, it["source"]) == ("delta", "1"), "a delta")
            process.send_signal(signal.SIGINT)
            while not shown.ended:
                shown.line()
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--admin=ftp://x:1"], "--admin ftp://x:1: the scheme is http or https"),
        (["--admin=http://127.0.0.1:1", "--bind-address=0.0.0.0"], "is not loopback"),
        (["--admin=https://127.0.0.1:1", "--cacert=/nonexistent"], "--cacert /nonexistent"),
        (["--admin=http://127.0.0.1:1", "--token-file=/nonexistent"], "--token-file /nonexistent"),
        (["--admin=http://127.0.0.1:1", "--port=70000"], "--port"),
    ],
)
def test_wrong_flags_are_one_sentence(args: list[str], said: str) -> None:
    ran = subprocess.run(
        [*COMMAND, "dashboard", *args], capture_output=True, text=True, timeout=LIMIT_S,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert ran.returncode == 2 and ran.stdout == ""
    assert said in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
