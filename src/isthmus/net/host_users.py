"""Which agents of this host use an address: a count that a killed agent cannot get wrong.

An agent holds a UNIX socket with an abstract name for as long as it uses the address. Such names
belong to the network namespace, as addresses do, so agents in different containers of one host see
each other without sharing a directory; and the kernel forgets them when their process ends, however
it ends. Nothing is ever sent. Anybody on this host can take such names: that may leave an address
where nobody needs it, and never keeps an agent from starting.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from time import monotonic, sleep

#: How many agents of one host that use an address are counted.
MOST_USERS = 64
_WAIT_S = 4.0
_LOOK_AGAIN_S = 0.02
_PREFIX = "\0isthmus/host-address/"


class User:
    """One agent's use of an address; ``close()`` ends it, and so does the end of the process."""

    def __init__(self, address: IPv4Address | IPv6Address) -> None:
        """Begin to use the address; not ``counted`` if too many say that they use it."""
        self._address = address
        self._held: socket.socket | None = None
        for self._place in range(MOST_USERS):
            self._held = _hold(_name(address, self._place))
            if self._held is not None:
                return
        self._place = -1

    @property
    def counted(self) -> bool:
        """Whether others can see this one."""
        return self._held is not None

    def alone(self) -> bool:
        """Tell whether nobody else uses the address."""
        return not used(self._address, but=self._place)

    def close(self) -> None:
        """Use the address no longer; idempotent."""
        if self._held is not None:
            self._held.close()


def used(address: IPv4Address | IPv6Address, *, but: int = -1) -> bool:
    """Tell whether an agent of this host uses the address, other than the one in that place."""
    for place in range(MOST_USERS):
        if place != but:
            held = _hold(_name(address, place))
            if held is None:
                return True
            held.close()
    return False


@contextmanager
def turn() -> Iterator[None]:
    """Have the host's addresses, links and rules to oneself, among all agents of the host.

    After a few seconds it goes on without: anybody on this host can take the name, and nobody may
    keep an agent from starting. What two do at once then is put right by the next refresh.
    """
    deadline = monotonic() + _WAIT_S
    held = _hold(f"{_PREFIX}turn")
    while held is None and monotonic() < deadline:
        sleep(_LOOK_AGAIN_S)
        held = _hold(f"{_PREFIX}turn")
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _name(address: IPv4Address | IPv6Address, place: int) -> str:
    return f"{_PREFIX}{address}/{place}"


def _hold(name: str) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(name)
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held
