"""How many processes share the work of one program: the flag, and what each of them is called.

What a parent of workers does is isthmus.frame.workers; with one worker there is no parent.
"""

from __future__ import annotations

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, option

#: More than any machine needs; a tunnel's number has two digits for its worker's.
MOST_WORKERS = 64
GROUP = "Workers"


def workers_option() -> int:
    """Declare --workers, as the default of a settings class's field."""
    return option(
        1,
        help="Share the work between so many processes, each with an event loop of its own; 0 "
        "takes as many as there are CPUs to use",
        group=GROUP,
        metavar="N",
        go=OURS,
    )


def check_workers(count: int) -> None:
    """Hold --workers against what there can be.

    Raises:
        ConfigError: it is no number of workers.
    """
    if not 0 <= count <= MOST_WORKERS:
        raise ConfigError(f"--workers must be from 0 to {MOST_WORKERS}, not {count}")


def worker_id(program_id: str, index: int) -> str:
    """Name a worker: its id is that of its program and its number."""
    return f"{program_id}-w{index}"
