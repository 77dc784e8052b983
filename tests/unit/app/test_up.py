"""What ``isthmus up`` prints, and how its directory is kept and swept."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from pathlib import Path

import pytest

from isthmus.app import demo, up, up_namespaces
from isthmus.app.pki import PkiFiles
from isthmus.app.up_state import NAMESPACES, own_directory, state_home
from isthmus.app.up_topology import RULES, Names
from isthmus.errors import ConfigError
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
    where = up.Running(
        files=PkiFiles.in_directory("/p"),
        frontend=HostPort("127.0.0.1", 1),
        admin=HostPort("127.0.0.1", 3),
        target=HostPort(demo.NAME, 2),
        uds="",
    )
    said = up.lines(where, {}, pid=42)
    pasted = said[said.index("") + 1 :]
    assert [line.split()[0] for line in pasted] == ["curl", "curl", "kill"]
    assert pasted[2] == "kill 42"
    assert "Ctrl-C" in " ".join(said[: said.index("")])


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


def test_a_dead_run_with_namespaces_waits_for_somebody_who_can_remove_them(tmp_path: Path) -> None:
    dead = directory_of_a_run(tmp_path, "up-dead")
    (dead / NAMESPACES).touch()
    with own_directory(tmp_path):
        assert dead.exists()
    swept: list[str] = []
    with own_directory(tmp_path, sweep=swept.append):
        assert not dead.exists()
    assert swept == ["up-dead"]


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot make a directory in .*: Not a directory"),
        own_directory(tmp_path / "file" / "isthmus"),
    ):
        pass


# Namespaces, as far as they need none.


def test_namespaces_are_named_after_the_run() -> None:
    assert list(Names.of("up-ab12")) == [
        "isthmus-ab12-server",
        "isthmus-ab12-wall",
        "isthmus-ab12-agent",
    ]


@pytest.mark.parametrize("tool", RULES)
def test_both_firewalls_drop_by_default_and_name_one_port(tool: str) -> None:
    assert RULES[tool].count("8091") == 1
    assert RULES[tool].lower().count("drop") == 2


@pytest.mark.parametrize(
    ("direct", "tunnel", "convincing"),
    [(False, True, True), (True, True, False), (False, False, False), (True, False, False)],
)
def test_only_a_wall_with_a_tunnel_convinces(direct: bool, tunnel: bool, convincing: bool) -> None:
    seen = up_namespaces.Demonstration(
        address=up_namespaces.ADDRESS,
        target=up_namespaces.TARGET,
        direct=demo.Visit(worked=direct, said=""),
        tunnel=demo.Visit(worked=tunnel, said=""),
    )
    assert seen.convincing is convincing


def test_namespaces_without_root_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="needs root"):
        up_namespaces.main(v=0, once=True, say=pytest.fail, show=print)
