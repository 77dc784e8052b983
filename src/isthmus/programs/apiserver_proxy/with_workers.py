"""The apiserver proxy with workers: the address of the node is the parent's to put and to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from isthmus.frame.descriptors import allow_connections
from isthmus.frame.handed import Handed, WorkerSlot
from isthmus.frame.listening import tcp_sockets
from isthmus.frame.part import Part
from isthmus.frame.sharing import BoundSocket, WorkerPlan
from isthmus.logs import OncePer
from isthmus.programs.apiserver_proxy.address import Addresses
from isthmus.programs.apiserver_proxy.planning import read_plan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.programs.apiserver_proxy.program import ApiserverProxy

LISTEN = "--listen"


class _OfParent(Part):
    """The addresses, and what the parent says of them and of its ports in a snapshot."""

    def __init__(self, addresses: Addresses, listeners: list[str]) -> None:
        self._addresses = addresses
        self._listeners = listeners

    @override
    async def open(self) -> None:
        await self._addresses.put()

    @override
    def tasks(self) -> Any:
        yield "address", self._addresses.watch()

    @override
    async def wait_closed(self) -> None:
        await self._addresses.take_away()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"listeners": tuple(self._listeners), "addresses": self._addresses.held}


def worker_plan(settings: ApiserverProxySettings) -> WorkerPlan:
    """Share a proxy between processes.

    Raises:
        ConfigError: its plan is wrong.
    """
    plan = read_plan(settings.config) if settings.config else settings.plan()
    allow_connections(plan.max_connections)
    addresses = Addresses(plan, OncePer())
    listeners: list[str] = []

    def bind() -> Iterator[BoundSocket]:
        for bound in tcp_sockets(LISTEN, plan.listen):
            listeners.append(str(HostPort(*bound.sock.getsockname()[:2])))
            yield bound

    def of_slot(slot: WorkerSlot) -> ApiserverProxySettings:
        if settings.config:  # what its file says holds for each worker
            return settings
        return slot.shared(settings, "max_connections", "max_connections_per_source")

    return WorkerPlan(
        bind=bind,
        settings=of_slot,
        parts=(_OfParent(addresses, listeners),),
        # Whoever came in by an uplink, which the rule should have kept away.
        refuses=lambda sock: bool(addresses.uplink_of(sock)),
        reloads=True,
    )


def in_worker(settings: ApiserverProxySettings, handed: Handed) -> ApiserverProxy:
    """Make the proxy of a worker."""
    from isthmus.programs.apiserver_proxy.program import ApiserverProxy

    return ApiserverProxy(settings, handed=handed)
