"""The apiserver proxy: a node's own way to the apiserver of its cluster, which runs elsewhere.

Its addresses are put on ``lo`` and taken away in the end; what keeps other machines from them, and
how several programs of a host share one, is net/host_address.py. What happens to connections is
connections.py, the plan planning.py.
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
#: How long an address may take to be taken away, before the program leaves without that.
TAKE_AWAY_S = 5.0
_SAY_AGAIN_S = 60.0
_CALLER = AddressUser(who="apiserver proxy", address_flag="--listen")
_log = logging.getLogger("isthmus.apiserver_proxy")


class Addresses(Part):
    """What a plan wants on ``lo``; nothing when it wants nothing.

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
                _log, logging.INFO, "has an address for this host", address=str(address),
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
        """The uplink that a connection came in by, which the rule should have kept away."""
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
        """See for ever that they are there."""
        while True:
            for one in self._held:
                await self._refresh(one)
            await asyncio.sleep(REFRESH_S)

    async def _refresh(self, one: HostAddress) -> None:
        loop = asyncio.get_running_loop()
        self._refreshing = loop.run_in_executor(None, one.refresh)
        try:
            said = await asyncio.shield(self._refreshing)
        except Exception as exc:  # the connections that are open need none of it
            said = [f"cannot look after the address {one.address}: {exc!r}"]
        for sentence in said:
            self._once.log(("address", sentence), _SAY_AGAIN_S, _log, logging.WARNING, sentence)

    @override
    async def wait_closed(self) -> None:
        # Taken from lo, if that does not take for ever.
        held, self._held = self._held, []
        for one in held:
            try:
                async with asyncio.timeout(TAKE_AWAY_S):
                    if self._refreshing is not None:  # or it would put back what we take
                        await asyncio.wait([self._refreshing])
                    await asyncio.to_thread(one.take_away)
            except Exception as exc:  # whoever starts next takes it over
                log(
                    _log, logging.ERROR, "cannot take the address away", address=str(one.address),
                    reason=str(exc) or type(exc).__name__,
                )  # fmt: skip


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
