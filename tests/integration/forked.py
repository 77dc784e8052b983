"""Programs as processes without the cost of a start: one that has imported everything forks them.

Most of what a start of ``isthmus`` costs is importing it, half a second of CPU, and tests start
hundreds. ``Forked`` is the part of ``subprocess.Popen`` that they use. What a start itself does is
tested elsewhere, by starting it (test_start.py, test_up.py, the documents).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import isthmus

_MOST_BYTES = 1 << 16
_CLONE_NEWNET = 0x40000000
COMMAND = [sys.executable, "-m", "isthmus.cli.main"]
#: Where the version under test is.
CURRENT = Path(isthmus.__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CURRENT)}
#: What whoever forks the programs has, whatever a test put into ``ENVIRONMENT`` since.
_INHERITED = dict(ENVIRONMENT)


class Forked:
    """One program, running; its standard error goes to a file, and what it prints if asked."""

    def __init__(
        self,
        args: list[str],
        stderr: int,
        stdout: int | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.args = args
        environ = ENVIRONMENT if environ is None else environ
        self.returncode: int | None = None
        # Of this thread, which may be in a network of its own.
        network = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        request = {
            "args": args,
            "cwd": cwd or os.getcwd(),
            "set": dict(environ.items() - _INHERITED.items()),
            "unset": list(_INHERITED.keys() - environ.keys()),
        }
        printed = () if stdout is None else (stdout,)
        try:
            self.pid = _nursery().ask(request, stderr, network, *printed)
        finally:
            os.close(network)
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            status = _nursery().ask({"reap": self.pid})
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        ended = self.poll()
        assert ended is not None
        return ended

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *args: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command of ``isthmus`` to its end, as subprocess.run does; what it printed as text.

    ``environ`` is had besides ``ENVIRONMENT``.
    """
    done = run_bytes(*args, environ=environ, cwd=cwd, timeout_s=timeout_s)
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def run_bytes(
    *args: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose output is no text; see ``run``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Forked(
            [*args], err.fileno(), out.fileno(),
            environ={**ENVIRONMENT, **(environ or {})}, cwd=None if cwd is None else str(cwd),
        )  # fmt: skip
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout_s)
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([*args], code, out.read(), err.read())


class _Nursery:
    """The process that forks the others, and reaps them when asked."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_INHERITED,
            )  # fmt: skip

    def ask(self, request: dict[str, Any], *fds: int) -> int:
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], fds)
            return int(self._ours.recv(_MOST_BYTES))

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@cache
def _nursery() -> _Nursery:
    made = _Nursery()
    atexit.register(made.close)
    return made


def main(channel: socket.socket) -> None:
    """Fork and reap as told, until whoever asks is gone; what it left running ends then."""
    for name in ("agent", "server", "socks5_proxy", "apiserver_proxy"):
        import_module(f"isthmus.programs.{name}.command")
        import_module(f"isthmus.programs.{name}.program")
    for name in ("tools.doctor.looks", "tools.doctor.examine", "tools.doctor.bundle_parts"):
        import_module(f"isthmus.{name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests
    running: set[int] = set()
    while True:
        text, fds, _, _ = socket.recv_fds(channel, _MOST_BYTES, 3)
        if not text:
            break
        request = json.loads(text)
        if "reap" in request:
            running.discard(request["reap"])
            _, answer = os.waitpid(request["reap"], 0)
        else:
            answer = os.fork()
            if not answer:
                channel.close()
                become(request, *fds)
            running.add(answer)
        for fd in fds:
            os.close(fd)
        channel.send(str(answer).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def become(
    request: dict[str, Any], stderr: int, network: int, stdout: int | None = None
) -> NoReturn:
    """Run the command line in this child as if it had been started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python 3.11 leaves the parent's there, whose CPU clock cannot be read here.
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    os.dup2(stderr, 2)
    if stdout is not None:
        os.dup2(stdout, 1)
        os.close(stdout)
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        assert not libc.setns(network, _CLONE_NEWNET), os.strerror(ctypes.get_errno())
    os.close(stderr)
    os.close(network)
    os.chdir(request["cwd"])
    os.environ.update(request["set"])
    for name in request["unset"]:
        del os.environ[name]
    command = import_module("isthmus.cli.main")
    sys.argv = [str(command.__file__), *request["args"]]
    sys.orig_argv = [*COMMAND, *request["args"]]
    sys.exit(command.main())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
