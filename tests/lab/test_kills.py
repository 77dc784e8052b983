"""A lab that is ended at any of its steps, by any signal, leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import HOME, LAB, environment, lab, nothing_left, processes, wait_until

SMALL = """\
title: Enough of everything to be killed in
networks:
  left: {cidr: [10.210.0.0/24, "fd00:210::/64"]}
  right: {cidr: 10.220.0.0/24}
allow:
  - {from: right, to: left, port: 8091}
hosts:
  one:
    at: {left: [10.210.0.10, "fd00:210::10"]}
    processes:
      server: >
        isthmus server --mode=http-connect --uds-name={dir}/connect.sock
        --cluster-cert={server_cert} --cluster-key={server_key} --cluster-ca-cert={ca_cert}
        --health-bind-address=127.0.0.1
  two:
    at: {right: {address: 10.220.0.10, delay_ms: 1}}
    serve: {http: 8080}
    services:
      - {address: "10.96.0.1:80", to: "two:8080"}
    processes:
      agent: >
        isthmus agent --proxy-server-host=one --ca-cert={ca_cert} --agent-cert={agent_cert}
        --agent-key={agent_key} --sync-interval=100ms --health-server-host=127.0.0.1
ways:
  connect: {protocol: http-connect, uds: "{dir}/connect.sock"}
steps:
  - {traffic: noise, from: one, get: two:8080, through: connect}
  - {from: one, get: two:8080, through: connect, answers: from two}
  - {from: one, run: sleep 0.2}
  - {end_traffic: noise}
"""


HIDING = """\
title: Programs that would rather stay
networks:
  net: {{cidr: 10.210.0.0/24}}
hosts:
  one:
    at: {{net: 10.210.0.10}}
    processes:
      elsewhere: env -i /usr/bin/unshare -n /bin/sleep 98765
      daemon: /usr/bin/setsid --fork /bin/sleep 98765
      hopper: [env, -i, "{{python}}", -c, {hop}]
steps:
  - {{from: one, run: "true"}}
"""


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lab") / "small.yaml"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture(scope="module")
def steps(topology: str) -> list[str]:
    """What it says, step by step, when nobody disturbs it."""
    done = subprocess.run(
        [*LAB, "run", topology], env=environment(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr.splitlines()


@contextlib.contextmanager
def running(topology: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*LAB, "run", topology], env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def wait_said(process: subprocess.Popen[str], number: int) -> None:
    """Wait until it has begun so many steps."""
    assert process.stderr is not None
    for _ in range(number):
        assert process.stderr.readline(), "ended before it was killed"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "first"),
    [
        pytest.param(signal.SIGKILL, 1, id="kill"),
        pytest.param(signal.SIGINT, 2, id="interrupt"),
        pytest.param(signal.SIGKILL, 2, id="kill, the other half", marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, 1, id="interrupt, the other half", marks=pytest.mark.nightly),
    ],
)
def test_killed_at_every_step(
    topology: str, steps: list[str], number: signal.Signals, first: int
) -> None:
    """Every change ends it once at each step, by the one signal or the other; a release by both."""
    assert len(steps) > 15  # or the kills below would prove little
    # The last step that takes any time: the program may be done before the signal comes.
    lasting = next(number for number, said in enumerate(steps) if "step 3 of 4" in said)
    for step in range(first, len(steps), 2):
        with nothing_left(), running(topology) as process:
            wait_said(process, step)
            process.send_signal(number)
            code = process.wait(60)
            wanted = {-number, 130} if number == signal.SIGINT else {-number}
            assert code in wanted or (step > lasting and code == 0), (steps[step - 1], code)


@pytest.mark.timeout(300)
def test_killed_at_any_moment(topology: str) -> None:
    """By one signal or several, wherever it happens to be."""
    chance = random.Random(20261116)
    numbers = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    for _ in range(15):
        with nothing_left(), running(topology) as process:
            assert process.stderr is not None
            process.stderr.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.random() * 4)
            for _ in range(chance.randint(1, 4)):
                process.send_signal(chance.choice(numbers))
            process.wait(60)


def test_stopped_and_taken_down(topology: str, steps: list[str]) -> None:
    with nothing_left(), running(topology) as process:
        wait_said(process, len(steps) // 2)
        process.send_signal(signal.SIGSTOP)
        lab("down")
        assert process.wait(60) == 130


def test_a_step_that_takes_long_is_interrupted(topology: str, tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(SMALL.replace("run: sleep 0.2", "run: sleep 500, timeout_s: 500"))
    for number in (signal.SIGINT, signal.SIGTERM):
        with nothing_left(), running(str(path)) as process:
            assert process.stderr is not None
            while "step 3 of 4" not in process.stderr.readline():
                pass
            process.send_signal(number)
            assert process.wait(60) == 130


def test_processes_that_hide(tmp_path: Path) -> None:
    """Without the mark, in another namespace, in another session, forking all the time."""
    hop = "import os, time\nwhile not os.fork(): time.sleep(0.01)"
    path = tmp_path / "hide.yaml"
    path.write_text(HIDING.format(hop=json.dumps(f"exec({hop!r})")))
    with nothing_left():
        lab("run", str(path))
    # Killed is not yet gone.
    wait_until(lambda: not (running_with(b"98765") or running_with(b"os.fork()")), "all are gone")


def running_with(word: bytes) -> list[bytes]:
    """The command lines of processes that have a word in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            found += [line] if word in line else []
    return found


def test_terminated_and_hung_up(topology: str, steps: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        with nothing_left(), running(topology) as process:
            wait_said(process, len(steps) // 2)
            process.send_signal(number)
            assert process.wait(60) == 130


def test_group_of_the_terminal_is_interrupted_twice(topology: str, steps: list[str]) -> None:
    with (
        nothing_left(),
        subprocess.Popen(
            [*LAB, "run", topology], env=environment(), text=True, process_group=0,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        wait_said(process, len(steps) // 2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        while "taking it down" not in process.stderr.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130


def test_guardian_and_maker_killed_together(topology: str, steps: list[str]) -> None:
    """Then nobody is left to clean up: the next lab command does."""
    with nothing_left():
        with running(topology) as process:
            wait_said(process, len(steps) // 2)
            for pid in processes():
                with open(f"/proc/{pid}/cmdline", "rb") as line:
                    guards = b"isthmus.lab.guardian" in line.read()
                if guards:
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()
        assert list(HOME.iterdir())
        lab("run", topology)


def test_killed_maker_of_a_lab_that_was_kept(topology: str) -> None:
    with nothing_left():
        lab("up", topology)
        wait_until(lambda: len(list(HOME.iterdir())) == 1, "it is up")
        lab("down")


def test_nobody_reads_what_it_says(topology: str, steps: list[str]) -> None:
    with nothing_left(), running(topology) as process:
        wait_said(process, len(steps) // 2)
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(60) != 0


def test_down_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(SMALL.replace("sleep 0.2", "sleep 4"))  # longer than "lab down" takes to begin
    with nothing_left(), running(str(path)) as process:
        assert process.stderr is not None
        while "1/" not in (line := process.stderr.readline()):
            assert line, "ended before its first step"
        lab("down")
        assert process.wait(60) == 130
