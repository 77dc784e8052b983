"""How a program shares its work between processes: what the parent binds, what each worker is told.

The processes themselves are isthmus.frame.workers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from isthmus.frame.handed import WorkerSlot
from isthmus.frame.part import Part


class BoundSocket(NamedTuple):
    """A socket that listens, the flag that said so, and whether agents come there."""

    flag: str
    sock: socket.socket
    for_agents: bool = False


def _nobody(sock: socket.socket) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """How a program shares its work between processes.

    The parent opens ``parts``, then everything that ``bind`` gives, and hands over what comes
    there, apart from what it ``refuses``. Each worker is told ``settings``. With ``reloads``,
    SIGHUP has the workers reload.
    """

    bind: Callable[[], Iterable[BoundSocket]]
    settings: Callable[[WorkerSlot], Any]
    parts: tuple[Part, ...] = ()
    refuses: Callable[[socket.socket], bool] = _nobody
    reloads: bool = False
