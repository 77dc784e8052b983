"""The heartbeat of an event loop, and a thread that says where the loop is stuck while it is.

A loop that is stuck cannot answer a probe: the probe times out, and that is the truth. What is
added here is why: the stack of the loop's thread while it is stuck, and afterwards how often and
how long, for the metrics and for liveness (health.py).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable

from isthmus.frame.observe.program import ProgramMetrics
from isthmus.logs import log

BEAT_S = 1.0
#: A heartbeat that is this late is a stall.
STALL_S = 5.0
#: A stall is told for so long after its end, so that a probe that waited through it hears of it.
RECENT_S = 10.0
_MOST_FRAMES = 16  # what a log line has room for
_log = logging.getLogger("isthmus.app")


class Heartbeat:
    """Beats once a second in the loop it was made in, from ``start`` to ``stop``.

    ``beaten`` is called at every beat. The numbers are written by the loop's thread alone; the
    watchdog's thread reads one of them, when the last beat was.
    """

    def __init__(
        self,
        metrics: ProgramMetrics,
        beaten: Callable[[float], None],
        *,
        beat_s: float = BEAT_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._beaten = beaten
        self._beat_s = beat_s
        self._stall_s = stall_s
        self._timer: asyncio.TimerHandle | None = None
        self._last = time.monotonic()
        self._ended = float("-inf")
        self._lasted = 0.0
        self._loop_thread = 0
        self._stopping = threading.Event()

    def start(self) -> None:
        """Beat from now on, watched by a thread."""
        self._last = time.monotonic()
        self._loop_thread = threading.get_ident()
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        # A daemon: it holds nothing that the end of the process could damage.
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop beating; the thread ends by itself."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def trouble(self) -> str:
        """Say what is wrong with the loop; empty while it keeps time."""
        now = time.monotonic()
        if self._timer is None:
            return ""
        late = now - self._last - self._beat_s
        if late > self._stall_s:  # we answer, so it turns, but its timers do not get their turn
            return f"its timers are {late:.1f} s late"
        if now - self._ended < RECENT_S:
            return f"it was stuck for {self._lasted:.1f} s until a moment ago"
        return ""

    def _beat(self) -> None:
        now = time.monotonic()
        late = max(0.0, now - self._last - self._beat_s)
        stalled = late > self._stall_s
        self._metrics.loop_lagged(late, stalled=stalled)
        self._last = now
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        if stalled:
            self._ended, self._lasted = now, late
            log(_log, logging.ERROR, "the event loop was stuck", seconds=round(late, 1))
        self._beaten(self._loop.time())

    def _watch(self) -> None:
        """Look at the last beat from a thread; say once in each stall where the loop is."""
        said, looked = 0.0, self._last
        while not self._stopping.wait(self._beat_s):
            now, before, looked = time.monotonic(), looked, time.monotonic()
            # The whole process stood still (SIGSTOP, a machine without time): the loop is not to
            # blame, and gets the time to beat first.
            slept = now - before > self._beat_s + self._stall_s / 2
            last = self._last
            if slept or last == said or now - last - self._beat_s <= self._stall_s:
                continue
            said = last
            self._say_where(now - last - self._beat_s)

    def _say_where(self, late: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        where: list[str] = []
        while frame is not None and len(where) < _MOST_FRAMES:
            code = frame.f_code
            file = "/".join(code.co_filename.rsplit("/", 2)[1:])
            where.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
            frame = frame.f_back
        log(
            _log, logging.ERROR, "the event loop is stuck", seconds=round(late, 1),
            stuck_in=" < ".join(where),
        )  # fmt: skip
