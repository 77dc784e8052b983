"""Reserves some descriptors: peers' connections never take the last ones of a process.

Health and admin ports, links, files and other internal users take any free descriptor; sockets
of peers (dials, accepted connections, lookups) go through ``for_a_peer``. The kernel assigns
the lowest free number, so a number near the limit means that nearly all below are taken, and
nothing needs to be counted.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import TypeVar

#: Used for "unlimited", and the most that is requested.
MANY = 1_048_576
#: The reserve, if there are enough: two HTTP ports with room for bursts, links, files, pipes.
MOST_KEPT_BACK = 256
_PART = 8

Sock = TypeVar("Sock", bound=socket.socket)


def descriptors() -> int:
    """The limit of open descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY if soft == resource.RLIM_INFINITY else soft


def kept_back(limit: int) -> int:
    """The reserve that peers cannot use: an eighth, at most 256."""
    return min(MOST_KEPT_BACK, limit // _PART)


_edge = 0  # the first reserved number, as of the last check of the limit


def is_kept_back(fd: int) -> bool:
    """Whether a newly assigned number is in the reserve."""
    # Reading the limit takes 2 µs, which every dial would pay. A program only raises its
    # own limit, so a number below the edge stays below it.
    global _edge
    if fd < _edge:
        return False
    limit = descriptors()
    _edge = limit - kept_back(limit)
    return fd >= _edge


def for_a_peer(sock: Sock) -> Sock:
    """Return a socket that was just opened for a peer.

    Raises:
        OSError: EMFILE, only the reserve is left; the socket is closed.
    """
    fd = sock.fileno()
    if fd >= _edge and is_kept_back(fd):
        sock.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return sock


def as_it_is(sock: Sock) -> Sock:
    """Return a socket of the program's own."""
    return sock
