"""The apiserver proxy: a node's own way to the apiserver of its cluster, which runs elsewhere.

What happens to connections is connections.py, the plan planning.py, the address of the node
address.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.frame.listening import Listening, tcp_sockets
from isthmus.frame.part import BoundSocket, Ground, Part, WorkerPlan, WorkerSlot
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.logs import OncePer
from isthmus.net.connection_gate import endpoint
from isthmus.programs.apiserver_proxy.address import Addresses
from isthmus.programs.apiserver_proxy.connections import ProxyConnections, ProxyTunnels
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.plan import ProxyPlan
from isthmus.programs.apiserver_proxy.planning import PlanSource, read_plan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.values import HostPort, is_address

#: How long names may take to be looked up before anybody is let in without.
FIRST_LOOK_S = 2.0
LISTEN = "--listen"

ProxyGround = Ground[ApiserverProxySettings, ApiserverProxyMetrics]


def parts(ground: ProxyGround) -> tuple[Part, ...]:
    """The parts of a proxy, foundations first; the plan decides what some of them are.

    Raises:
        ConfigError: the plan, or a file that it names, is wrong.
    """
    source = PlanSource(ground)
    prepared = source.current
    allow_connections(prepared.plan.max_connections * prepared.pairs)
    addresses = Addresses(prepared.plan, ground.once, put=ground.handed is None)
    tunnels = ProxyTunnels(ground.loop, ground.metrics)
    connections = ProxyConnections(ground, tunnels, prepared, uplink_of=addresses.uplink_of)
    source.changed = connections.adopt
    bound = BoundAddresses(prepared.plan)
    listening = _Listening(ground, bound, connections)
    return source, addresses, bound, TunnelsPart(ground, tunnels), connections, listening


def worker_plan(settings: ApiserverProxySettings) -> WorkerPlan:
    """Share a proxy between processes; the address of the node is the parent's.

    Raises:
        ConfigError: its plan is wrong.
    """
    plan = read_plan(settings.config) if settings.config else settings.plan()
    allow_connections(plan.max_connections)
    addresses, bound = Addresses(plan, OncePer()), BoundAddresses(plan)

    def of_slot(slot: WorkerSlot) -> ApiserverProxySettings:
        if settings.config:  # what its file says holds for each worker
            return settings
        return slot.shared(settings, "max_connections", "max_connections_per_source")

    return WorkerPlan(
        bind=bound.bind,
        settings=of_slot,
        parts=(addresses, bound),
        # Whoever came in by an uplink, which the rule should have kept away.
        refuses=lambda sock: bool(addresses.uplink_of(sock)),
        reloads=True,
    )


class BoundAddresses(Part):
    """Binds what a plan listens at, and shows where that is."""

    def __init__(self, plan: ProxyPlan) -> None:
        self.plan = plan
        self._names: list[str] = []

    def bind(self) -> Iterator[BoundSocket]:
        """Bind every port.

        Raises:
            ConfigError: one cannot be bound.
        """
        for bound in tcp_sockets(LISTEN, self.plan.listen):
            self._names.append(str(HostPort(*bound.sock.getsockname()[:2])))
            yield bound

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"listeners": tuple(self._names)}


class _Listening(Listening):
    """Lets nobody in before names were looked up, or could have been."""

    def __init__(
        self, ground: ProxyGround, bound: BoundAddresses, connections: ProxyConnections
    ) -> None:
        self._connections = connections
        self._plan = bound.plan
        accept = {LISTEN: connections.accept}
        super().__init__(ground, bound.bind, accept, bound=partial(self._listens_at))

    def _listens_at(self, host: str, port: int) -> None:
        """No name may lead there."""
        if is_address(host):
            self._connections.ways.listens_at(endpoint((host, port)))

    @override
    async def open(self) -> None:
        await super().open()
        for host, port in self._plan.listen:  # a worker hears where it is later
            self._listens_at(host, port)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._connections.ways.look_all_up()
