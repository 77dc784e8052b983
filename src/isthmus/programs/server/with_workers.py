"""A server with workers: each of them is a server of its own to agents, with its own id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from isthmus.frame.part import BoundSocket, WorkerPlan, WorkerSlot
from isthmus.frame.resources import allow_all
from isthmus.net.listen import bind_tcp
from isthmus.programs.server.bound_doors import bind_doors
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.program import worker_id

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
