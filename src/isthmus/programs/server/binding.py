"""Binding a server's ports and UNIX sockets, and sharing a server between worker processes.

Each worker is a server of its own to agents, with an id of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from isthmus.frame.part import BoundSocket, WorkerPlan, WorkerSlot
from isthmus.frame.resources import allow_all
from isthmus.net.listen import bind_tcp, bind_uds
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.program import worker_id


class BoundDoor(NamedTuple):
    """A socket that listens, the protocol that is spoken there, and the flag that said so."""

    mode: str
    flag: str
    sock: socket.socket

    @property
    def is_uds(self) -> bool:
        """It is a UNIX socket."""
        return self.sock.family == socket.AF_UNIX


def bind_doors(settings: ServerSettings) -> Iterator[BoundDoor]:
    """Bind every port and socket, one after the other; nothing is accepted.

    Raises:
        ConfigError: one cannot be bound; those before it stay.
    """
    for mode, port, port_flag, uds, uds_flag in settings.doors:
        if port is not None:
            for sock in bind_tcp(settings.server_bind_address, port, flag=f"--{port_flag}"):
                yield BoundDoor(mode, f"--{port_flag}", sock)
                # systemd may have passed another than the flags say
                settings.roles.check_frontend_at(str(sock.getsockname()[0]))
        if uds:
            bound = bind_uds(
                uds, delete_existing=settings.delete_existing_uds_file, flag=f"--{uds_flag}"
            )
            yield BoundDoor(mode, f"--{uds_flag}", bound)


AGENTS = "--agent-port"


def worker_plan(settings: ServerSettings) -> WorkerPlan:
    """Share a server between processes: the parent has the ports of agents and of clients."""
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
    """What a worker is told: its own id, and that every server here is as many as it has workers.

    Other servers are expected to have as many: their workers' ids follow from theirs.
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
