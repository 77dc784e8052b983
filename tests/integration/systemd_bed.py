"""A manager as systemd is one: holds sockets, starts programs with them, hears what they say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from clients import LIMIT_S
from programs import COMMAND, ENVIRONMENT
from stack import wait_until

# LISTEN_PID has to be the program's own, so it is set by what becomes the program. The sockets come
# by high numbers: one that is in the way of another would be lost.
_BECOME = """
import os, sys
for index in range(int(os.environ.get("LISTEN_FDS", "0"))):
    os.dup2(200 + index, 3 + index)
    os.environ["LISTEN_PID"] = str(os.getpid())
os.closerange(200, 300)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Unit:
    """One start of a program."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def wait_log(self, text: str) -> None:
        """Wait until a text is in the log."""
        wait_until(lambda: text in self.log or self.process.poll() is not None, text)
        assert text in self.log, self.log

    def wait_exit(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(LIMIT_S)

    def stop(self) -> None:
        """Stop it as systemd does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait_exit() == 0, self.log


class Manager:
    """Starts programs, and ends those that are left at the end of a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.heard: list[str] = []
        self._units: list[Unit] = []
        self._files: list[IO[bytes]] = []
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._address = str(directory / "notify")
        self._notify.bind(self._address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for unit in self._units:
            if unit.process.poll() is None:
                unit.process.kill()
            unit.process.wait(LIMIT_S)
        for file in self._files:
            file.close()
        self._notify.close()

    def start(
        self,
        *args: str,
        sockets: Sequence[socket.socket] = (),
        names: Sequence[str] = (),
        watchdog_s: float = 0.0,
        command: Sequence[str] = COMMAND,
    ) -> Unit:
        """Start a program with these sockets."""
        log = self.directory / f"unit-{len(self._units)}.log"
        file = log.open("wb")
        self._files.append(file)
        environment = {
            **ENVIRONMENT,
            "NOTIFY_SOCKET": self._address,
            **({"LISTEN_FDS": str(len(sockets))} if sockets else {}),
            **({"LISTEN_FDNAMES": ":".join(names)} if names else {}),
            **({"WATCHDOG_USEC": str(int(watchdog_s * 1e6))} if watchdog_s else {}),
        }
        low = [os.dup(sock.fileno()) for sock in sockets]
        high = [os.dup2(number, 200 + at, inheritable=True) for at, number in enumerate(low)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BECOME, *command, *args],
                env=environment, stdout=file, stderr=file, pass_fds=high,
            )  # fmt: skip
        finally:
            for number in (*low, *high):
                os.close(number)
        unit = Unit(process, log)
        self._units.append(unit)
        return unit

    def hear(self) -> list[str]:
        """Everything that was said so far, an assignment each."""
        try:
            while True:
                self.heard += self._notify.recv(65536).decode().splitlines()
        except BlockingIOError:
            return self.heard

    def wait_heard(self, text: str, unit: Unit) -> None:
        """Wait until something was said."""
        wait_until(lambda: text in self.hear() or unit.process.poll() is not None, text)
        assert text in self.hear(), (self.heard, unit.log)

    def forget(self) -> None:
        """Start over with what was said."""
        self.hear()
        self.heard = []


def listening(path: Path) -> socket.socket:
    """A UNIX socket as a socket unit with SocketMode=0660 makes it."""
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o117)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(1024)
    return sock
