"""The common parts of all dials of a server: the agents' dialer, audit log, tracing."""

from __future__ import annotations

import asyncio
from functools import partial

from typing_extensions import override

from isthmus.dial.dialers.through_agent import AgentDialer
from isthmus.errors import DialFailure
from isthmus.frame.audit.model import is_proven
from isthmus.frame.audit.recording import UNAUDITED, Auditor, open_audit
from isthmus.frame.observe.tracing import Tracing
from isthmus.frame.part import Ground, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import Retried, ServerMetrics
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.settings import HTTP_CONNECT, ServerSettings
from isthmus.settings.audit import DENY
from isthmus.settings.audit import DENY as AUDIT_DENY
from isthmus.values import Identity, ServerId


class Records(Part):
    """The audit log. In a worker it is a pipe to the parent, which writes the file."""

    def __init__(self, ground: Ground[ServerSettings, ServerMetrics]) -> None:
        self._ground = ground
        self._denies = ground.settings.audit.on_failure == DENY
        self._fails_elsewhere = False
        self.audit: Auditor | None = None
        if ground.handed is not None:
            ground.handed.on_audit = self._told

    def _told(self, failing: bool) -> None:
        """The parent reports whether it can write our records."""
        self._fails_elsewhere = failing

    def believes(self, requester: Identity) -> bool:
        """Whether to trust a requester's claims: only if authenticated."""
        return is_proven(requester) and not self._ground.settings.compat

    def _fails(self) -> bool:
        return self._fails_elsewhere or (self.audit is not None and self.audit.log.failing)

    def unaudited(self) -> str:
        """Why dials are refused now because they could not be audited; otherwise empty."""
        return UNAUDITED if self._denies and self._fails() else ""

    @override
    async def prepare(self) -> None:
        ground = self._ground
        audit = open_audit(ground.settings.audit, server_id=ground.id, believes=self.believes)
        if audit is None:
            return
        self.audit = audit
        self.records = audit.log.recent
        ground.metrics.audit_counts = audit.log.counts
        ground.metrics.audit_failing = self._fails

    @override
    async def wait_closed(self) -> None:
        """Closes last, after everything that it records."""
        if self.audit is not None:
            await asyncio.to_thread(self.audit.log.close)


class ReopenedRecords(Records):
    """An audit log with its own file, which SIGHUP reopens, as logrotate expects."""

    @override
    def reload(self) -> None:
        if self.audit is not None:
            self.audit.log.reopen()


def records_of(ground: Ground[ServerSettings, ServerMetrics]) -> Records:
    """The records of a server; without its own file SIGHUP has no effect."""
    own_file = bool(ground.settings.audit.log_path) and ground.handed is None
    return ReopenedRecords(ground) if own_file else Records(ground)


class ServerDials(Part):
    """Dials through agents, for all kinds of requesters, and their common resources."""

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
        # Before their links are closed, or each dial would move to the next link.
        for dial in self.dialer.pending.take_all():
            dial.give_up(DialFailure.AGENT_LOST, "server is stopping")
