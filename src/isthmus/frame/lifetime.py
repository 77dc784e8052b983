"""The life of a program: start, run until a signal, drain, stop. The same for server and agent."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Protocol

import uvloop

from isthmus.frame.supervised import Supervisable, Supervised
from isthmus.logs import configure
from isthmus.net.poller import Poller
from isthmus.net.systemd import PASSED, Notifier
from isthmus.settings.program import LogSettings

_log = logging.getLogger("isthmus.app")


class Program(Supervisable, Protocol):
    """Something that starts, drains and stops, and says how it is doing."""

    async def start(self) -> None:
        """Open every port, or raise ConfigError with nothing left open."""

    async def watch(self) -> None:
        """Run the tasks that live as long as the program; cancelled at the end."""

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new and wait for what is open, at most so long."""

    async def stop(self) -> None:
        """Close everything."""


class WorkerProgram(Program, Protocol):
    """A program that runs in a worker."""

    @property
    def poller(self) -> Poller:
        """What watches its sockets."""

    @property
    def calls(self) -> int:
        """How many requests share sockets with others."""

    @property
    def has_peers(self) -> bool:
        """It knows of others that agents may go to, besides its parent's workers."""


async def run(
    program: Program,
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


def main(make: Callable[[], Program], log: LogSettings, *, drain_s: float) -> int:
    """Configure logging and run a program in its own event loop; the exit code."""
    fill_standard_streams()
    configure(log.v, "json" if log.log_format == "json" else "text", sys.stderr)

    PASSED.adopt(os.environ, pid=os.getpid())
    notifier = Notifier.from_environment(os.environ, pid=os.getpid())

    async def start() -> None:
        await run(make(), drain_s=drain_s, notifier=notifier)

    # What is imported by now lives for ever: no collection need look at it again. Tunnels free
    # themselves (tunnel/end.py, Gone), so collections find little and can be few.
    gc.collect()
    gc.freeze()
    uvloop.run(start())
    return 0


def fill_standard_streams() -> None:
    """Open what we were started without: a socket of number 1 or 2 is one that libuv aborts at."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this
    if sys.stderr is None:  # a closed one is None, whatever its type says
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
