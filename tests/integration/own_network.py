"""A network of a test's own: addresses may be put on it, and it is gone with the test."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

import pytest

_CLONE_NEWNET = 0x40000000

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Move this thread, and whatever it starts, into a new network namespace with a loopback.

    Nobody names it, so that it ends with the last who is in it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    # Namespaces belong to threads: /proc/self would be the main one.
    with open("/proc/thread-self/ns/net", "rb") as before:
        check(libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
            yield
        finally:
            check(libc.setns(before.fileno(), _CLONE_NEWNET))
