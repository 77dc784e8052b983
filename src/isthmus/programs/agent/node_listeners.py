"""The local ports of node traffic: bound when the agent starts, listening once there is a server.

A port that is bound and does not listen yet refuses connections, as if nobody were there; but
whoever else wants it hears that it is taken, and so do we, before anything runs. A port that
systemd passed in listens already: whoever connects while the agent restarts waits in its queue.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from isthmus.dial.settings_targets import FLAG, Target
from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.net.listen import Listener
from isthmus.net.poller import Poller
from isthmus.net.systemd import PASSED, PassedSocket
from isthmus.values import HostPort

_BACKLOG = 4096
_log = logging.getLogger("isthmus.agent")

#: Takes what was accepted for a destination.
Accept = Callable[[HostPort, socket.socket], None]


def reserve(address: IPv4Address | IPv6Address, port: int) -> socket.socket:
    """Bind a port and do not listen yet, or take the one that systemd passed in.

    Raises:
        OSError: it is not to be had.
    """
    passed = PASSED.take_tcp(FLAG, lambda: (str(address), port))
    if passed:
        return passed[0]
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            # Without SO_REUSEADDR at first: with it, Linux lets two bind the same port as long as
            # neither listens, and another agent would not be noticed.
            sock.bind((str(address), port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            # Perhaps only connections of an agent that ran before us, in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def start_listening(sock: socket.socket) -> None:
    """Listen at a port that was reserved.

    Raises:
        OSError: somebody else listens there by now.
    """
    if isinstance(sock, PassedSocket):
        return
    # Only now: what is accepted inherits it, and must not keep the agent that comes after us from
    # binding while it is in TIME_WAIT.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.listen(_BACKLOG)


class _Place(NamedTuple):
    """One target at one address."""

    address: IPv4Address | IPv6Address
    target: Target

    def __str__(self) -> str:
        return str(HostPort(str(self.address), self.target.local_port))


class NodeListeners:
    """The ports of every target at every address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        *,
        addresses: Sequence[IPv4Address | IPv6Address],
        targets: Sequence[Target],
        accept: Accept,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._places = [_Place(address, target) for address in addresses for target in targets]
        self._accept = accept
        self._reserved: dict[_Place, socket.socket] = {}
        self._listeners: dict[_Place, Listener] = {}
        self._refused = ""

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Those that listen."""
        return tuple(self._listeners.values())

    @property
    def trouble(self) -> str:
        """Why a port that was bound cannot listen; empty when none was refused."""
        return self._refused

    @property
    def complete(self) -> bool:
        """Every port listens."""
        return len(self._listeners) == len(self._places)

    def bind(self) -> None:
        """Bind every port.

        Raises:
            ConfigError: one cannot be bound; the others are closed again.
        """
        for place in self._places:
            try:
                self._reserved[place] = reserve(place.address, place.target.local_port)
            except OSError as exc:
                self.close()
                raise ConfigError(_why_not(place, exc)) from exc

    def listen(self) -> None:
        """Open what is bound; what is refused now is kept, to be tried again."""
        self._refused = ""
        for place, sock in list(self._reserved.items()):
            try:
                start_listening(sock)
            except OSError as exc:
                self._refused = _why_not(place, exc)
                continue
            del self._reserved[place]
            accepted = partial(self._accept, place.target.destination)
            listener = Listener(self._loop, self._poller, sock, accepted)
            self._listeners[place] = listener
            log(
                _log, logging.INFO, "accepting connections from the node", at=listener.name,
                destination=str(place.target.destination),
            )  # fmt: skip

    def close(self) -> None:
        """Accept nothing more; what waits to be accepted, the kernel resets, or systemd keeps."""
        for listener in self._listeners.values():
            listener.stop()
        for sock in self._reserved.values():
            sock.close()
        self._listeners.clear()
        self._reserved.clear()


def _why_not(place: _Place, exc: OSError) -> str:
    where = f"{FLAG} {place.target}: cannot listen on {place}"
    if exc.errno == errno.EADDRINUSE:
        return f"{where}: another agent on this node, or some other program, has that port"
    if exc.errno == errno.EADDRNOTAVAIL:
        return f"{where}: this node does not have the address {place.address}"
    return f"{where}: {exc.strerror or exc}"
