"""The signals that end what somebody started in a terminal, and noting them instead of dying."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType


class Told:
    """Whether a signal came. A handler may set it at any moment.

    No threading.Event: its lock is not reentrant, so a handler that runs inside ``wait`` or inside
    the handler of another signal would wait for itself for ever. SimpleQueue's put() is.
    """

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._set = False

    def set(self) -> None:
        """A signal came."""
        self._set = True
        self._words.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most so long; whether one has come, now or before."""
        if not self._set and seconds > 0:
            with contextlib.suppress(queue.Empty):
                self._words.get(timeout=seconds)
        return self._set


def stop_signals() -> list[signal.Signals]:
    """Name the signals that end a run: a closed terminal too, unless nohup said otherwise."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def noting_signals() -> Iterator[Told]:
    """Note the signals that end a run instead of being interrupted by them."""
    told = Told()

    def note(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
