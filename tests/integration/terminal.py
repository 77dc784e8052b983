"""Programs at a terminal of their own: a pty that controls them, keys in, screens out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from clients import LIMIT_S

# The terminal controls the program: Ctrl-C is a signal, and a resize is told.
_TAKE = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)")
_HOME = "\x1b[H"
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A program at a terminal of ``size`` lines and columns."""

    def __init__(
        self, args: Sequence[str], env: dict[str, str], size: tuple[int, int] = (24, 100)
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(*size, tell=False)
        self.mode = self.settings()
        self._got = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *args],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=env | {"TERM": "xterm"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal, as a connection that breaks."""
        for fd in (self._ours, self._theirs):
            if fd >= 0:
                os.close(fd)
        self._ours = self._theirs = -1

    def settings(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._theirs)

    def resize(self, lines: int, columns: int, *, tell: bool = True) -> None:
        """Give it another size."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    @property
    def raw(self) -> str:
        """Everything that was written, with its control sequences."""
        while select.select([self._ours], [], [], 0)[0]:
            self._got += os.read(self._ours, 65536)
        return self._got.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Everything that was written, without control sequences."""
        return plain(self.raw)

    @property
    def screen(self) -> str:
        """What was written since the cursor went home last."""
        return plain(self.raw.rpartition(_HOME)[2])

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; fail with what is on the screen."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"never happened: {what}\n{self.text[-3000:]}"
            select.select([self._ours], [], [], 0.02)

    def wait_unread(self) -> None:
        """Wait until it has written something, and read nothing of it."""
        assert select.select([self._ours], [], [], LIMIT_S)[0], "nothing was written"

    def wait_screen(self, *words: str) -> None:
        """Wait until all of these are on the screen."""
        self.wait(lambda: all(word in self.screen for word in words), f"on the screen: {words}")

    def wait_exit(self) -> int:
        """Wait for its end, reading what it still writes; the exit code."""
        self.wait(lambda: self.raw is not None and self.process.poll() is not None, "its end")
        return self.process.wait(LIMIT_S)


def plain(text: str) -> str:
    """Text without control sequences and carriage returns."""
    return _CONTROL.sub("", text).replace("\r", "")
