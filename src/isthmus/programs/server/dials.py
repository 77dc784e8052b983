"""What every dial of a server goes by: of clients, of nodes and of other servers."""

from __future__ import annotations

from functools import partial

from typing_extensions import override

from isthmus.dial.dialers.through_agent import AgentDialer
from isthmus.errors import DialFailure
from isthmus.frame.audit.recording import Auditor
from isthmus.frame.observe.relays import Retried
from isthmus.frame.observe.tracing import Tracing
from isthmus.frame.part import Ground, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.records import Records
from isthmus.programs.server.settings import HTTP_CONNECT, ServerSettings
from isthmus.settings.audit import DENY as AUDIT_DENY
from isthmus.values import ServerId


class ServerDials(Part):
    """Dials by agents, whoever asks, and what each of them may use of a server."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        tunnels: TunnelTable,
        door: AgentDoor,
        networks: ServerNetworks,
        records: Records,
    ) -> None:
        settings = ground.settings
        self._ground = ground
        self._records = records
        self.settings = settings
        self.id = ServerId(ground.id)
        self.loop = ground.loop
        self.poller = ground.poller
        self.budget = ground.budget
        self.metrics = ground.metrics
        self.once = ground.once
        self.tunnels = tunnels
        self.agent_door = door
        self.networks = networks
        self.admits_clients = settings.roles.admits_clients
        self.unaudited = records.unaudited
        self.believes = records.believes
        self.dialer = AgentDialer(ground.loop, door.agents, timeout_s=settings.dial_limit_s)
        self.dialer.retried = partial(ground.metrics.relays.retried, Retried.BEFORE_ANSWER)
        self.audit: Auditor | None = None
        self.tracing: Tracing | None = None

    # Part.

    @override
    async def prepare(self) -> None:
        self.audit, self.tracing = self._records.audit, self._ground.tracing
        denies = self._records if self.settings.audit.on_failure == AUDIT_DENY else None
        self.networks.make_router(self.dialer, denies.unaudited if denies is not None else None)

    @override
    def start(self) -> None:
        gauges = self.metrics.gauges
        gauges.pending_dials = lambda: len(self.dialer.pending)
        gauges.http_connections = lambda: self.tunnels.count_of(HTTP_CONNECT)

    @override
    def busy(self) -> bool:
        return len(self.dialer.pending) > 0

    @override
    def close(self) -> None:
        # Before their links are closed, or each would be asked of the next link.
        for dial in self.dialer.pending.take_all():
            dial.give_up(DialFailure.AGENT_LOST, "server stops")
