"""What ``isthmus up`` prints, and how its directory is kept and swept."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import sys
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.lab import demo as lab_demo
from isthmus.lab.probe_messages import AttemptOutcome
from isthmus.lab.reading import read
from isthmus.lab.stage import LabStage, Told, enter
from isthmus.lab.state import Lab
from isthmus.lab.topology import Allow, AttemptFailure
from isthmus.tools.pki.making import PkiFiles
from isthmus.tools.up import demo
from isthmus.tools.up import running as up
from isthmus.tools.up.state import own_directory, state_home, tell_admin_ports, told_admin_ports
from isthmus.values import HostPort

LONG_AGO = 1_000_000_000


def directory_of_a_run(home: Path, name: str, *, pid: str | None = "4194304\n") -> Path:
    directory = home / name
    (directory / "pki").mkdir(parents=True)
    if pid is not None:
        (directory / "pid").write_text(pid)
    return directory


def test_the_page_says_which_way_only_when_it_knows() -> None:
    assert "through agent a1." in demo.page("demo.internal:8080", "a1")
    assert "through agent a1." in demo.page("Demo.Internal.", "a1")
    assert "through agent" not in demo.page("127.0.0.1:8080", "a1")
    assert "through agent" not in demo.page("", "a1")
    assert "through agent" not in demo.page("demo.internal.example.com", "a1")


def test_the_curl_line_survives_the_shell_whatever_the_path() -> None:
    files = PkiFiles.in_directory("/home/a b/it's/pki")
    line = up.curl_line(HostPort("127.0.0.1", 1), files, HostPort(demo.NAME, 2))
    assert "\n" not in line
    assert shlex.split(line) == [
        "curl", "--noproxy", "", "-p", "-x", "https://127.0.0.1:1",
        "--proxy-cacert", "/home/a b/it's/pki/ca.crt",
        "--proxy-cert", "/home/a b/it's/pki/client.crt",
        "--proxy-key", "/home/a b/it's/pki/client.key",
        "http://demo.internal:2/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "curl http://127.0.0.1:3/snapshot"),
        ({"http_proxy": "", "HTTPS_PROXY": "http://p"}, "curl http://127.0.0.1:3/snapshot"),
        ({"http_proxy": "http://p"}, "curl --noproxy '*' http://127.0.0.1:3/snapshot"),
        ({"ALL_PROXY": "http://p"}, "curl --noproxy '*' http://127.0.0.1:3/snapshot"),
    ],
)
def test_the_snapshot_line_goes_round_a_proxy(environment: dict[str, str], line: str) -> None:
    assert up.snapshot_line(HostPort("127.0.0.1", 3), environment) == line


def test_three_lines_to_paste_follow_the_header() -> None:
    where = up.RunningDemo(
        files=PkiFiles.in_directory("/p"),
        frontend=HostPort("127.0.0.1", 1),
        admin=HostPort("127.0.0.1", 3),
        agent_admin=HostPort("127.0.0.1", 4),
        target=HostPort(demo.NAME, 2),
        uds="",
    )
    said = up.lines(where, {}, pid=42, name="./isthmus", show_curl=False)
    pasted = said[said.index("") + 1 :]
    assert f"http://{where.admin}/ui/" in said[said.index("") - 2]
    assert said[said.index("") - 1].endswith(": ./isthmus status, ./isthmus top")
    assert [line.split()[0] for line in pasted] == ["./isthmus", "curl", "kill"]
    assert pasted[2] == "kill 42"
    assert "Ctrl-C" in " ".join(said[: said.index("")])


def test_our_name_is_one_that_a_shell_finds(tmp_path: Path) -> None:
    made = tmp_path / "isthmus"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    assert up.our_name({"PATH": str(tmp_path)}, ".venv/bin/isthmus") == "isthmus"
    assert up.our_name({"PATH": "/nowhere"}, ".venv/bin/isthmus") == ".venv/bin/isthmus"
    assert up.our_name({}, "/a b/isthmus") == "'/a b/isthmus'"
    assert up.our_name({"PATH": "/nowhere"}, "/x/cli/main.py") == "isthmus"


# The state directory.


def test_state_home_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert state_home({"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/isthmus")
    for ignored in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert state_home(ignored) == Path("/home/u/.local/state/isthmus")


def test_a_directory_of_our_own_and_nothing_after_it(tmp_path: Path) -> None:
    home = tmp_path / "state" / "isthmus"
    with own_directory(home) as directory:
        assert directory.parent == home
        assert directory.name.startswith("up-")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert (directory / "pid").read_text() == f"{os.getpid()}\n"
        (directory / "more").mkdir()
    assert not home.exists()


def test_admin_ports_are_told_by_runs_that_live(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert told_admin_ports(environment) == []
    (directory_of_a_run(tmp_path / "isthmus", "up-killed") / "admin-ports").write_text("7\n")
    (tmp_path / "isthmus" / "up-is-a-file").write_text("")
    with own_directory(tmp_path / "isthmus") as directory:
        assert told_admin_ports(environment) == [], "it has not told them yet"
        tell_admin_ports(directory, [8, 9])
        assert told_admin_ports(environment) == [8, 9]
        (directory / "admin-ports").write_text("no number")
        assert told_admin_ports(environment) == []


def test_it_is_removed_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(KeyError), own_directory(tmp_path / "isthmus"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_else_is_in_the_state_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    (tmp_path / "up-file").write_text("x")
    elsewhere = tmp_path / "elsewhere"
    directory_of_a_run(tmp_path, "elsewhere")
    (tmp_path / "up-link").symlink_to(elsewhere)
    with own_directory(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {
        "other",
        "up-file",
        "up-link",
        "elsewhere",
    }
    assert (elsewhere / "pki").exists()


def test_the_directory_of_a_dead_run_is_swept_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    dead = directory_of_a_run(tmp_path, "up-dead")
    # The number of a process that lives does not help the dead: the lock counts.
    reused = directory_of_a_run(tmp_path, "up-reused", pid=f"{os.getpid()}\n")
    living = directory_of_a_run(tmp_path, "up-living")
    with open(living / "pid") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with own_directory(tmp_path):
            assert not dead.exists()
            assert not reused.exists()
            assert living.exists()


@pytest.mark.parametrize("pid", [None, ""])
def test_a_directory_that_is_just_being_made_is_left_alone(tmp_path: Path, pid: str | None) -> None:
    young = directory_of_a_run(tmp_path, "up-young", pid=pid)
    old = directory_of_a_run(tmp_path, "up-old", pid=pid)
    os.utime(old, (LONG_AGO, LONG_AGO))
    with own_directory(tmp_path):
        assert young.exists()
        assert not old.exists()


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot make a directory in .*: Not a directory"),
        own_directory(tmp_path / "file" / "isthmus"),
    ):
        pass


# Namespaces, as far as they need none.


@pytest.fixture
def stage() -> LabStage:
    """A lab that was never made."""
    return enter(Lab("3fa9c1"), read(lab_demo.topology(0), name="up", source="up"), Told())


@pytest.mark.parametrize("v", [0, 10])
def test_the_topology_says_how_much_is_logged(v: int) -> None:
    topology = read(lab_demo.topology(v), name="up", source="up")
    assert [one.name for one in topology.processes] == ["server", "agent"]
    assert all(one.command.count(f"--v={v}") == 1 for one in topology.processes)


def test_the_wall_lets_one_thing_through(stage: LabStage) -> None:
    assert stage.topology.allows == (Allow(source="far-side", target="near-side", ports=(8091,)),)
    # Nothing but the agent knows the name.
    assert demo.NAME not in [name for name, _ in stage.topology.names]


def test_the_lines_go_through_the_lab(
    stage: LabStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://p")
    enter_it = [
        "-P",
        "-m",
        "isthmus.cli.main",
        "lab",
        "shell",
        "--lab",
        "3fa9c1",
        "near-side",
        "curl",
    ]
    said = lab_demo.lines(stage, pid=42)
    *ways, kill = said[said.index("") + 1 :]
    assert kill == "kill 42"
    for line in ways:
        assert shlex.split(line)[:10] == [sys.executable, *enter_it]
    urls = [
        "http://10.200.0.6:8080/",
        "http://demo.internal:8080/",
        "http://127.0.0.1:8095/snapshot",
    ]
    assert [line.split()[-1] for line in ways] == urls
    (tmp_path / "isthmus").touch(mode=0o700)
    said = lab_demo.lines(stage, pid=42)
    assert said[2] == "isthmus lab shell --lab 3fa9c1 near-side curl http://10.200.0.6:8080/"


def outcome(*, worked: bool) -> AttemptOutcome:
    return AttemptOutcome(
        failing=None if worked else AttemptFailure.UNREACHABLE, said="", took_s=0.0
    )


@pytest.mark.parametrize(
    ("direct", "tunnel", "convincing"),
    [(False, True, True), (True, True, False), (False, False, False), (True, False, False)],
)
def test_only_a_wall_with_a_tunnel_convinces(direct: bool, tunnel: bool, convincing: bool) -> None:
    seen = lab_demo.Demonstration(direct=outcome(worked=direct), tunnel=outcome(worked=tunnel))
    assert seen.convincing is convincing


def run_once() -> None:
    lab_demo.main(v=0, once=True, say=pytest.fail, show=print)


def test_namespaces_without_root_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    sentence = "--namespaces needs root: use sudo, or omit the flag"
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        run_once()


def test_a_tool_that_is_missing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs nft or iptables-restore: not found in the PATH"):
        run_once()
    (tmp_path / "nft").touch(mode=0o700)
    with pytest.raises(ConfigError, match="needs ip: not found in the PATH"):
        run_once()
