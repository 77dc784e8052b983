"""Where node ports on localhost are listened at: opened and closed as Services change.

A port that another program has is no reason to end: it is said whose it is, and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import pwd
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.logs import log
from isthmus.net.connection_gate import endpoint
from isthmus.net.listen import Listener, bind_tcp
from isthmus.programs.node_proxy.kernel.sockets import listener_owner, processes_of
from isthmus.programs.node_proxy.localhost import LocalhostConnections
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.rules.localhost import LocalhostPort, localhost_ports
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.view import LocalhostPortView
from isthmus.values import HostPort

FLAG = "--nftables-localhost-nodeports"
#: How soon a port that another program has is tried again.
RETRY_S = 1.0
#: Lines about ports that cannot be had, each time that there are new ones.
_MOST_LINES = 20
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_log = logging.getLogger("isthmus.node_proxy")


class LocalhostListeners(Part):
    """Listens at the node ports of the views that it hears of."""

    def __init__(
        self,
        ground: Ground[NodeProxySettings, NodeProxyMetrics],
        connections: LocalhostConnections,
    ) -> None:
        self._ground = ground
        self._connections = connections
        self._by_family: dict[IpFamily, dict[HostPort, LocalhostPort]] = {}
        self._wanted: Mapping[HostPort, LocalhostPort] = {}
        self._open: dict[HostPort, Listener] = {}
        #: Ports that cannot be had, and why.
        self._taken: dict[HostPort, str] = {}
        self._changed = asyncio.Event()
        self._leaving = False

    def heard_view(self, view: ServiceView) -> None:
        """Rules of a family are in force: what they lead to is what ports lead to."""
        found = localhost_ports(view)
        if found != self._by_family.get(view.family):
            self._by_family[view.family] = found
            self._changed.set()

    # Part.

    @override
    def start(self) -> None:
        ours = self._ground.metrics.localhost
        ours.listening = lambda: len(self._open)
        ours.taken = lambda: len(self._taken)

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "localhost", self._run()

    @override
    def drain(self) -> None:
        self._leaving = True
        for listener in self._open.values():
            listener.stop()
        self._open.clear()

    @override
    def close(self) -> None:
        self.drain()

    @override
    def listeners(self) -> Iterable[Listener]:
        return self._open.values()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        counts = self._connections.endpoints.counts
        return {
            "localhost_node_ports": tuple(
                LocalhostPortView(
                    address=str(at),
                    service=str(port.key),
                    endpoints=tuple(map(str, port.endpoints)),
                    connections=sum(counts[each] for each in port.endpoints),
                    trouble=self._taken.get(at, ""),
                )
                for at, port in self._wanted.items()
            )
        }

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._follow()
            await self._open_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._taken else None):
                    await self._changed.wait()

    def _follow(self) -> None:
        """Take over what is wanted now; connections that are open go on, as in the kernel."""
        self._wanted = {at: port for of in self._by_family.values() for at, port in of.items()}
        for at in [at for at in self._open if at not in self._wanted]:
            self._open.pop(at).stop()
        self._taken = {at: why for at, why in self._taken.items() if at in self._wanted}
        self._connections.affinity.forget({port.key: port for port in self._wanted.values()})

    async def _open_all(self) -> None:
        busy: list[HostPort] = []
        for at in self._wanted:
            if at in self._open or self._leaving:
                continue
            try:
                (sock,) = bind_tcp(at.host, at.port, flag=FLAG)
            except ConfigError as error:
                if at not in self._taken:
                    cause = error.__cause__
                    number = cause.errno if isinstance(cause, OSError) else None
                    self._taken[at] = str(error)
                    if number == errno.EADDRINUSE:
                        busy.append(at)
                    else:
                        self._say_refused(at, number)
                continue
            self._opened(at, sock)
        if busy:
            await self._say_busy(busy)

    def _opened(self, at: HostPort, sock: socket.socket) -> None:
        ground = self._ground
        self._open[at] = Listener(ground.loop, ground.poller, sock, partial(self._accept, at))
        if self._taken.pop(at, None) is not None:
            log(_log, logging.INFO, "a node port on localhost is ours now", address=str(at))

    def _accept(self, at: HostPort, sock: socket.socket) -> None:
        self._connections.accept(sock, self._wanted.get(at))

    def _say_refused(self, at: HostPort, number: int | None) -> None:
        what = (
            "this host has no such address: node ports of its family are not on localhost"
            if number in _NO_FAMILY
            else self._taken[at]
        )
        self._ground.once.log(
            ("localhost", at.host, number), 3600.0, _log, logging.WARNING,
            "a node port cannot be opened on localhost", address=str(at), reason=what,
        )  # fmt: skip

    async def _say_busy(self, busy: list[HostPort]) -> None:
        owners = await asyncio.to_thread(_owners, busy)
        self._taken.update(owners)
        for at in busy[:_MOST_LINES]:
            log(
                _log, logging.WARNING, "a node port on localhost is taken; it is tried again",
                address=str(at), service=str(self._wanted[at].key), by=owners[at],
            )  # fmt: skip
        if len(busy) > _MOST_LINES:
            log(
                _log, logging.WARNING, "more node ports on localhost are taken",
                number=len(busy) - _MOST_LINES,
            )  # fmt: skip


def _owners(busy: list[HostPort]) -> dict[HostPort, str]:
    """Who has these ports, in words; blocks."""
    found = {at: listener_owner(endpoint((at.host, at.port))) for at in busy}
    processes = processes_of({owner.inode for owner in found.values() if owner is not None})
    said = {}
    for at, owner in found.items():
        if owner is None:
            said[at] = "a socket that does not listen"
            continue
        names = processes.get(owner.inode, [])
        said[at] = f"{', '.join(names[:3]) or 'a process out of sight'} of {_user(owner.uid)}"
    return said


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
