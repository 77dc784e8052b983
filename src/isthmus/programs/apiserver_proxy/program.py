"""The apiserver proxy: a node's own address for the apiserver of its cluster.

The proxy puts its addresses on ``lo`` and removes them when it ends; net/host_address.py keeps
other machines from them and lets several programs of a host share one. Connections are handled in
connections.py, the plan in planning.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.listening import Listening, tcp_sockets
from isthmus.frame.part import BoundSocket, Ground, LongTask, Part, WorkerPlan, WorkerSlot
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.logs import OncePer, log
from isthmus.net.connection_gate import endpoint
from isthmus.net.host_placement import AddressUser
from isthmus.programs.apiserver_proxy.connections import ProxyConnections, ProxyTunnels
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.plan import ProxyPlan
from isthmus.programs.apiserver_proxy.planning import PlanSource, read_plan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.values import HostPort, is_address

if TYPE_CHECKING:
    from isthmus.net.host_address import HostAddress


INTERFACE = "lo"
REFRESH_S = 10.0
#: How long removing an address may take before the program exits without it.
TAKE_AWAY_S = 5.0
_SAY_AGAIN_S = 60.0
_CALLER = AddressUser(who="apiserver proxy", address_flag="--listen")
_log = logging.getLogger("isthmus.apiserver_proxy")


class Addresses(Part):
    """Puts the addresses of a plan on ``lo``, if it has any.

    A worker has none of its own: with ``put`` False they are its parent's.
    """

    def __init__(self, plan: ProxyPlan, once: OncePer, *, put: bool = True) -> None:
        self._wanted = plan.managed if put else ()
        self._uplinks = plan.uplinks
        self._once = once
        self._held: list[HostAddress] = []
        self._refreshing: asyncio.Future[list[str]] | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """The addresses that are in place."""
        return tuple(str(one.address) for one in self._held)

    @override
    async def open(self) -> None:
        for address in self._wanted:
            held = await asyncio.to_thread(self._put, address)
            self._held.append(held)
            log(
                _log, logging.INFO, "address is on this host", address=str(address),
                interface=held.where, uplinks=",".join(held.uplinks) or "none",
            )  # fmt: skip

    def _put(self, address: IPv4Address | IPv6Address) -> HostAddress:
        from isthmus.net.host_address import put  # pyroute2 is slow to import

        try:
            return put(address, interface=INTERFACE, uplinks=self._uplinks, caller=_CALLER)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; --manage-address=false leaves the address to you"
            ) from error

    def uplink_of(self, sock: socket.socket) -> str:
        """The uplink through which a connection came in despite the firewall rule."""
        for one in self._held:
            name = one.uplink_of(sock)
            if name:
                return name
        return ""

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "address", self._watch()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"addresses": self.held}

    async def _watch(self) -> None:
        """Keep the addresses in place until cancelled."""
        while True:
            for one in self._held:
                await self._refresh(one)
            await asyncio.sleep(REFRESH_S)

    async def _refresh(self, one: HostAddress) -> None:
        loop = asyncio.get_running_loop()
        self._refreshing = loop.run_in_executor(None, one.refresh)
        try:
            said = await asyncio.shield(self._refreshing)
        except Exception as exc:  # open connections do not need the address
            said = [f"cannot look after the address {one.address}: {exc!r}"]
        for sentence in said:
            self._once.log(("address", sentence), _SAY_AGAIN_S, _log, logging.WARNING, sentence)

    @override
    async def wait_closed(self) -> None:
        # Removed from lo, within a time limit.
        held, self._held = self._held, []
        for one in held:
            try:
                async with asyncio.timeout(TAKE_AWAY_S):
                    if self._refreshing is not None:  # or it would restore the address
                        await asyncio.wait([self._refreshing])
                    await asyncio.to_thread(one.take_away)
            except Exception as exc:  # the next program to start takes it over
                log(
                    _log, logging.ERROR, "cannot remove the address", address=str(one.address),
                    reason=str(exc) or type(exc).__name__,
                )  # fmt: skip


#: How long looking up names may delay accepting clients.
FIRST_LOOK_S = 2.0
LISTEN = "--listen"

ProxyGround = Ground[ApiserverProxySettings, ApiserverProxyMetrics]


def parts(ground: ProxyGround) -> tuple[Part, ...]:
    """The parts of a proxy, foundations first; some depend on the plan.

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
    """Split a proxy between processes; the parent manages the address of the node.

    Raises:
        ConfigError: its plan is wrong.
    """
    plan = read_plan(settings.config) if settings.config else settings.plan()
    allow_connections(plan.max_connections)
    addresses, bound = Addresses(plan, OncePer()), BoundAddresses(plan)

    def of_slot(slot: WorkerSlot) -> ApiserverProxySettings:
        if settings.config:  # the settings of the file apply to each worker
            return settings
        return slot.shared(settings, "max_connections", "max_connections_per_source")

    return WorkerPlan(
        bind=bound.bind,
        settings=of_slot,
        parts=(addresses, bound),
        # Clients that came in through an uplink despite the firewall rule.
        refuses=lambda sock: bool(addresses.uplink_of(sock)),
        reloads=True,
    )


class BoundAddresses(Part):
    """Binds the ports of a plan, and shows their addresses."""

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
    """Delays clients until names were looked up, or the time for that is over."""

    def __init__(
        self, ground: ProxyGround, bound: BoundAddresses, connections: ProxyConnections
    ) -> None:
        self._connections = connections
        self._plan = bound.plan
        accept = {LISTEN: connections.accept}
        super().__init__(ground, bound.bind, accept, bound=partial(self._listens_at))

    def _listens_at(self, host: str, port: int) -> None:
        """The addresses to which no name may lead."""
        if is_address(host):
            self._connections.ways.listens_at(endpoint((host, port)))

    @override
    async def open(self) -> None:
        await super().open()
        for host, port in self._plan.listen:  # a worker learns the address later
            self._listens_at(host, port)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._connections.ways.look_all_up()
