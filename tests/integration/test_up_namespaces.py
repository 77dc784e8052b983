"""``isthmus up --namespaces``: a real firewall, both ways tried, and nothing left afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyroute2 import netns

from isthmus.app import demo
from isthmus.app.up_topology import (
    AGENT,
    AGENT_PORT,
    RULES,
    SERVER,
    Names,
    remove_run,
    topology,
)
from isthmus.errors import ConfigError
from isthmus.net.namespaces import in_namespace, inside
from isthmus.values import HostPort

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft"),
    reason="network namespaces need root, ip and nft",
)

UP = [sys.executable, "-m", "isthmus.cli.main", "up", "--namespaces"]
DEADLINE_S = 60.0
SHORT_S = 1.0


def token(home: Path) -> bytes:
    """What tells the processes of one test from all others: it is in their environment."""
    return f"XDG_STATE_HOME={home}\0".encode()


def processes(home: Path) -> list[int]:
    """The processes of a test that live, itself and zombies excepted."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if token(home) in (entry / "environ").read_bytes() + b"\0":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        assert process.poll() is None, process.communicate()


@contextmanager
def started(home: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    with subprocess.Popen(
        [*UP, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, "XDG_STATE_HOME": str(home)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            for directory in home.glob("isthmus/up-*"):
                remove_run(directory.name)


def names_of(home: Path, process: subprocess.Popen[str]) -> Names:
    """The namespaces that a run makes, as soon as its directory is there."""
    wait_for(lambda: list(home.glob("isthmus/up-*")), process)
    (directory,) = home.glob("isthmus/up-*")
    return Names.of(directory.name)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def assert_nothing_is_left(home: Path, names: Names) -> None:
    assert set(names) & set(netns.listnetns()) == set()
    assert processes(home) == []
    assert list(home.iterdir()) == []


def paste(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shlex.split(line), "-sS"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_once_shows_the_failure_and_the_success(tmp_path: Path) -> None:
    links = set(os.listdir("/sys/class/net"))
    with started(tmp_path, "--once") as process:
        names = names_of(tmp_path, process)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    before, after = out.splitlines()
    assert before.split()[:4] == ["before", "directly", "10.200.0.6:8080", "failed"]
    assert before.endswith("timed out")
    assert "reached  Hello from the far side: you reached demo.internal through agent" in after
    assert_nothing_is_left(tmp_path, names)
    assert set(os.listdir("/sys/class/net")) == links


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_lines_work_as_printed_and_nothing_is_left(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path) as process:
        names = names_of(tmp_path, process)
        assert process.stdout is not None
        said = [process.stdout.readline().rstrip("\n") for _ in range(9)]
        direct, tunnel, snapshot, kill = said[5:]
        assert paste(direct).returncode == 28  # curl: it timed out
        assert "through agent far-side" in paste(tunnel).stdout
        assert '"far-side"' in paste(snapshot).stdout
        assert kill == f"kill {process.pid}"
        assert len(processes(tmp_path)) == 4
        process.send_signal(number)
        assert ended(process) == (0, "")
    assert_nothing_is_left(tmp_path, names)


@pytest.mark.parametrize("moment", ["directory", "server", "wall", "agent", "1", "2", "3"])
def test_a_signal_while_it_starts_leaves_nothing(tmp_path: Path, moment: str) -> None:
    with started(tmp_path) as process:
        names = names_of(tmp_path, process)
        if moment.isdigit():  # so many programs were started
            wait_for(lambda: len(processes(tmp_path)) > int(moment), process)
        elif moment != "directory":
            wait_for(lambda: getattr(names, moment) in netns.listnetns(), process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "")
    assert_nothing_is_left(tmp_path, names)


def test_a_killed_run_leaves_no_process_and_the_next_one_removes_the_rest(tmp_path: Path) -> None:
    with started(tmp_path) as killed:
        names = names_of(tmp_path, killed)
        wait_for(lambda: len(processes(tmp_path)) == 4, killed)
        killed.kill()
        killed.communicate(timeout=DEADLINE_S)
        give_up_at = time.monotonic() + DEADLINE_S
        while processes(tmp_path):
            assert time.monotonic() < give_up_at
        assert set(names) <= set(netns.listnetns())
        with started(tmp_path, "--once") as following:
            assert ended(following) == (0, "")
    assert_nothing_is_left(tmp_path, names)


def test_a_program_that_ends_ends_everything(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        names = names_of(tmp_path, process)
        wait_for(lambda: len(processes(tmp_path)) == 4, process)
        (pid,) = [
            pid for pid in processes(tmp_path)
            if b"isthmus.app.demo" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        os.kill(pid, signal.SIGKILL)
        assert ended(process) == (1, "isthmus: the demo target ended with exit code -9\n")
    assert_nothing_is_left(tmp_path, names)


# The wall by itself.

OPEN = {
    "nft": [["nft", "flush", "ruleset"]],
    "iptables-restore": [["iptables", "-F"], ["iptables", "-P", "FORWARD", "ACCEPT"]],
}


def listening(namespace: str, address: str, port: int) -> socket.socket:
    return inside(namespace, partial(socket.create_server, (address, port)))


def reaches(namespace: str, address: str, port: int) -> bool:
    knock = partial(demo.knock, HostPort(address, port), timeout_s=SHORT_S)
    return inside(namespace, knock).worked


@pytest.mark.parametrize("firewall", RULES)
def test_the_wall_lets_one_thing_through_and_it_is_the_rules_that_do_it(firewall: str) -> None:
    if not shutil.which(firewall):
        pytest.skip(f"{firewall} is not installed")
    names = Names.of(f"up-test{os.getpid()}")
    with (
        topology(names, firewall),
        listening(names.server, SERVER, AGENT_PORT),
        listening(names.server, SERVER, 8092),
        listening(names.agent, AGENT, 8080),
    ):
        assert reaches(names.agent, SERVER, AGENT_PORT)
        assert not reaches(names.agent, SERVER, 8092)
        assert not reaches(names.server, AGENT, 8080)
        for argv in OPEN[firewall]:
            subprocess.run(in_namespace(names.wall, argv), check=True, timeout=DEADLINE_S)
        assert reaches(names.agent, SERVER, 8092)
        assert reaches(names.server, AGENT, 8080)
    assert set(names) & set(netns.listnetns()) == set()


def test_a_topology_that_fails_halfway_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names.of(f"up-half{os.getpid()}")
    monkeypatch.setitem(RULES, "nft", "no such rule")  # the last step
    with pytest.raises(ConfigError, match=r"--namespaces: nft: .*rror"), topology(names, "nft"):
        pytest.fail("it should not have been made")
    assert set(names) & set(netns.listnetns()) == set()
