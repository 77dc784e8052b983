"""A server with workers: each of them is a server of its own to agents, with its own id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from isthmus.frame.descriptors import allow_all
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import ServerView
from isthmus.frame.observe.counters import Family
from isthmus.frame.observe.metrics import ServerMetrics
from isthmus.frame.operator_ports import Door
from isthmus.frame.workers.kind import BaseKind, BoundSocket, Place, WorkerProgram
from isthmus.net.listen import bind_tcp
from isthmus.programs.server.bound_doors import bind_doors
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.workers import worker_id
from isthmus.values import ServerId

AGENTS = "--agent-port"


class ServerKind(BaseKind):
    """``isthmus server``."""

    name = "server"
    view = ServerView

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.workers = settings.workers
        self.drain_s = settings.graceful_shutdown_timeout_s
        self.program_id = settings.server_id
        self.audit_path = settings.audit_log_path
        self.health = Door(host=settings.health_bind_address, port=settings.health_port)
        self.admin_port = settings.admin_port
        self.tls_min_version = settings.tls_min_version
        self.cipher_suites = settings.cipher_suites

    def families(self) -> Iterable[Family]:
        """Give those of its registry."""
        return ServerMetrics().families

    def named(self, program_id: str) -> dict[str, str]:
        """Its id, as log lines and snapshots of servers have it."""
        return {"server_id": program_id}

    def allow(self) -> None:
        """Take every descriptor that there is."""
        allow_all()

    def bind(self) -> Iterator[BoundSocket]:
        """Bind the port of agents and those of clients."""
        settings = self.settings
        host, port = settings.agent_bind_address, settings.agent_port
        for sock in bind_tcp(host, port, flag=AGENTS):
            yield BoundSocket(AGENTS, sock, for_agents=True)
        for door in bind_doors(settings):
            yield BoundSocket(door.flag, door.sock)

    def make(self, place: Place, handed: Handed) -> WorkerProgram:
        """Make the server of a worker."""
        from isthmus.programs.server.program import Server  # the parent has no use for it

        settings = of_worker(self.settings, place)
        settings.validate()
        handed.siblings = siblings_of(place)
        return Server(settings, handed=handed)


def of_worker(settings: ServerSettings, place: Place) -> ServerSettings:
    """What a worker is told: its own id, and that every server here is as many as it has workers.

    Other servers are expected to have as many: their workers' ids follow from theirs.
    """
    peers = {
        worker_id(peer, index): address
        for peer, address in replace(settings, server_id=place.program_id).peers.items()
        for index in range(place.count)
    }
    return replace(
        settings,
        server_id=worker_id(place.program_id, place.index),
        server_count=place.count * settings.announced_count,
        peer_server=tuple(f"{peer}={address}" for peer, address in peers.items()),
        max_connections=place.share(settings.max_connections),
        max_connections_per_source=place.share(settings.max_connections_per_source),
        audit_log_path=place.audit,
        audit_log_maxsize=0,
    )


def siblings_of(place: Place) -> frozenset[ServerId]:
    """The ids of the other workers."""
    every = (index for index in range(place.count) if index != place.index)
    return frozenset(ServerId(worker_id(place.program_id, index)) for index in every)
