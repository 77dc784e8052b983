"""How many files and sockets this process may open; what is kept back is net/descriptors.py."""

from __future__ import annotations

import resource

from isthmus.net.descriptors import MANY, MOST_KEPT_BACK, descriptors, kept_back

#: Those that a program has from its start: listeners, files, the event loop's.
_FIRST = 32


def allow_all() -> None:
    """Raise the soft limit to the hard one, as Go's programs do by themselves.

    It is 1,024 on most systems for the sake of select(2), which is not used here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY if hard == resource.RLIM_INFINITY else min(hard, MANY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(asked: int) -> int:
    """How many connections the descriptors of this process allow, each with two; at most asked."""
    limit = descriptors()
    return max(1, min(asked, (limit - kept_back(limit) - _FIRST) // 2))


def places(asked: int, share: int) -> int:
    """How many places a port has: as many as asked for, or this part of the descriptors."""
    return asked or max(2, descriptors() // share)


def allow_connections(connections: int) -> None:
    """Raise the soft limit of this process as far as so many connections want and it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _FIRST + MOST_KEPT_BACK
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
