"""How many files and sockets this process may open."""

from __future__ import annotations

import resource

#: What "unlimited" is taken for, and more than which is not asked for.
_MANY = 1_048_576
#: Those that are not connections': listeners, HTTP ports, files.
_OTHERS = 64


def descriptors() -> int:
    """How many may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else soft


def allow_all() -> None:
    """Raise the soft limit to the hard one, as Go's programs do by themselves.

    It is 1,024 on most systems for the sake of select(2), which is not used here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY if hard == resource.RLIM_INFINITY else min(hard, _MANY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(asked: int) -> int:
    """How many connections the descriptors of this process allow, each with two; at most asked."""
    return max(1, min(asked, (descriptors() - _OTHERS) // 2))


def places(asked: int, share: int) -> int:
    """How many places a port has: as many as asked for, or this part of the descriptors."""
    return asked or max(2, descriptors() // share)


def allow_connections(connections: int) -> None:
    """Raise the soft limit of this process as far as so many connections want and it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
