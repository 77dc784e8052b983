"""Processes: started in a namespace or in none, watched by their log, ended by their id."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import isthmus
from isthmus.lab.namespaces import in_namespace
from isthmus.lab.namespaces import inside as inside_namespace

T = TypeVar("T")

LIMIT_S = 60.0
_PREFIX = "isthmus-kube-"
ISTHMUS = [sys.executable, "-m", "isthmus.cli.main"]
_LOOK_AGAIN_S = 0.02
_ports = itertools.count(20000)  # below what the kernel gives away
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PROXY_VARIABLES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}


def environment(**more: str) -> dict[str, str]:
    """Our own environment without proxies, with this source tree, and with something added."""
    kept = {name: v for name, v in os.environ.items() if name.lower() not in _PROXY_VARIABLES}
    return {**kept, "PYTHONPATH": str(Path(isthmus.__file__).parent.parent), **more}


# On each machine that tests/apart makes processes have numbers of their own; /tmp is shared.
_MACHINE = os.stat("/proc/self/ns/pid").st_ino % 2**20


def run_name() -> str:
    """What the things of this run are called, so that the next can tell whose they were."""
    return f"{_PREFIX}{_MACHINE}-{os.getpid()}-"


def is_left_over(name: str) -> bool:
    """Whether something is called as the things of a run of this machine that is no more."""
    mine = f"{_PREFIX}{_MACHINE}-"
    pid = name.removeprefix(mine).partition("-")[0]
    return name.startswith(mine) and not Path(f"/proc/{pid}").exists()


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Ask again and again until it holds; fail with ``what`` when it never does."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(_LOOK_AGAIN_S)


def inside(namespace: str | None, work: Callable[[], T]) -> T:
    """Do something in a namespace, or where we are; a socket stays where it was made."""
    return work() if namespace is None else inside_namespace(namespace, work)


def connect(namespace: str | None, address: tuple[str, int]) -> socket.socket:
    """Connect from inside a namespace; what is written goes out at once."""
    sock = inside(namespace, partial(socket.create_connection, address, LIMIT_S))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def free_port(namespace: str | None) -> int:
    """Find a port of loopback that nobody listens on."""
    if namespace is not None:
        # Nobody else is in there, and a port that no connection is given by chance stays free
        # while its program is down.
        return next(_ports)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def command(namespace: str | None, argv: Sequence[str]) -> list[str]:
    """Write the command that runs another in a namespace, or where we are."""
    return list(argv) if namespace is None else in_namespace(namespace, argv)


def die_with_parent() -> Callable[[], None]:
    """Make what a child does first: should we be killed, it goes too."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class Program:
    """One process, what it says on its output, and its log."""

    def __init__(self, name: str, namespace: str | None, argv: Sequence[str], logs: Path) -> None:
        self.name = name
        self._argv = command(namespace, argv)
        self._log, self._output = logs / f"{name}.log", logs / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again; its log goes on."""
        assert not self.running, f"{self.name} runs already"
        with self._log.open("ab") as log, self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=environment(),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its process; it has to have been started."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote to its standard error, in all its lives."""
        return self._log.read_text(errors="replace")

    @property
    def said(self) -> list[dict[str, Any]]:
        """The whole lines of JSON on its standard output."""
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it did something; its end is a failure."""
        wait_until(lambda: not self.running or holds(), f"{self.name}: {what}")
        assert self.running, f"{self.name} ended: {self.log[-2000:]}"

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(LIMIT_S)

    @contextlib.contextmanager
    def up(self) -> Iterator[Program]:
        """Run it until the block ends."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Have it ended for the time of the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()
