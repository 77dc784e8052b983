"""``isthmus up --namespaces``: a real firewall, both ways tried, and nothing left afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from machine import LIMIT_S, environment, lab, nothing_left, wait_until

from isthmus.lab import state
from isthmus.lab.plan import Names
from isthmus.lab.removal import NETNS
from isthmus.lab.state import Lab

UP = [sys.executable, "-m", "isthmus.cli.main", "up", "--namespaces"]
LINES = 9  # the table, an empty line, the header, an empty line, four to paste


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    """Run it, and look afterwards that the machine is as it was."""
    with (
        nothing_left(),
        subprocess.Popen(
            [*UP, *args], env=environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, err


def lab_of(process: subprocess.Popen[str]) -> Lab:
    """The lab that it owns, as soon as there is one."""
    found: list[Lab] = []

    def look() -> bool:
        assert process.poll() is None, process.communicate()
        found.extend(one for one in state.labs() if one.owner == process.pid)
        return bool(found)

    wait_until(look, "it has a lab")
    return found[0]


def wait_lines(process: subprocess.Popen[str]) -> list[str]:
    """Everything that it prints before it waits."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(LINES)]


def paste(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shlex.split(line), "-sS"], env=environment(), capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip


def test_once_shows_the_failure_and_the_success() -> None:
    with started("--once") as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")
    before, after = out.splitlines()
    assert before.split()[:4] == ["before", "directly", "10.200.0.6:8080", "failed"]
    assert after.split() == [
        "after", "through", "the", "tunnel", "demo.internal:8080", "reached", "from", "far-side",
    ]  # fmt: skip


def test_what_the_programs_log_is_shown_when_asked_for() -> None:
    with started("--once", "--v=2") as process:
        code, err = ended(process)
    assert code == 0
    assert "server] agent linked" in err
    assert "agent] linked" in err


# Its programs end with the process that started them, so that one is not this one.
WITH_A_HOLE = """\
import sys
from isthmus.cli.main import main
from isthmus.lab import demo
hole = "allow:\\n  - {from: near-side, to: far-side}\\n"
demo.TOPOLOGY = demo.TOPOLOGY.replace("allow:\\n", hole)
sys.exit(main(["up", "--namespaces", "--once"]))
"""


def test_an_open_wall_does_not_convince() -> None:
    with nothing_left():
        done = subprocess.run(
            [sys.executable, "-c", WITH_A_HOLE], env=environment(), text=True,
            capture_output=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split()[-3] for line in done.stdout.splitlines()] == ["reached", "reached"]


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_lines_work_as_printed(number: signal.Signals) -> None:
    with started() as process:
        *_, direct, tunnel, snapshot, kill = wait_lines(process)
        assert paste(direct).returncode == 7  # curl: it could not connect
        assert paste(tunnel).stdout.startswith("from far-side\n")
        assert '"far-side"' in paste(snapshot).stdout
        assert kill == f"kill {process.pid}"
        process.send_signal(number)
        assert ended(process) == (0, "")


def spaces(one: Lab) -> int:
    return len(list(NETNS.glob(f"{Names(one.token).prefix}*")))


MOMENTS: dict[str, Callable[[Lab], bool]] = {
    "directory": lambda one: one.directory.exists(),
    "namespaces": lambda one: spaces(one) > 1,
    "server": lambda one: (one.directory / "pids/server").exists(),
    "agent": lambda one: (one.directory / "pids/agent").exists(),
}


@pytest.mark.parametrize(("args", "code"), [((), 0), (("--once",), 130)], ids=["waits", "once"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_while_it_starts(moment: str, args: tuple[str, ...], code: int) -> None:
    with started(*args) as process:
        one = lab_of(process)
        wait_until(lambda: MOMENTS[moment](one), moment)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (code, "")


def test_a_killed_run_is_cleaned_up_after() -> None:
    with started() as process:
        wait_lines(process)
        process.kill()
        assert ended(process) == (-signal.SIGKILL, "")


def test_a_program_that_ends_ends_everything() -> None:
    with started() as process:
        one = lab_of(process)
        wait_lines(process)
        os.kill(int((one.directory / "pids/agent").read_text().split()[0]), signal.SIGKILL)
        code, err = ended(process)
    assert code == 1
    assert err.endswith("isthmus: agent ended with exit code -9\n")


def test_it_is_a_lab_like_others() -> None:
    with started() as process:
        one = lab_of(process)
        wait_lines(process)
        assert "far-side" in lab("show", "--lab", one.token)
        lab("down", "--lab", one.token)
        assert ended(process) == (0, "")
