"""A program in its process: loop, logging and signals; run, drain, stop; status for systemd.

Liveness for systemd's watchdog is that of the health port: systemd restarts a program when a
kubelet would. The protocol is in net/systemd.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import uvloop

from isthmus.frame.admin.answers import Check
from isthmus.frame.health import Health
from isthmus.logs import configure
from isthmus.net.systemd import PASSED, Notifier
from isthmus.settings.program import LogSettings

_log = logging.getLogger("isthmus.app")
# malloc.h; mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: More than a link keeps until it is acknowledged (tunnel/replaceable.py), or that faults instead.
_KEEP_FREE_BYTES, _MAP_FROM_BYTES = 8 * 2**20, 2**20
#: If one of these is set, the operator has chosen.
_ALLOCATOR_VARIABLES = frozenset(
    {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
)
#: How often the status line is checked; it is sent when it has changed.
STATUS_EVERY_S = 10.0
#: How soon to check again when something is wrong.
TROUBLE_EVERY_S = 1.0
#: How long systemd is asked to wait after each check during a drain, whatever its own limit.
_EXTEND_USEC = 30_000_000


class Supervisable(Protocol):
    """A program with a status."""

    @property
    def health(self) -> Health:
        """Its liveness."""

    def status(self) -> str:
        """Its state in one line."""


class Runnable(Supervisable, Protocol):
    """A program or parent that starts, drains and stops, and has a status."""

    async def start(self) -> None:
        """Open every port, or raise ConfigError with nothing left open."""

    async def watch(self) -> None:
        """Run the tasks that live as long as the program; cancelled at the end."""

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new and wait for what is open, at most this long."""

    async def stop(self) -> None:
        """Close everything."""


async def run(
    program: Runnable,
    *,
    drain_s: float,
    started: Callable[[], None] | None = None,
    signals: bool = True,
    notifier: Notifier | None = None,
) -> None:
    """Run a program until SIGTERM or SIGINT, then drain; a second signal stops at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if told.is_set() else told).set()

    await program.start()
    if signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
    supervised = Supervised(notifier, program)
    try:
        PASSED.check_taken()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(program.watch(), name="watch")
            telling = tasks.create_task(supervised.watch(), name="supervised")
            if started is not None:
                started()
            await told.wait()
            _log.info("draining")
            supervised.leave()
            draining = tasks.create_task(program.drain(drain_s), name="drain")
            hurried = tasks.create_task(hurry.wait(), name="hurry")
            await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
            for task in (draining, hurried, watching, telling):
                task.cancel()
    finally:
        await program.stop()


#: Waits for what a program needs before its start; False ends it without starting.
Before = Callable[[Notifier | None], Awaitable[bool]]


def main(
    make: Callable[[], Runnable],
    log: LogSettings,
    *,
    drain_s: float,
    before: Before | None = None,
) -> int:
    """Configure logging and run a program in its own event loop; returns the exit code."""
    fill_standard_streams()
    configure(log.v, "json" if log.log_format == "json" else "text", sys.stderr)

    PASSED.adopt(os.environ, pid=os.getpid())
    notifier = Notifier.from_environment(os.environ, pid=os.getpid())

    async def start() -> None:
        if before is None or await before(notifier):
            await run(make(), drain_s=drain_s, notifier=notifier)

    settle_memory()
    uvloop.run(start())
    return 0


def settle_memory() -> None:
    """Tune the garbage collector and the allocator for this program, before its loop runs."""
    # Objects imported by now live for ever: collections need not visit them again. Tunnels free
    # themselves (tunnel/end.py, Gone), so collections find little and can be rare.
    gc.collect()
    gc.freeze()
    # Every read is a block of up to 64 KiB that lives until it is sent. glibc returns free memory
    # at the end of its heap from 128 KiB on, and if those blocks are at the end, all of them are
    # faulted in again, page by page: 180,000 faults per GB, a fifth of the CPU time of a download
    # over a gRPC link.
    if _ALLOCATOR_VARIABLES.isdisjoint(os.environ):
        with contextlib.suppress(AttributeError):  # another C library, such as musl, has none
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE_BYTES)
            # Setting one stops the dynamic adjustment of the other.
            mallopt(_M_MMAP_THRESHOLD, _MAP_FROM_BYTES)


def fill_standard_streams() -> None:
    """Open missing standard streams: libuv aborts at a socket with descriptor 1 or 2."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stderr is None:  # a closed one is None, despite its type
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


class Supervised:
    """Reports the status of a program to a notifier, if there is one."""

    def __init__(self, notifier: Notifier | None, program: Supervisable) -> None:
        self._notifier = notifier
        self._program = program
        self._said = ""
        self._leaving = False

    async def watch(self) -> None:
        """Report readiness, then the status, until cancelled."""
        if self._notifier is None:
            return
        self._said = self._program.status()
        self._notifier.tell(READY=1, STATUS=self._said)
        while True:
            await asyncio.sleep(self._look(self._notifier))

    def leave(self) -> None:
        """Report the drain."""
        self._leaving = True
        if self._notifier is not None:
            self._notifier.tell(STOPPING=1, STATUS="draining", EXTEND_TIMEOUT_USEC=_EXTEND_USEC)

    def _look(self, notifier: Notifier) -> float:
        """Report the current status; return the seconds until the next check."""
        failed = [check for check in self._program.health.live() if check.failure]
        if notifier.watchdog_s and not failed:
            notifier.tell(WATCHDOG=1)
        if self._leaving:
            notifier.tell(EXTEND_TIMEOUT_USEC=_EXTEND_USEC)
        status = self._status(failed)
        if status != self._said:
            self._said = status
            notifier.tell(STATUS=status)
        pause_s = TROUBLE_EVERY_S if failed else STATUS_EVERY_S
        # Half the interval, as sd_watchdog_enabled(3) recommends.
        return min(pause_s, notifier.watchdog_s / 2) if notifier.watchdog_s else pause_s

    def _status(self, failed: Sequence[Check]) -> str:
        if failed:
            return f"unhealthy: {failed[0].name}: {failed[0].failure}"
        return f"draining: {self._program.status()}" if self._leaving else self._program.status()


def counted(number: int, noun: str) -> str:
    """A count with its noun: ``1 agent``, ``2 agents``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
