"""``isthmus up`` as a user meets it: its lines are pasted, and it is stopped at odd moments."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from isthmus.tools.up import demo
from isthmus.tools.up import running as up
from isthmus.tools.up.state import told_admin_ports
from isthmus.values import HostPort

UP = [sys.executable, "-m", "isthmus.cli.main", "up"]
DEADLINE_S = 60.0


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {**kept, "XDG_STATE_HOME": str(home), **more}


@contextmanager
def started(home: Path, *args: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*UP, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home, **more),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def pasted(process: subprocess.Popen[str]) -> list[str]:
    """The lines after the header."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "\n":
            return [process.stdout.readline().rstrip("\n") for _ in range(3)]
    raise AssertionError(process.communicate(timeout=DEADLINE_S)[1])


def paste(line: str, home: Path, **more: str) -> str:
    done = subprocess.run(
        [*shlex.split(line), *(["-sS"] if line.startswith("curl") else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=environment(home, **more),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def test_the_lines_work_as_printed_and_nothing_is_left(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        request, snapshot, kill = pasted(process)
        (directory,) = tmp_path.glob("isthmus/up-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        assert request.endswith(" curl http://demo.internal/")
        request = shlex.join([*UP[:-1], *shlex.split(request)[1:]])
        assert "reached demo.internal through agent far-side" in paste(request, tmp_path)
        seen = json.loads(paste(snapshot, tmp_path))
        assert [agent["id"] for agent in seen["agents"]] == ["far-side"]
        assert seen["totals"]["dials"] == 1
        there = [f"--admin=127.0.0.1:{port}" for port in told_admin_ports(environment(tmp_path))]
        status = json.loads(paste(shlex.join([*UP[:-1], "status", "-o", "json", *there]), tmp_path))
        assert [each["id"] for each in status["programs"]] == ["near-side", "far-side"]
        assert shlex.split(kill) == ["kill", str(process.pid)]
        paste(kill, tmp_path)
        assert ended(process) == (0, "")
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", urlsplit(shlex.split(snapshot)[-1]).port or 0)) != 0
    gone = subprocess.run(
        shlex.split(request), capture_output=True, text=True, check=False, env=environment(tmp_path)
    )
    assert gone.returncode == 2
    assert gone.stderr.startswith("isthmus: --config is required, because no isthmus up of this")


def test_proxy_variables_of_the_user_do_not_matter(tmp_path: Path) -> None:
    proxies = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "*"}
    with started(tmp_path, "--show-curl", **proxies) as process:
        curl, snapshot, _ = pasted(process)
        assert "through agent far-side" in paste(curl, tmp_path, **proxies)
        assert "far-side" in paste(snapshot, tmp_path, http_proxy="http://127.0.0.1:9")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_0_even_with_a_tunnel_open(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path) as process:
        pasted(process)
        (uds,) = tmp_path.glob("isthmus/up-*/server.sock")
        target = "demo.internal:80"
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(uds))
            client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
            process.send_signal(number)
            assert ended(process) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["up-*", "up-*/pid", "up-*/pki/client.key", "up-*/server.sock"])
def test_a_signal_while_it_starts_leaves_nothing(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    with started(tmp_path) as process:
        give_up_at = time.monotonic() + DEADLINE_S
        while not any((tmp_path / "isthmus").glob(moment)):
            assert time.monotonic() < give_up_at
            assert process.poll() is None
        process.send_signal(number)
        process.send_signal(number)
        assert ended(process) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next_and_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as living:
        pasted(living)
        (kept,) = tmp_path.glob("isthmus/up-*")
        with started(tmp_path) as killed:
            pasted(killed)
            killed.kill()
            killed.communicate(timeout=DEADLINE_S)
        assert len(list(tmp_path.glob("isthmus/up-*"))) == 2
        with started(tmp_path, "--once") as third:
            assert ended(third) == (0, "")
        assert list(tmp_path.glob("isthmus/up-*")) == [kept]
        living.send_signal(signal.SIGINT)
        assert ended(living) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_once_asks_once_and_says_what_it_heard(tmp_path: Path) -> None:
    done = subprocess.run(
        [*UP, "--once"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "through the tunnel: Hello from the far side" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_nobody_reading_what_it_prints_is_no_traceback(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started(tmp_path / "file") as process:
        code, err = ended(process)
    assert code == 2
    assert err == (
        f"isthmus: cannot make a directory in {tmp_path}/file/isthmus: Not a directory\n"
    )


def test_a_path_too_long_for_a_socket_only_loses_the_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 25)

    async def visit() -> tuple[str, demo.Visit]:
        async with up.running(directory) as it:
            seen = await asyncio.to_thread(
                demo.visit, it.frontend, it.files, it.target, timeout_s=DEADLINE_S
            )
            return it.uds, seen

    uds, seen = asyncio.run(visit())
    assert uds == ""
    assert seen.worked


def test_a_visit_that_fails_says_why(tmp_path: Path) -> None:
    async def visits() -> list[demo.Visit]:
        async with up.running(tmp_path) as it:
            free = socket.create_server(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            refused = HostPort("127.0.0.1", port)
            return [
                await asyncio.to_thread(
                    demo.visit, frontend, it.files, refused, timeout_s=DEADLINE_S
                )
                for frontend in (it.frontend, HostPort("127.0.0.1", port))
            ]

    through, without = asyncio.run(visits())
    assert not through.worked
    assert "502" in through.said
    assert "connection refused" in through.said
    assert (without.worked, without.said) == (False, "Connection refused")
