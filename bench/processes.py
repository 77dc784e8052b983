"""Child processes and scratch space of a benchmark run, which are always cleaned up."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_LIBC = ctypes.CDLL(None)
# Below the kernel's ephemeral range, so that no outgoing connection uses one, and within the range
# that konnectivity accepts (1024-49151).
_PORTS = range(20_000, 32_000)


class BenchError(Exception):
    """The benchmark cannot continue; the message is for the terminal."""


class Child:
    """One child process, its log file, and its JSON lines if it has a dialogue."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def log_tail(self) -> str:
        """The last lines of its stderr."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])

    def check_alive(self) -> None:
        """Raise BenchError with the end of the log if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with {code}:\n{self.log_tail()}")

    def read_line(self, timeout_s: float) -> dict[str, Any]:
        """The next JSON line of its stdout."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            if not ready:
                raise BenchError(f"{self.name} printed nothing for {timeout_s:.0f} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                self.process.wait(5)
                self.check_alive()
            self._pending += chunk
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name} took longer than {timeout_s:.0f} s")
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, line: str) -> None:
        """Send one line to its stdin."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended: read_line reports why
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; ``stop`` ends it if it does not."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask it to end, then kill it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Workspace:
    """A temporary directory and every process started in it; leaving it ends them all."""

    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="isthmus-bench-"))
        self._children: list[Child] = []
        self._ports = iter(_PORTS)
        self._count = 0
        self.stop_grace_s = 5.0

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.stop(self.stop_grace_s)
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name: str) -> Path:
        """A new path in the directory."""
        self._count += 1
        return self.dir / f"{self._count}-{name}"

    def free_port(self) -> int:
        """A loopback port that was free a moment ago and is not returned twice."""
        for port in self._ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
        raise BenchError("no free port on loopback")

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        speaks: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a child that dies with this process. Its output goes to a file.

        One that ``speaks`` writes JSON lines to stdout, for ``read_line``, and reads stdin.
        """
        log = self.path(f"{name}.log")
        with log.open("wb") as stderr, _not_interrupted():
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if speaks else stderr,
                    stderr=stderr,
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                    preexec_fn=_bind_to_parent,
                )
            except OSError as exc:
                raise BenchError(f"cannot start {name}: {exc}") from exc
            child = Child(name, process, log)
            self._children.append(child)
        return child

    def stop(self, child: Child) -> None:
        """End one child before the others."""
        child.stop(self.stop_grace_s)
        self._children.remove(child)


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Postpone an interrupt until the end of the block.

    An exception raised right after a fork is raised in a hook, where Python prints and drops it;
    and a child that is not in the list yet would not be ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _bind_to_parent() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 20_000 if hard == resource.RLIM_INFINITY else min(hard, 20_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def process_tree(pids: Sequence[int]) -> list[int]:
    """The processes and all their descendants: a server may have workers."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = list(pids)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, []))
    return sorted(found)


def rss_kb(pids: Sequence[int]) -> int:
    """Resident memory of the processes together, by walking their page tables.

    Rss of smaps_rollup, not VmRSS (which lags behind by a batch of pages per thread) and
    not Pss (which moves when an unrelated process shares a library).
    """
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                total += int(line.split()[1])
    return total
