"""A server's listeners for clients: which protocol listens where, opened and closed together.

Ports and UNIX sockets are bound here, and shared between worker processes, each of which is a
separate server for agents, with its own id.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from typing_extensions import override

from isthmus.dial.frontends import grpc_proxy, http_connect
from isthmus.dial.frontends.backend import Backend
from isthmus.dial.frontends.grpc_proxy import GrpcFrontend
from isthmus.dial.frontends.http_connect import ConnectFrontend
from isthmus.frame.part import BoundSocket, Ground, Part, WorkerPlan, WorkerSlot
from isthmus.frame.resources import allow_all, places
from isthmus.net.connection_gate import ConnectionGate, reset
from isthmus.net.listen import Listener, bind_tcp, bind_uds
from isthmus.net.rules_slots import AdmissionRefusal, ConnectionSlots
from isthmus.net.systemd import PassedSocket
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import ServerMetrics, TlsPort
from isthmus.programs.server.settings import GRPC, HTTP_CONNECT, ServerSettings
from isthmus.settings.program import worker_id
from isthmus.tunnel.message_reader import PacketCounts

#: The part of the descriptors for clients; the rest is for agents, nodes' connections, files.
_SHARE = 2
#: How long a drain waits for admitted clients to send their request; a port check never
#: sends one.
_HEADS_S = 2.0


class Doors:
    """The frontends of a server and their listeners."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        backend: Backend,
        context: Callable[[str], ssl.SSLContext],
    ) -> None:
        """Make the frontends; ``context`` returns a mode's context for each new connection.

        In a worker nothing is bound: connections are passed to ``handed``.
        """
        loop, poller, settings, once = ground.loop, ground.poller, ground.settings, ground.once
        self._handed = ground.handed
        self._loop = loop
        self._poller = poller
        self._settings = settings
        self._backend = backend
        #: The slots for the clients of all listeners together.
        self.places = ConnectionSlots(
            places(settings.max_connections, _SHARE), settings.max_connections_per_source
        )
        self._listeners: list[Listener] = []
        self._bound: list[tuple[socket.socket, Callable[[socket.socket], None]]] = []
        #: The TCP ports by mode.
        self.ports: dict[str, int] = {}
        self._grpc: GrpcFrontend | None = None
        self._connect: ConnectFrontend | None = None
        if GRPC in settings.modes:
            self._grpc = GrpcFrontend(
                poller,
                backend,
                once=once,
                compat=settings.compat,
                context=partial(context, GRPC),
                keepalive_s=settings.frontend_keepalive_time_s,
                budget=ground.budget,
            )
        if HTTP_CONNECT in settings.modes:
            self._connect = ConnectFrontend(
                poller,
                backend,
                compat=settings.compat,
                once=once,
                context=partial(context, HTTP_CONNECT),
                budget=ground.budget,
            )

    @property
    def listeners(self) -> Sequence[Listener]:
        """The opened listeners, stopped or not."""
        return self._listeners

    @property
    def grpc_calls(self) -> int:
        """The number of open gRPC calls of clients."""
        return self._grpc.calls if self._grpc is not None else 0

    @property
    def unsent(self) -> bool:
        """Whether data of a target has not reached a gRPC client yet."""
        return self._grpc is not None and self._grpc.unsent

    @property
    def asking(self) -> int:
        """The number of admitted clients that have not sent a request yet."""
        return len(self._connect.heads) if self._connect is not None else 0

    @property
    def packets(self) -> PacketCounts:
        """The packets from and to gRPC clients."""
        return self._grpc.packets if self._grpc is not None else PacketCounts()

    def bind(self) -> None:
        """Bind every port and socket without accepting.

        Raises:
            ConfigError: one cannot be bound; ``close`` releases the others.
        """
        for door in () if self._handed is not None else bind_doors(self._settings):
            frontend = self._frontend(door.mode)
            if door.is_uds:
                self._bound.append((door.sock, self._gate(frontend)))
            else:
                self._bound.append((door.sock, self._gate_tls(frontend)))
                self.ports[door.mode] = door.sock.getsockname()[1]

    def _frontend(self, mode: str) -> GrpcFrontend | ConnectFrontend:
        frontend = self._grpc if mode == GRPC else self._connect
        assert frontend is not None
        return frontend

    def open(self) -> None:
        """Start accepting."""
        if self._handed is not None:
            for mode, _, port_flag, _, uds_flag in self._settings.doors:
                frontend = self._frontend(mode)
                self._handed.open(f"--{port_flag}", self._gate_tls(frontend))
                self._handed.open(f"--{uds_flag}", self._gate(frontend))
        bound, self._bound = self._bound, []
        for sock, accept in bound:
            self._listeners.append(Listener(self._loop, self._poller, sock, accept))

    def _gate(self, frontend: GrpcFrontend | ConnectFrontend) -> ConnectionGate:
        """The gate of a UNIX socket, which refuses in the frontend's protocol."""
        say = grpc_proxy.no_place if frontend is self._grpc else http_connect.no_place
        return ConnectionGate(self.places, frontend.accept, partial(self._refuse, say))

    def _gate_tls(self, frontend: GrpcFrontend | ConnectFrontend) -> ConnectionGate:
        """The gate of a TCP port, which resets: before a handshake there is no other answer."""
        return ConnectionGate(self.places, frontend.accept_tls, partial(self._refuse, reset_for))

    def _refuse(
        self,
        say: Callable[[socket.socket, AdmissionRefusal], None],
        sock: socket.socket,
        why: AdmissionRefusal,
        source: str,
    ) -> None:
        self._backend.no_place(why, source)
        say(sock, why)

    def drain(self) -> None:
        """Stop accepting; open connections continue."""
        for listener in self._listeners:
            listener.stop()
        if self._grpc is not None:
            self._grpc.drain()

    def close(self) -> None:
        """Close everything except tunnels."""
        for sock, _ in self._bound:
            if sock.family == socket.AF_UNIX and not isinstance(sock, PassedSocket):
                with contextlib.suppress(OSError):
                    os.unlink(sock.getsockname())
            sock.close()
        self._bound.clear()
        for listener in self._listeners:
            listener.stop()
        for frontend in (self._connect, self._grpc):
            if frontend is not None:
                frontend.close()


class Frontends(Part):
    """The frontends; closed after their clients' tunnels."""

    def __init__(self, ground: Ground[ServerSettings, ServerMetrics], doors: Doors) -> None:
        self._ground = ground
        self._doors = doors

    @property
    def calls(self) -> int:  # type: ignore[override]  # the current number
        """The number of requests that share connections."""
        return self._doors.grpc_calls

    @override
    def busy(self) -> bool:
        return self._doors.unsent

    @override
    def close(self) -> None:
        self._doors.close()


class ClientListening(Part):
    """The listeners for clients."""

    def __init__(
        self, ground: Ground[ServerSettings, ServerMetrics], doors: Doors, agents: AgentDoor
    ) -> None:
        self._ground = ground
        self._doors = doors
        self._agents = agents
        self._heads_until = 0.0

    @override
    async def open(self) -> None:
        self._doors.bind()

    @override
    def start(self) -> None:
        self._doors.open()
        doors, agents, gauges = self._doors, self._agents, self._ground.metrics.gauges
        gauges.connections = lambda: {
            TlsPort.FRONTEND.value: len(doors.places),
            TlsPort.AGENT.value: len(agents.places),
        }
        gauges.grpc_calls = lambda: {
            "Proxy": doors.grpc_calls,
            "Connect": sum(
                link.talk is not None and link.talk.name == "grpc" for link in agents.links
            ),
        }
        gauges.packets = lambda: {
            "from_client": doors.packets.received,
            "to_client": doors.packets.sent,
            "from_agent": agents.packets.received,
            "to_agent": agents.packets.sent,
        }

    @override
    def listeners(self) -> Sequence[Listener]:
        return self._doors.listeners

    @override
    def drain(self) -> None:
        self._heads_until = self._ground.now() + _HEADS_S
        self._doors.drain()

    @override
    def busy(self) -> bool:
        return self._doors.asking > 0 and self._ground.now() < self._heads_until

    @override
    def close(self) -> None:
        self._doors.drain()

    @property
    def port(self) -> int | None:
        """The TCP port of the first mode's frontend, if it has one."""
        return self._doors.ports.get(self._ground.settings.doors[0].mode)

    @override
    def serving(self) -> dict[str, Any]:
        settings = self._ground.settings
        return {
            "uds": settings.uds_name or None,
            "mode": ",".join(settings.modes),
            "frontend_port": self.port,
            "agent_port": self._agents.port,
        }


def reset_for(sock: socket.socket, why: AdmissionRefusal) -> None:
    """Reset a refused connection."""
    reset(sock)


class BoundDoor(NamedTuple):
    """A listening socket, its protocol, and its flag."""

    mode: str
    flag: str
    sock: socket.socket

    @property
    def is_uds(self) -> bool:
        """Whether it is a UNIX socket."""
        return self.sock.family == socket.AF_UNIX


def bind_doors(settings: ServerSettings) -> Iterator[BoundDoor]:
    """Bind every port and socket, one after the other, without accepting.

    Raises:
        ConfigError: one cannot be bound; those before it stay.
    """
    for mode, port, port_flag, uds, uds_flag in settings.doors:
        if port is not None:
            for sock in bind_tcp(settings.server_bind_address, port, flag=f"--{port_flag}"):
                yield BoundDoor(mode, f"--{port_flag}", sock)
                # systemd may have passed another address than the flag's
                settings.roles.check_frontend_at(str(sock.getsockname()[0]))
        if uds:
            bound = bind_uds(
                uds, delete_existing=settings.delete_existing_uds_file, flag=f"--{uds_flag}"
            )
            yield BoundDoor(mode, f"--{uds_flag}", bound)


AGENTS = "--agent-port"


def worker_plan(settings: ServerSettings) -> WorkerPlan:
    """Share a server between processes: the parent owns the ports of agents and of clients."""
    allow_all()

    def bind() -> Iterator[BoundSocket]:
        host, port = settings.agent_bind_address, settings.agent_port
        for sock in bind_tcp(host, port, flag=AGENTS):
            yield BoundSocket(AGENTS, sock, for_agents=True)
        for door in bind_doors(settings):
            yield BoundSocket(door.flag, door.sock)

    def of_slot(slot: WorkerSlot) -> ServerSettings:
        told = of_worker(settings, slot)
        told.validate()
        return told

    return WorkerPlan(bind=bind, settings=of_slot)


def of_worker(settings: ServerSettings, slot: WorkerSlot) -> ServerSettings:
    """A worker's settings: its own id, and the number of workers of each server.

    Other servers are expected to have the same number: their workers' ids are derived from theirs.
    """
    peers = {
        worker_id(peer, index): address
        for peer, address in replace(settings, server_id=slot.program_id).peers.items()
        for index in range(slot.count)
    }
    return replace(
        settings,
        server_id=worker_id(slot.program_id, slot.index),
        server_count=slot.count * settings.announced_count,
        peer_server=tuple(f"{peer}={address}" for peer, address in peers.items()),
        max_connections=slot.share(settings.max_connections),
        max_connections_per_source=slot.share(settings.max_connections_per_source),
        audit=replace(settings.audit, log_path=slot.audit, log_maxsize=0),
    )
