"""The CPU profile: where the threads of this process are when they use CPU time.

A timer of CPU time (ITIMER_PROF) interrupts the main thread a hundred times for each second that
the process uses; an idle program is not interrupted. At each tick every thread's stack gets the CPU
time that its thread used since the last. The obvious other way, a thread that looks every 10 ms,
sees almost only calls that release the interpreter lock, because those are the moments at which it
gets its turn: this program does one every few microseconds. It is used where signals cannot be,
outside the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType

from isthmus.frame.observe.pprof import Kind, Profile, frame_of, walk

HZ = 100
_PERIOD_NS = 1_000_000_000 // HZ
_Key = tuple[str, tuple[tuple[CodeType, int], ...]]


async def cpu_profile(seconds: float) -> bytes:
    """Measure for so long and give the profile; cancelled, it stops measuring at once.

    One at a time: the timer is the process's.
    """
    samples = _Samples()
    taken_at, started = time.time(), time.monotonic()
    in_main = threading.current_thread() is threading.main_thread()
    with _by_timer(samples) if in_main else _by_thread(samples):
        await asyncio.sleep(seconds)
    return await asyncio.to_thread(samples.profile, taken_at, time.monotonic() - started)


class _Samples:
    """CPU time by thread and stack."""

    def __init__(self) -> None:
        self._found: dict[_Key, list[int]] = {}
        self._used: dict[int, int] = {}
        self.take({}, frozenset())

    def take(self, instead: dict[int, FrameType | None], leave_out: frozenset[int]) -> None:
        """Give each thread's stack the time that it used since the last look.

        ``instead`` has the frames of threads that are busy here, ``leave_out`` those not to count.
        """
        frames: dict[int, FrameType | None] = {**sys._current_frames(), **instead}
        for thread in threading.enumerate():
            ident, native = thread.ident, thread.native_id
            if ident is None or native is None or ident not in frames:
                continue
            now = _cpu_ns(native)
            used = now - self._used.get(native, now)
            self._used[native] = now
            if used > 0 and ident not in leave_out:
                sample = self._found.setdefault((thread.name, walk(frames[ident])), [0, 0])
                sample[0] += 1
                sample[1] += used

    def profile(self, taken_at: float, duration_s: float) -> bytes:
        """Write what was found."""
        profile = Profile(
            Kind("samples", "count"),
            Kind("cpu", "nanoseconds"),
            period=(Kind("cpu", "nanoseconds"), _PERIOD_NS),
            taken_at=taken_at,
            duration_s=duration_s,
        )
        for (thread, stack), values in self._found.items():
            profile.add((frame_of(code, line) for code, line in stack), values, {"thread": thread})
        return profile.to_bytes()


def _cpu_ns(native_id: int) -> int:
    # The CPU clock of a thread, made as pthread_getcpuclockid(3) makes it (Linux,
    # include/linux/posix-timers_types.h): that function itself may crash for a thread that has
    # just ended, while the kernel answers EINVAL.
    try:
        return time.clock_gettime_ns((~native_id << 3) | 6)
    except OSError:
        return 0


@contextlib.contextmanager
def _by_timer(samples: _Samples) -> Iterator[None]:
    main = threading.get_ident()
    none: frozenset[int] = frozenset()

    def tick(number: int, frame: FrameType | None) -> None:
        samples.take({main: frame}, none)

    signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, 1 / HZ, 1 / HZ)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default, which ends the process: a last tick may be on its way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


@contextlib.contextmanager
def _by_thread(samples: _Samples) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        me = frozenset({threading.get_ident()})
        while not stop.wait(1 / HZ):
            samples.take({}, me)

    thread = threading.Thread(target=run, name="pprof", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
