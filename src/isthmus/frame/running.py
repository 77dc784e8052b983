"""Where a program begins: in one process, in a parent of workers, or in one of those workers."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from isthmus.frame import lifetime
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.program import Program


def main(program: Program, settings: Any) -> int:
    """Run a program until it is told to stop; the exit code.

    Raises:
        ConfigError: a setting or a file is wrong, or a port cannot be bound.
    """
    if program.has_workers(settings):
        return _with_workers(program, settings)
    os.umask(0o077)
    program.found(program.parts)  # imported before the collector is told what lives for ever
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
    """What such a program waits for before it begins; None for nothing."""
    if not getattr(settings, "wait_for_files_s", 0.0):
        return None
    from isthmus.frame.waiting import wait_for_files

    return partial(wait_for_files, program, settings)
