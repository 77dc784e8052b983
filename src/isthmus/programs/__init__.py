"""One folder for each program that runs for long, and ``sidecar``, which two of them share.

Each room declares its ``PROGRAM``. Whatever shows programs walks ``programs()``: this list is the
only one. A room may not import another; how to write one is in ``isthmus.frame``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from isthmus.frame.program import Program

#: In the order of a first day.
ROOMS = (
    "server", "agent", "sni_router", "socks5_proxy", "https_proxy", "node_proxy",
    "apiserver_proxy",
)  # fmt: skip


@cache
def programs() -> tuple[Program, ...]:
    """Every program, in the order that commands and pages have."""
    return tuple(import_module(f"{__name__}.{room}").PROGRAM for room in ROOMS)


def program_named(name: str) -> Program | None:
    """The program of this name on the command line."""
    return next((it for it in programs() if it.name == name), None)


def program_of(settings: object) -> Program:
    """The program that these settings are for."""
    return next(it for it in programs() if isinstance(settings, it.settings_class))


def kind_names() -> dict[str, str]:
    """The name of each program by the ``kind`` of its snapshots, where only one has that kind."""
    kinds = [it.snapshot_kind for it in programs()]
    return {it.snapshot_kind: it.name for it in programs() if kinds.count(it.snapshot_kind) == 1}
