"""Traffic from the agent's node to the control plane (KEP-2025): address, ports and their state.

Local ports are bound when the agent starts and listen once there is a server. A port that is bound
but not listening refuses connections like a free port, but another program that
wants the port fails at once. A port that systemd passed in already listens:
clients that connect while the agent restarts wait in its queue. node_connections.py handles the
connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from isthmus.dial.settings_targets import FLAG, Target
from isthmus.errors import ConfigError
from isthmus.frame.admin.answers import Check
from isthmus.frame.model.snapshot import NodeServerView, NodeTargetView, NodeTrafficView
from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.agent_side import ServerLink
from isthmus.logs import log
from isthmus.net.listen import Listener
from isthmus.net.poller import Poller
from isthmus.net.systemd import PASSED, PassedSocket
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.node_connections import Carries, NodeConnections, carries
from isthmus.programs.agent.server_links import ServerLinks
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.net.host_address import HostAddress

_BACKLOG = 4096
_log = logging.getLogger("isthmus.agent")

#: Called with a connection accepted for a destination.
Accept = Callable[[HostPort, socket.socket], None]


def reserve(address: IPv4Address | IPv6Address, port: int) -> socket.socket:
    """Bind a port without listening, or take the one that systemd passed in.

    Raises:
        OSError: the port is not available.
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
            # First without SO_REUSEADDR: with it, Linux lets two programs bind the same port while
            # neither listens, and another agent would go unnoticed.
            sock.bind((str(address), port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            # Possibly only connections of a previous agent in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def start_listening(sock: socket.socket) -> None:
    """Listen at a reserved port.

    Raises:
        OSError: another program listens there now.
    """
    if isinstance(sock, PassedSocket):
        return
    # Only now: accepted connections inherit it, and must not keep the next agent from
    # binding while they are in TIME_WAIT.
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
        """The listening ports."""
        return tuple(self._listeners.values())

    @property
    def trouble(self) -> str:
        """Why a bound port cannot listen; empty if all can."""
        return self._refused

    @property
    def complete(self) -> bool:
        """Whether every port listens."""
        return len(self._listeners) == len(self._places)

    def bind(self) -> None:
        """Bind every port.

        Raises:
            ConfigError: a port cannot be bound; the others are closed again.
        """
        for place in self._places:
            try:
                self._reserved[place] = reserve(place.address, place.target.local_port)
            except OSError as exc:
                self.close()
                raise ConfigError(_why_not(place, exc)) from exc

    def listen(self) -> None:
        """Listen at bound ports; failures are kept and retried."""
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
        """Stop accepting; the kernel resets queued connections, or systemd keeps them."""
        for listener in self._listeners.values():
            listener.stop()
        for sock in self._reserved.values():
            sock.close()
        self._listeners.clear()
        self._reserved.clear()


def _why_not(place: _Place, exc: OSError) -> str:
    where = f"{FLAG} {place.target}: cannot listen on {place}"
    if exc.errno == errno.EADDRINUSE:
        return f"{where}: another agent or program on this node uses that port"
    if exc.errno == errno.EADDRNOTAVAIL:
        return f"{where}: this node does not have the address {place.address}"
    return f"{where}: {exc.strerror or exc}"


REFRESH_S = 10.0
#: The time limit for removing the address when the agent ends.
TAKE_AWAY_S = 5.0
_SAY_AGAIN_S = 60.0


async def remove_leftovers(settings: AgentSettings) -> None:
    """With the gate off, remove what a killed agent with the gate on left."""
    addresses = settings.bind.bound_addresses
    if not addresses or settings.gates.enabled(CLUSTER_TO_MASTER):
        return
    from isthmus.net import host_address

    for address in addresses:
        try:
            removed = await asyncio.to_thread(
                host_address.remove_leftovers, address, interface=settings.bind.interface
            )
        except ConfigError as exc:  # possibly a missing right: nothing else depends on it
            log(
                _log,
                logging.WARNING,
                "cannot check for leftovers of another agent",
                reason=str(exc),
            )
            continue
        if removed:
            log(_log, logging.INFO, "removed leftovers of another agent", address=str(address))


class NodeLeftovers(Part):
    """Removes what a killed agent left on the node, before anything else is configured."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    @override
    async def open(self) -> None:
        await remove_leftovers(self._settings)


class NodeTraffic(Part):
    """The agent's ports for its node, and their connections."""

    def __init__(
        self,
        ground: Ground[AgentSettings, AgentMetrics],
        links: ServerLinks,
        tunnels: TunnelTable,
    ) -> None:
        settings = ground.settings
        assert settings.bind.address  # otherwise there would be no node traffic
        self._ground = ground
        self._links = links
        self._tunnels = tunnels
        self._addresses = settings.bind.bound_addresses
        self._targets = settings.node_traffic.targets
        self._held: list[HostAddress] = []
        self._refreshing: asyncio.Future[list[str]] | None = None
        self._wanted = False  # a server was connected: the ports listen from then on
        self._closed = False
        self.connections = NodeConnections(ground, lambda: links.links, tunnels)
        self._listeners = NodeListeners(
            ground.loop,
            ground.poller,
            addresses=self._addresses,
            targets=self._targets,
            accept=self._accept,
        )
        links.on_change = self.links_changed

    @override
    async def open(self) -> None:
        from isthmus.net import host_address

        settings = self._ground.settings
        for address in self._addresses:
            held = await asyncio.to_thread(
                host_address.put,
                address,
                interface=settings.bind.interface,
                uplinks=settings.bind.uplink_interface,
            )
            self._held.append(held)
            log(
                _log, logging.INFO, "node address configured", address=str(address),
                interface=held.where,
            )  # fmt: skip
        self._listeners.bind()
        metrics = self._ground.metrics.node
        metrics.connections = self._counts
        metrics.servers = self._servers
        metrics.listening = lambda: len(self._listeners.listeners)
        metrics.ready = lambda: not self.waits_for()

    @override
    def start(self) -> None:
        # Connections from the node are not connections to endpoints, and are counted separately.
        self._ground.metrics.gauges.tunnels = lambda: len(self._tunnels) - self.connections.open

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "node-address", self._watch()

    async def _watch(self) -> None:
        """Check periodically that the address exists and that the ports listen."""
        while True:
            for held in list(self._held):
                await self._refresh(held)
            self._listen()
            await asyncio.sleep(REFRESH_S)

    async def _refresh(self, held: HostAddress) -> None:
        self._refreshing = self._ground.loop.run_in_executor(None, held.refresh)
        try:
            said = await asyncio.shield(self._refreshing)
        except Exception as exc:  # open connections do not need it
            said = [f"cannot check the address {held.address}: {exc!r}"]
        for sentence in said:
            self._ground.once.log(
                ("address", sentence), _SAY_AGAIN_S, _log, logging.WARNING, sentence
            )

    def _accept(self, destination: HostPort, sock: socket.socket) -> None:
        """Accept a connection from this node; one from outside means that our rule is gone."""
        if any(held.uplink_of(sock) for held in self._held):
            self.connections.refuse(destination, sock, NodeResult.OUTSIDE)
        else:
            self.connections.accept(destination, sock)

    # The servers.

    def links_changed(self) -> None:
        """A link was added or lost: listen if there is a server, and retry waiting connections."""
        if self._closed:
            return
        if any(link.ready and carries(link) is not Carries.NO for link in self._links.links):
            self._wanted = True
        self._listen()
        self.connections.links_changed()

    def _listen(self) -> None:
        if not self._wanted or self._closed or self._listeners.complete:
            return
        self._listeners.listen()
        if self._listeners.trouble:
            self._ground.once.log(
                "node listeners", _SAY_AGAIN_S, _log, logging.ERROR, self._listeners.trouble
            )

    # State.

    @override
    def listeners(self) -> tuple[Listener, ...]:
        return self._listeners.listeners

    @override
    def ready(self) -> Iterable[Check]:
        yield Check("node-listeners", self.waits_for())

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"node_traffic": self.view()}

    def waits_for(self) -> str:
        """Why connections from the node cannot be served now; empty if they can."""
        if self._listeners.trouble:
            return self._listeners.trouble
        trouble = next((held.trouble for held in self._held if held.trouble), "")
        if trouble:
            return trouble
        links = [link for link in self._links.links if link.ready]
        if not links:
            return "waits for a server that carries node traffic: none is connected"
        able = [link for link in links if carries(link) is not Carries.NO]
        if not able:
            return (
                f"waits for a server with the feature gate {CLUSTER_TO_MASTER}: it is off at"
                f" {_named(links)}"
            )
        if all(self.connections.is_silent(link) for link in able):
            return (
                f"waits for a server that carries node traffic: {_named(able)} did not answer, as"
                " konnectivity's own servers do not"
            )
        if not self._listeners.complete:
            return "the ports do not listen yet"
        return self.connections.denied()

    def _counts(self) -> Mapping[str, float]:
        return {"waiting": self.connections.waiting, "open": self.connections.open}

    def _servers(self) -> Mapping[str, float]:
        found = dict.fromkeys((each.value for each in Carries), 0)
        for link in self._links.links:
            found[carries(link).value] += 1
        return found

    def view(self) -> NodeTrafficView:
        return NodeTrafficView(
            address=str(self._addresses[0]),
            addresses=tuple(map(str, self._addresses)),
            interface=self._held[0].where if self._held else "",
            listening=self._listeners.complete,
            waits_for=self.waits_for(),
            waiting=self.connections.waiting,
            open=self.connections.open,
            targets=tuple(
                NodeTargetView(local_port=each.local_port, destination=str(each.destination))
                for each in self._targets
            ),
            servers=tuple(
                NodeServerView(
                    server_id=link.server_id,
                    carries=carries(link).value,
                    silent=self.connections.is_silent(link),
                )
                for link in self._links.links
            ),
            recent_failures=self.connections.failures(),
        )

    # The end.

    @override
    def drain(self) -> None:
        """Serve new connections until the end, as long as a server is linked.

        The kubelet and the pods have no other path: a port that closed at the start of the drain
        would refuse them for as long as the last old connection takes.
        """
        self.connections.leave()

    @override
    def busy(self) -> bool:
        return self.connections.waiting > 0

    @override
    def drained(self) -> None:
        self.close()

    @override
    def close(self) -> None:
        """Reset all connections without a tunnel, while the address still exists."""
        self._closed = True
        self._listeners.close()
        self.connections.close()

    @override
    async def wait_closed(self) -> None:
        """Remove the addresses from the node, within a time limit."""
        await asyncio.sleep(
            0
        )  # one iteration, in which the poller performs pending resets: from there
        taken, self._held = self._held, []
        for held in taken:
            try:
                async with asyncio.timeout(TAKE_AWAY_S):
                    if self._refreshing is not None:  # otherwise it would restore what is removed
                        await asyncio.wait([self._refreshing])
                    await asyncio.to_thread(held.take_away)
            except Exception as exc:  # the next agent, or remove_leftovers, removes it
                log(
                    _log, logging.ERROR, "cannot remove the address",
                    address=str(held.address), reason=str(exc) or type(exc).__name__,
                )  # fmt: skip


def _named(links: Sequence[ServerLink]) -> str:
    shown = [str(link.server_id) for link in links[:3]]
    more = len(links) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
