"""The administrative port of running programs: HTTPS, liveness that can fail, profiles."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import shutil
import ssl
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, Target
from programs import COMMAND, ENVIRONMENT
from stack import Program, Server, Stack, client_context, http_get, metric, wait_until

from isthmus.frame import health, lifecycle
from isthmus.frame.health import Heartbeat
from isthmus.net.contexts import watch
from isthmus.tools.pki import making as pki
from isthmus.wire import pprof_pb2

REFUSED = (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)


def admin_flags(files: pki.PkiFiles, *, mutual: bool = True) -> dict[str, str]:
    """The settings of an admin port with TLS."""
    given = {"admin_cert": str(files.server_cert), "admin_key": str(files.server_key)}
    return given | ({"admin_client_ca": str(files.client_ca_cert)} if mutual else {})


def https_get(
    port: int, path: str, context: ssl.SSLContext, host: str = "localhost"
) -> tuple[int, bytes]:
    """Ask an admin port over TLS; the status and the body."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=LIMIT_S, context=context)
    context.check_hostname = True
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def trusting(files: pki.PkiFiles) -> ssl.SSLContext:
    """A client that shows no certificate."""
    return ssl.create_default_context(cafile=str(files.ca_cert))


def started(stack: Stack, kind: str, **settings: Any) -> Program:
    """A server, or an agent beside a server, with these settings."""
    if kind == "server":
        return stack.add_server(**settings)
    if not stack.servers:
        stack.add_server()
    return stack.add_agent(**settings)


both = pytest.mark.parametrize("kind", ["server", "agent"])


# TLS.


@both
def test_https_with_a_client_certificate(fresh: Stack, kind: str) -> None:
    program = started(fresh, kind, **admin_flags(fresh.files))
    context = client_context(fresh.files)
    status, body = https_get(program.admin_port, "/snapshot", context)
    view = json.loads(body)
    assert status == 200 and view["kind"] == f"{kind.capitalize()}Snapshot"
    assert {it["file"] for it in view["certificates"]} >= {str(fresh.files.server_cert)}
    assert https_get(program.admin_port, "/livez", context) == (200, b"ok")
    # With a certificate the name that it was asked by does not matter.
    assert https_get(program.admin_port, "/livez", context, host="node-1.example")[0] == 200
    health_port = program.health_port
    assert http_get(health_port, "/livez") == (200, "ok")  # plain, as kubelet asks it


@both
def test_nobody_else_gets_an_answer(fresh: Stack, kind: str, tmp_path: Path) -> None:
    program = started(fresh, kind, **admin_flags(fresh.files))
    with pytest.raises(REFUSED):
        https_get(program.admin_port, "/livez", trusting(fresh.files))
    strangers = pki.init(tmp_path / "other", server_names=("localhost", "127.0.0.1"))
    stranger = trusting(fresh.files)
    stranger.load_cert_chain(strangers.client_cert, strangers.client_key)
    with pytest.raises(REFUSED):
        https_get(program.admin_port, "/livez", stranger)
    with pytest.raises((http.client.HTTPException, OSError)):
        http_get(program.admin_port, "/livez")
    assert https_get(program.admin_port, "/livez", client_context(fresh.files))[0] == 200
    if isinstance(program, Server):
        text = fresh.metrics()
        name = "isthmus_server_tls_refused_total"
        assert metric(text, f'{name}{{port="admin",reason="no_certificate"}}') == 1
        assert metric(text, f'{name}{{port="admin",reason="bad_certificate"}}') == 1
        assert metric(text, f'{name}{{port="admin",reason="not_tls"}}') == 1


def test_tls_alone_is_enough_on_loopback_and_the_host_is_guarded(fresh: Stack) -> None:
    server = fresh.add_server(**admin_flags(fresh.files, mutual=False))
    context = trusting(fresh.files)
    assert https_get(server.admin_port, "/snapshot?limit=0", context)[0] == 200
    status, body = https_get(server.admin_port, "/snapshot", context, host="evil.example")
    assert (status, body) == (403, b"this port answers only requests for a loopback host name\n")


def test_curl_reads_it(fresh: Stack) -> None:
    files = fresh.files
    server = fresh.add_server(**admin_flags(files))
    url = f"https://localhost:{server.admin_port}/livez?verbose"
    curl = ["curl", "--silent", "--show-error", "--noproxy", "*", "--cacert", str(files.ca_cert)]
    mine = ["--cert", str(files.client_cert), "--key", str(files.client_key)]
    asked = subprocess.run([*curl, *mine, url], capture_output=True, text=True, timeout=LIMIT_S)
    assert asked.stdout.startswith("[+]ping ok\n[+]event-loop ok\n"), asked.stderr
    assert asked.stdout.endswith("check passed\n")
    refused = subprocess.run([*curl, url], capture_output=True, text=True, timeout=LIMIT_S)
    assert refused.returncode != 0 and refused.stdout == ""


def test_an_admin_port_for_the_network(fresh: Stack) -> None:
    server = fresh.add_server(admin_bind_address="0.0.0.0", **admin_flags(fresh.files))
    context = client_context(fresh.files)
    assert https_get(server.admin_port, "/livez", context, host="10.0.0.7")[0] == 200
    with pytest.raises(REFUSED):
        https_get(server.admin_port, "/livez", trusting(fresh.files))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--admin-bind-address=0.0.0.0"], "which needs --admin-cert and --admin-key"),
        (["--admin-cert=/none.crt", "--admin-key=/none.key"], "/none.crt: no such file"),
    ],
)
def test_wrong_flags_are_one_sentence_and_nothing_listens(
    certificates: pki.PkiFiles, tmp_path: Path, flags: list[str], sentence: str
) -> None:
    uds = tmp_path / "s.sock"
    ended = subprocess.run(
        [
            *COMMAND, "server", f"--uds-name={uds}", "--mode=http-connect", "--agent-port=0",
            f"--cluster-cert={certificates.server_cert}",
            f"--cluster-key={certificates.server_key}",
            f"--cluster-ca-cert={certificates.ca_cert}", "--health-port=0", *flags,
        ],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=LIMIT_S,
    )  # fmt: skip
    assert ended.returncode == 2
    assert sentence in ended.stderr and ended.stderr.count("\n") == 1
    assert not uds.exists()


def test_the_admin_certificate_is_replaced_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "watch", partial(watch, interval_s=0.02))
    files = pki.init(tmp_path / "pki", server_names=("localhost", "127.0.0.1"))
    mine = tmp_path / "admin"
    mine.mkdir()
    for name in ("server.crt", "server.key", "client-ca.crt"):
        shutil.copy(files.directory / name, mine / name)
    later = pki.init(tmp_path / "later", server_names=("localhost", "127.0.0.1"))
    with Stack(files) as stack:
        server = stack.add_server(
            admin_cert=str(mine / "server.crt"),
            admin_key=str(mine / "server.key"),
            admin_client_ca=str(mine / "client-ca.crt"),
        )
        port = server.admin_port
        assert https_get(port, "/livez", client_context(files))[0] == 200
        for name in ("server.crt", "server.key", "client-ca.crt"):
            shutil.copy(later.directory / name, mine / f"{name}.new")
        for name in ("server.crt", "server.key", "client-ca.crt"):
            (mine / f"{name}.new").replace(mine / name)

        def renewed() -> bool:
            with contextlib.suppress(*REFUSED):
                return https_get(port, "/livez", client_context(later))[0] == 200
            return False

        wait_until(renewed, "it shows the new certificate and asks for the new authority's")
        # Whoever only has a certificate of the old authority is out.
        old = ssl.create_default_context(cafile=str(later.ca_cert))
        old.load_cert_chain(files.client_cert, files.client_key)
        with pytest.raises(REFUSED):
            https_get(port, "/livez", old)


# Liveness.


def listening(program: Server) -> list[str]:
    found = [*program.doors.listeners, *program.agent_door.listeners]
    return [f"[+]listener:{it.name} ok" for it in found]


def test_what_a_server_lives_by(fresh: Stack) -> None:
    server = fresh.add_server()
    for port in (server.health_port, server.admin_port):
        status, text = http_get(port, "/healthz?verbose")
        assert status == 200
        assert text.splitlines() == [
            "[+]ping ok",
            "[+]event-loop ok",
            *listening(server),
            "[+]listener:health-port ok",
            "[+]listener:admin-port ok",
            "[+]task:reload ok",
            "[+]task:sweep ok",
            "check passed",
        ]
    assert len(listening(server)) == 3
    assert metric(fresh.metrics(), "isthmus_server_loop_stalls_total") == 0


def failed(program: Program) -> str:
    """What the probe says once it is bad; the status is the program's own."""
    found: list[tuple[int, str]] = []

    def bad() -> bool:
        found[:] = [http_get(program.health_port, "/healthz")]
        return found[0][0] != 200

    wait_until(bad, "the program says that it is not well")
    status, text = found[0]
    assert status == (500 if isinstance(program, Server) else 503)
    assert http_get(program.admin_port, "/livez")[0] == status
    return text


@pytest.mark.parametrize("door", ["frontend", "agents", "admin"])
def test_a_listener_that_is_closed_from_inside(fresh: Stack, door: str) -> None:
    server = fresh.add_server()
    if door == "admin":
        assert server.ports is not None
        admin = server.ports.open_ones["admin-port"]
        fresh.do(lambda: admin._sockets[0].shutdown(2))
        status, text = http_get(server.health_port, "/livez")
        assert status == 500
        assert "[-]listener:admin-port failed: its socket does not listen\n" in text
        return
    doors = server.doors if door == "frontend" else server.agent_door
    listener = doors.listeners[-1]
    sock = listener._sock
    fresh.do(lambda: sock.shutdown(2))
    assert f"[-]listener:{listener.name} failed: its socket does not listen\n" in failed(server)


def test_a_socket_file_that_is_removed(fresh: Stack) -> None:
    server = fresh.add_server()
    path = server.settings.uds_name
    Path(path).unlink()
    assert f"[-]listener:{path} failed: its file was removed or replaced\n" in failed(server)


@pytest.mark.parametrize(("kind", "task"), [("server", "reload"), ("agent", "servers")])
def test_a_task_that_was_killed(fresh: Stack, kind: str, task: str) -> None:
    program = started(fresh, kind)
    assert http_get(program.health_port, "/livez") == (200, "ok")

    def kill() -> None:
        own = {it.get_name(): it for group in program.health._groups for it in group._made}
        own[task].cancel()

    fresh.do(kill)
    assert f"[-]task:{task} failed: was cancelled\n" in failed(program)


def test_a_draining_server_lives(fresh: Stack) -> None:
    server = fresh.add_server()
    fresh.run(server.drain(0.0))
    assert http_get(server.health_port, "/readyz")[0] == 500
    assert http_get(server.health_port, "/livez") == (200, "ok")


@both
def test_a_loop_that_is_stuck(
    fresh: Stack, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick = partial(Heartbeat, beat_s=0.02, stall_s=0.2)
    monkeypatch.setattr(health, "Heartbeat", quick)
    program = started(fresh, kind)
    assert http_get(program.health_port, "/livez") == (200, "ok")
    go_on = threading.Event()
    fresh.loop.call_soon_threadsafe(partial(hold, go_on))
    with pytest.raises(TimeoutError):
        asked = http.client.HTTPConnection("127.0.0.1", program.health_port, timeout=0.3)
        with contextlib.closing(asked):
            asked.request("GET", "/livez")
            asked.getresponse()

    def said() -> list[str]:
        records = [it for it in caplog.records if it.getMessage() == "the event loop is stuck"]
        return [getattr(it, "fields", {})["stuck_in"] for it in records]

    wait_until(lambda: bool(said()), "the watchdog says where the loop is")
    assert any("hold (integration/test_admin.py:" in each for each in said())
    go_on.set()
    assert "[-]event-loop failed: it was stuck for " in failed(program)
    name = f"isthmus_{kind}_loop_stalls_total"
    assert metric(fresh.metrics(program), name) == 1


def hold(until: threading.Event) -> None:
    """Keep the event loop from turning."""
    assert until.wait(LIMIT_S)


# Profiles.


@contextlib.contextmanager
def traffic(stack: Stack) -> Iterator[None]:
    """Questions and answers through a tunnel for as long as the block lasts."""
    over = threading.Event()
    failures: list[BaseException] = []
    turns = 0

    def run() -> None:
        nonlocal turns
        try:
            with Target() as target, stack.tunnel("tls", target.name) as client:
                far = target.accept()
                with far:
                    while not over.is_set():
                        client.send(b"x" * 20_000)
                        assert len(far.read_exactly(20_000)) == 20_000
                        far.send(b"answer")
                        assert client.read_exactly(6) == b"answer"
                        turns += 1
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: turns > 0 or bool(failures), "something goes through")
        yield
    finally:
        over.set()
        thread.join(LIMIT_S)
    assert not failures and turns > 1


def get(program: Program, path: str) -> tuple[int, bytes]:
    """Ask the admin port for a body of bytes."""
    asked = http.client.HTTPConnection("127.0.0.1", program.admin_port, timeout=LIMIT_S)
    with contextlib.closing(asked):
        asked.request("GET", f"/debug/pprof{path}")
        answer = asked.getresponse()
        return answer.status, answer.read()


def functions(body: bytes) -> set[str]:
    """The names of the functions of a profile."""
    message = pprof_pb2.Profile.FromString(gzip.decompress(body))
    return {message.string_table[it.name] for it in message.function}


@both
def test_profiles_are_not_there_without_the_flag(fresh: Stack, kind: str) -> None:
    program = started(fresh, kind)
    for path in ("", "/", "/profile", "/heap", "/goroutine?debug=2", "/cmdline", "/symbol"):
        status, body = get(program, path)
        assert (status, body) == (
            404,
            b"profiling is disabled; enable it with --enable-profiling\n",
        ), path
    assert get(program, "/nothing") == (404, b"404 page not found\n")
    assert http_get(program.health_port, "/debug/pprof/")[0] == 404


@both
def test_profiles_under_traffic(fresh: Stack, kind: str) -> None:
    fresh.add_server(enable_profiling=True)
    fresh.add_agent(enable_profiling=True)
    program: Program = fresh.server if kind == "server" else fresh.agent
    with traffic(fresh):
        status, body = get(program, "/profile?seconds=1")
        assert status == 200 and any("isthmus.net." in name for name in functions(body))
        status, body = get(program, "/heap?seconds=1")
        assert status == 200 and functions(body)
        assert not tracemalloc.is_tracing()
        status, body = get(program, "/heap")
        assert status == 200 and "isthmus.programs.agent.target_dial.TargetDials" in functions(body)
        status, body = get(program, "/goroutine")
        watching = "isthmus.frame.lifecycle.Lifecycle.watch"
        assert status == 200 and watching in functions(body)
    fresh.wait_idle()
    status, body = get(program, "/goroutine?debug=2")
    assert status == 200 and b"task reload [waiting]:\n" in body and b"thread stack [" in body
    status, body = get(program, "/goroutine?debug=1")
    assert body.startswith(b"goroutine profile: total ")
    status, body = get(program, "/cmdline")
    assert body == Path("/proc/self/cmdline").read_bytes().removesuffix(b"\0")
    assert get(program, "")[0] == 301
    status, body = get(program, "/")
    assert status == 200 and b'<a href="profile">' in body
    assert http_get(program.health_port, "/debug/pprof/")[0] == 404


def test_wrong_questions(fresh: Stack) -> None:
    server = fresh.add_server(enable_profiling=True)
    wrong = ("301", "-1", "x", "0000000000301", "9" * 5000)
    for path in (f"/{kind}?seconds={it}" for kind in ("profile", "heap") for it in wrong):
        assert get(server, path) == (400, b"seconds: must be a whole number from 1 to 300\n")
    assert get(server, "/goroutine?debug=3") == (400, b"debug: must be 0, 1 or 2\n")
    assert get(server, "/trace") == (
        404,
        b"unknown profile; /debug/pprof/ has a list\n",
    )


def test_one_profile_at_a_time_and_who_leaves_gives_it_up(fresh: Stack) -> None:
    server = fresh.add_server(enable_profiling=True)
    leaving = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=LIMIT_S)
    with contextlib.closing(leaving):
        leaving.request("GET", "/debug/pprof/heap?seconds=300")
        wait_until(tracemalloc.is_tracing, "the profile is being taken")
        assert get(server, "/profile?seconds=1") == (409, b"another profile is already running\n")
        assert get(server, "/goroutine")[0] == 200
    wait_until(lambda: not tracemalloc.is_tracing(), "it is given up")
    wait_until(lambda: get(server, "/heap")[0] == 200, "another can be taken")


def test_a_server_that_stops_ends_its_profile(fresh: Stack) -> None:
    server = fresh.add_server(enable_profiling=True)
    waiting = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=LIMIT_S)
    with contextlib.closing(waiting):
        waiting.request("GET", "/debug/pprof/heap?seconds=300")
        wait_until(tracemalloc.is_tracing, "the profile is being taken")
        fresh.stop(server)
    assert not tracemalloc.is_tracing()
