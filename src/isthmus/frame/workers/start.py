"""Where a command begins that has workers: in the parent, or in one of them."""

from __future__ import annotations

import os
from typing import Any

from isthmus.frame.program import Program
from isthmus.frame.workers.worker import inherited


def main(program: Program, settings: Any) -> int:
    """Run the parent, or the worker that this process was started as; the exit code."""
    found = inherited(os.environ)
    if found is not None:
        from isthmus.frame.workers.worker import main as run_worker

        return run_worker(program, settings, found)
    from isthmus.frame.workers.parent import main as run_parent

    return run_parent(program, settings)
