"""Signals that end a command in a terminal, noted instead of ending it at once."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType


class Told:
    """Whether a signal came; a handler may set it at any moment.

    Not a threading.Event: its lock is not reentrant, so a handler that runs inside ``wait`` or
    another handler would wait for itself forever. SimpleQueue's put() is reentrant.
    """

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._set = False

    def set(self) -> None:
        """Note a signal."""
        self._set = True
        self._words.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most this long; whether one has come, now or before."""
        if not self._set and seconds > 0:
            with contextlib.suppress(queue.Empty):
                self._words.get(timeout=seconds)
        return self._set


def stop_signals() -> list[signal.Signals]:
    """The signals that end a run, including a closed terminal unless nohup ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def noting_signals() -> Iterator[Told]:
    """Note the signals that end a run instead of being ended by them."""
    told = Told()

    def note(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
