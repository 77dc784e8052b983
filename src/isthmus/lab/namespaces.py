"""Network namespaces: enter one, run a program in one, remove one.

Who makes them is lab/fabric.py. Plain blocking code: pyroute2 wants no event loop around it.
Imports pyroute2, which takes its time: import this module only where it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyroute2 import netns

T = TypeVar("T")


def inside(namespace: str, work: Callable[[], T]) -> T:
    """Do something inside a namespace; what it raises is raised here."""

    def enter() -> T:
        # A namespace belongs to a thread: this one ends and takes its place in there with it.
        netns.setns(namespace)
        return work()

    with ThreadPoolExecutor(1, thread_name_prefix=namespace) as one:
        return one.submit(enter).result()


def in_namespace(namespace: str, argv: Sequence[str]) -> list[str]:
    """Write the command that runs another inside a namespace."""
    return ["ip", "netns", "exec", namespace, *argv]


def remove(namespace: str) -> None:
    """Remove a namespace, with its links and rules, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        netns.remove(namespace)
