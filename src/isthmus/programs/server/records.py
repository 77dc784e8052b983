"""The part of a server that writes the audit log, and says when nobody could."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from isthmus.frame.audit.model import is_proven
from isthmus.frame.audit.recording import UNAUDITED, Auditor, open_audit
from isthmus.frame.part import Ground, Part
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.audit import DENY
from isthmus.values import Identity


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
        """The parent can or cannot write our records into the file."""
        self._fails_elsewhere = failing

    def believes(self, requester: Identity) -> bool:
        """What somebody says about their request counts if they proved who they are."""
        return is_proven(requester) and not self._ground.settings.compat

    def _fails(self) -> bool:
        return self._fails_elsewhere or (self.audit is not None and self.audit.log.failing)

    def unaudited(self) -> str:
        """Say why nothing may be dialed now, because nobody could write it down."""
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
        """Last, when everything has ended that it tells of."""
        if self.audit is not None:
            await asyncio.to_thread(self.audit.log.close)


class ReopenedRecords(Records):
    """An audit log in a file of its own, which SIGHUP opens again, as logrotate expects."""

    @override
    def reload(self) -> None:
        if self.audit is not None:
            self.audit.log.reopen()


def records_of(ground: Ground[ServerSettings, ServerMetrics]) -> Records:
    """The records of a server; without a file of its own SIGHUP means nothing to it."""
    own_file = bool(ground.settings.audit.log_path) and ground.handed is None
    return ReopenedRecords(ground) if own_file else Records(ground)
