"""The signals that end what somebody started in a terminal, and noting them instead of dying."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


def stop_signals() -> list[signal.Signals]:
    """Name the signals that end a run: a closed terminal too, unless nohup said otherwise."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def noting_signals() -> Iterator[threading.Event]:
    """Note the signals that end a run instead of being interrupted by them."""
    told = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, note) for number in stop_signals()}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
