"""Keeps some descriptors back: peers' connections never take the last ones of a process.

Health and admin ports, links, files and whatever else keeps a program in order take any that are
free; sockets of peers (dials, accepted connections, lookups) go through ``for_a_peer``. The kernel
gives out the lowest free number, so a number near the limit says that nearly all below are taken:
nothing is counted, whoever opens what.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import TypeVar

#: What "unlimited" is taken for, and more than which is not asked for.
MANY = 1_048_576
#: Kept back where there are enough: two HTTP ports with room for bursts, links, files, pipes.
MOST_KEPT_BACK = 256
_PART = 8

Sock = TypeVar("Sock", bound=socket.socket)


def descriptors() -> int:
    """How many may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY if soft == resource.RLIM_INFINITY else soft


def kept_back(limit: int) -> int:
    """How many of them are not for peers: an eighth, and 256 at most."""
    return min(MOST_KEPT_BACK, limit // _PART)


_edge = 0  # the first number that was kept back when the limit was last asked for


def is_kept_back(fd: int) -> bool:
    """Whether a number that was just given out is one of the last, which are not for peers."""
    # Asking for the limit takes 2 µs, which every dial would pay. A program only ever raises its
    # own limit, so that a number below the edge stays below it.
    global _edge
    if fd < _edge:
        return False
    limit = descriptors()
    _edge = limit - kept_back(limit)
    return fd >= _edge


def for_a_peer(sock: Sock) -> Sock:
    """Hand back a socket that was just opened for a peer.

    Raises:
        OSError: EMFILE, too few descriptors are left; the socket is closed.
    """
    fd = sock.fileno()
    if fd >= _edge and is_kept_back(fd):
        sock.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return sock


def as_it_is(sock: Sock) -> Sock:
    """Hand back a socket that is no peer's, but the program's own."""
    return sock
