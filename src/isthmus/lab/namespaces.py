"""Network namespaces: enter one, run a program in one, remove one.

fabric.py creates them. Plain blocking code: pyroute2 works without an event loop. Imports pyroute2,
which is slow: import this module only where it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyroute2 import netns

T = TypeVar("T")


def inside(namespace: str, work: Callable[[], T]) -> T:
    """Call ``work`` in a namespace; its exceptions are raised here."""

    def enter() -> T:
        # A namespace belongs to a thread: this thread ends and thereby leaves it.
        netns.setns(namespace)
        return work()

    with ThreadPoolExecutor(1, thread_name_prefix=namespace) as one:
        return one.submit(enter).result()


def in_namespace(namespace: str, argv: Sequence[str]) -> list[str]:
    """The command that runs another command in a namespace."""
    return ["ip", "netns", "exec", namespace, *argv]


def remove(namespace: str) -> None:
    """Remove a namespace with its links and rules, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        netns.remove(namespace)
