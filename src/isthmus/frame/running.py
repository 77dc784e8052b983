"""The start of a program: in one process, in a parent of workers, or in one of those workers.

Before that it waits for missing files. A pod may start before its certificates and its kubeconfig
are mounted; if the program exited then, the kubelet would restart it with growing delays.
Meanwhile the health port answers, alive and not ready; nothing else is open. The contents are
checked when the program begins: an invalid file is an error at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from isthmus.frame import lifetime
from isthmus.frame.admin.answers import PING, Check, Watched
from isthmus.frame.admin.ports import Port, PortAccess
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.model.history import History
from isthmus.frame.model.snapshot import ProgramView
from isthmus.frame.operator_ports import open_health, open_health_tls
from isthmus.frame.program import Program
from isthmus.logs import log
from isthmus.net.systemd import PASSED, Notifier
from isthmus.settings.options import FILE, options_of
from isthmus.text.durations import format_duration


def main(program: Program, settings: Any) -> int:
    """Run a program until it is told to stop; returns the exit code.

    Raises:
        ConfigError: a setting or a file is wrong, or a port cannot be bound.
    """
    if program.has_workers(settings):
        return _with_workers(program, settings)
    os.umask(0o077)
    program.found(program.parts)  # imported before the garbage collector freezes what is loaded
    drain_s = getattr(settings, "graceful_shutdown_timeout_s", 0.0)
    return lifetime.main(
        lambda: Lifecycle(program, settings, signals=True),
        settings.log,
        drain_s=drain_s,
        before=before(program, settings),
    )


def _with_workers(program: Program, settings: Any) -> int:
    from isthmus.frame.workers.worker import inherited

    found = inherited(os.environ)
    if found is not None:
        from isthmus.frame.workers.worker import main as run_worker

        return run_worker(program, settings, found)
    from isthmus.frame.workers.parent import main as run_parent

    return run_parent(program, settings, before=before(program, settings))


def before(program: Program, settings: Any) -> lifetime.Before | None:
    """What the program waits for before it begins; None for nothing."""
    if not getattr(settings, "wait_for_files_s", 0.0):
        return None
    return partial(wait_for_files, program, settings)


LOOK_S = 0.25
#: How long systemd is asked to wait, after each check.
_EXTEND_USEC = 30_000_000
_log = logging.getLogger("isthmus.app")


def missing_files(settings: Any) -> dict[str, str]:
    """The missing or empty files that these settings name, and their flags."""
    unread = settings.unread_files
    return {
        path: f"--{option.flag}"
        for option in options_of(type(settings))
        if option.metavar == FILE and option.attribute not in unread
        for path in option.files_in(settings)
        if _is_missing(path)
    }


def _is_missing(path: str) -> bool:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # reading it reports the error
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_size


async def wait_for_files(program: Program, settings: Any, notifier: Notifier | None) -> bool:
    """Wait until all files are there, or --wait-for-files is over; False when told to exit.

    Raises:
        ConfigError: the health port cannot be opened.
    """
    missing = missing_files(settings)
    if not (missing and settings.wait_for_files_s):
        return True
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    waiting = _Waiting(program, settings, missing)
    try:
        await waiting.open()
        log(
            _log, logging.WARNING, "waiting for missing files",
            files=",".join(missing), wait=format_duration(settings.wait_for_files_s),
        )  # fmt: skip
        if notifier is not None:
            notifier.tell(STATUS=waiting.said)
        async with asyncio.timeout(settings.wait_for_files_s):
            while waiting.missing and not told.is_set():
                if notifier is not None:
                    notifier.tell(EXTEND_TIMEOUT_USEC=_EXTEND_USEC)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await told.wait()
                waiting.missing = missing_files(settings)
                if waiting.missing:  # its own certificate may be there now
                    await waiting.open()
    except TimeoutError:
        pass
    finally:
        await waiting.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if told.is_set():
        log(_log, logging.INFO, "stopped while waiting for files")
    return not told.is_set()


class _Waiting:
    """The health port of a program that has not begun yet."""

    def __init__(self, program: Program, settings: Any, missing: Mapping[str, str]) -> None:
        self._program = program
        self._settings = settings
        self._port: Port | None = None
        self.missing = missing

    @property
    def said(self) -> str:
        """What the program waits for."""
        return f"waiting for {', '.join(f'{flag} {path}' for path, flag in self.missing.items())}"

    async def open(self) -> None:
        """Open the port, unless it is open already or its files are missing."""
        flags = self._program.operator_flags
        if self._port is not None:
            return
        # A socket of systemd can be taken only once, and belongs to the program. Without its
        # certificate the port cannot answer any client.
        if flags is None or PASSED or self.missing.keys() & set(_health_files(self._settings)):
            return
        metrics = self._program.found(self._program.metrics).of(self._settings)
        watched = Watched(
            program=self._program.name,
            instance="",
            settings=self._settings,
            live=lambda: [PING],
            ready=lambda: [PING, Check("files", self.said if self.missing else "starting")],
            metrics=metrics.render,
            open_metrics=metrics.render_open,
            snapshot=_nothing_yet,
            history=History(),
        )
        access = PortAccess(tls=open_health_tls(self._settings))
        self._port = await open_health(self._settings, watched, flags, access=access)

    async def close(self) -> None:
        """Close the port: the program opens its own."""
        if self._port is not None:
            await self._port.close()


def _health_files(settings: Any) -> tuple[str, str]:
    return settings.admin.health_cert, settings.admin.health_key


def _nothing_yet(limit: int) -> ProgramView:
    raise web.HTTPServiceUnavailable(text="waiting for files\n")
