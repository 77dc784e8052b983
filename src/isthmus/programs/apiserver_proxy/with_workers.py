"""The apiserver proxy with workers: the address of the node is the parent's to put and to keep."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from isthmus.frame.descriptors import allow_connections
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import ApiserverProxyView
from isthmus.frame.observe.counters import Family
from isthmus.frame.operator_ports import Door
from isthmus.frame.workers.kind import BaseKind, BoundSocket, Place, WorkerProgram
from isthmus.logs import OncePer
from isthmus.net.listen import bind_tcp
from isthmus.programs.apiserver_proxy.address import Addresses
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.planning import read_plan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.values import HostPort

LISTEN = "--listen"


class ApiserverProxyKind(BaseKind):
    """``isthmus apiserver-proxy``."""

    name = "apiserver-proxy"
    view = ApiserverProxyView
    reloads = True

    def __init__(self, settings: ApiserverProxySettings) -> None:
        """Read the plan.

        Raises:
            ConfigError: it is wrong.
        """
        self.settings = settings
        self.workers = settings.workers
        self.drain_s = settings.graceful_shutdown_timeout_s
        self.health = Door(host=settings.health_bind_address, port=settings.health_port)
        self.admin_port = settings.admin_port
        self._plan = read_plan(settings.config) if settings.config else settings.plan()
        self._addresses = Addresses(self._plan, OncePer())
        self._listeners: list[str] = []

    def families(self) -> Iterable[Family]:
        """Give those of a worker."""
        return ApiserverProxyMetrics().families

    def allow(self) -> None:
        """Take as many descriptors as all connections want."""
        allow_connections(self._plan.max_connections)

    async def before(self) -> None:
        """Put the addresses in their place."""
        await self._addresses.put()

    def bind(self) -> Iterator[BoundSocket]:
        """Bind every port."""
        for host, port in self._plan.listen:
            for sock in bind_tcp(host, port, flag=LISTEN):
                self._listeners.append(str(HostPort(*sock.getsockname()[:2])))
                yield BoundSocket(LISTEN, sock)

    def refuses(self, sock: socket.socket) -> bool:
        """Whoever came in by an uplink, which the rule should have kept away."""
        return bool(self._addresses.uplink_of(sock))

    async def watch(self) -> None:
        """See that the addresses are there."""
        await self._addresses.watch()

    async def after(self) -> None:
        """Take the addresses away."""
        await self._addresses.take_away()

    def same(self) -> dict[str, Any]:
        """Where the parent listens."""
        return {"listeners": tuple(self._listeners), "addresses": self._addresses.held}

    def make(self, place: Place, handed: Handed) -> WorkerProgram:
        """Make the proxy of a worker; what flags say may be carried, it has its part of."""
        from isthmus.programs.apiserver_proxy.program import ApiserverProxy

        settings = self.settings
        if not settings.config:
            settings = replace(
                settings,
                max_connections=place.share(settings.max_connections),
                max_connections_per_source=place.share(settings.max_connections_per_source),
            )
        return ApiserverProxy(settings, handed=handed)
