"""Full-screen use of a terminal: alternate screen, single keys, resizes, and restoring it.

The screen itself is rich's Live. Every end of a command (a key, Ctrl-C, SIGTERM, SIGHUP, an
exception) passes through ``__exit__``, which restores the terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import termios
import tty
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

_READ_BYTES = 4096
_COLUMNS, _LINES = 80, 24  # of a terminal that does not report its size
_ESCAPE_S = 0.05  # the rest of a sequence comes at once; after an Escape key nothing follows
#: The signals that end the command, and the action for a second one while the terminal is slow.
_ENDINGS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class Screen:
    """The terminal of standard input and output, taken over within the context.

    Only one at a time, in the main thread; ``wake`` may be called from any thread.
    """

    def __init__(self, stdin: int = 0) -> None:
        self._stdin = stdin
        self._keys = Keys()
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._drawn: tuple[tuple[int, int], list[Text]] | None = None
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake_read, self._wake_write = -1, -1
        self._wakeup_before = -1
        self._ended_by = 0

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._stdin)
        with contextlib.ExitStack() as undo:
            undo.callback(self._put_back)
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            # A signal ends the wait for keys, so that a resize is drawn at once.
            self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            for number in _ENDINGS:
                self._handlers[number] = signal.signal(number, self._end)
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _nothing)
            self._take_keys()
            self._live.start()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._put_back()

    @property
    def size(self) -> tuple[int, int]:
        """The current width and height."""
        # From the terminal itself: COLUMNS and LINES, if set, do not follow a resize.
        columns, lines = os.get_terminal_size(self._stdin)
        size = ConsoleDimensions(columns or _COLUMNS, lines or _LINES)
        self._console.size = size
        return size

    def draw(self, lines: list[Text]) -> None:
        """Show these lines from the top; unchanged lines are not sent again."""
        now = (self.size, lines)
        if self._drawn == now:
            return
        self._drawn = now
        self._live.update(Text("\n").join(lines), refresh=True)

    def redraw(self) -> None:
        """Redraw everything next time: other output may have overwritten the screen."""
        self._drawn = None

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for keys, a resize, ``wake`` or the timeout; returns the keys.

        Raises:
            EOFError: the terminal is closed.
            KeyboardInterrupt: Ctrl-C.
            SystemExit: another signal ended the command, with the exit code that shells give it.
        """
        if self._keys.waiting:
            timeout_s = min(timeout_s, _ESCAPE_S)
        ready, _, _ = select.select([self._stdin, self._wake_read], [], [], max(0.0, timeout_s))
        if self._ended_by == signal.SIGINT:
            raise KeyboardInterrupt
        if self._ended_by:
            raise SystemExit(128 + self._ended_by)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, _READ_BYTES)
        if self._stdin not in ready:
            return self._keys.flush() if not ready else []
        try:
            data = os.read(self._stdin, _READ_BYTES)
        except OSError as exc:
            raise EOFError from exc
        if not data:
            raise EOFError
        return self._keys.feed(data)

    def wake(self) -> None:
        """End a ``wait``."""
        # If the pipe is full, a wake-up is pending; if it is closed, no one waits.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _take_keys(self) -> None:
        tty.setcbreak(self._stdin, termios.TCSADRAIN)
        mode = termios.tcgetattr(self._stdin)
        # Ctrl-Z would leave the shell on the alternate screen with our settings.
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._stdin, termios.TCSADRAIN, mode)

    def _put_back(self) -> None:
        with contextlib.suppress(OSError):  # a closed terminal needs no restoring
            self._live.stop()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._stdin, termios.TCSAFLUSH, self._before)
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for fd in (self._wake_read, self._wake_write):
            if fd >= 0:
                os.close(fd)
        self._wake_read = self._wake_write = -1

    def _end(self, number: int, frame: FrameType | None) -> None:
        # Raised from here it would interrupt a frame, and leave rich in a state that it does not
        # expect; the next wait raises it.
        self._ended_by = number
        signal.signal(number, _ENDINGS[signal.Signals(number)])


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing; with a handler, Python writes the signal to the wake-up pipe."""


_NAMED = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",  # Ctrl-U
    "\x0c": "redraw",  # Ctrl-L
    " ": "space",
}
# As xterm and compatible terminals send them, in normal and in application mode.
_FINALS = {"A": "up", "B": "down", "H": "home", "F": "end"}
_TILDES = {"1": "home", "4": "end", "5": "page up", "6": "page down", "7": "home", "8": "end"}
_SEQUENCE = re.compile(r"\x1b(?:O(?P<one>[ -~])|\[(?P<args>[0-9;?]*)(?P<last>[@-~]))")
_UNFINISHED = re.compile(r"\x1b(?:O|\[[0-9;?]*)?")
_ESCAPE = "\x1b"


class Keys:
    """Reads keys from input that may be split anywhere.

    A lone escape may be a key or the beginning of a sequence: it is kept until more input comes, or
    until ``flush``.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._held = ""

    @property
    def waiting(self) -> bool:
        """Whether the last input may be incomplete."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[str]:
        """Add input; returns its keys, by name or as the character itself."""
        text, self._held = self._held + self._decoder.decode(data), ""
        found: list[str] = []
        while text:
            sequence = _SEQUENCE.match(text)
            if sequence:
                name = _name(sequence)
                found += [name] if name else []
                text = text[sequence.end() :]
            elif _UNFINISHED.fullmatch(text):
                self._held = text
                break
            elif text[0] == _ESCAPE:  # Alt and a key is not the key alone
                text = text[2:]
            else:
                found += self._plain(text[0])
                text = text[1:]
        return found

    def flush(self) -> list[str]:
        """No more input came: what is held is a key, or nothing."""
        held, self._held = self._held, ""
        return ["escape"] if held == _ESCAPE else []

    @staticmethod
    def _plain(char: str) -> list[str]:
        if char in _NAMED:
            return [_NAMED[char]]
        return [char] if char.isprintable() else []


def _name(sequence: re.Match[str]) -> str:
    if sequence["one"]:
        return _FINALS.get(sequence["one"], "")
    if sequence["last"] == "~":
        return _TILDES.get(sequence["args"], "")
    return _FINALS.get(sequence["last"], "") if not sequence["args"] else ""
