"""The audit of a server's requests: creates records for the log.

A request has one record when it is refused or fails, and two when it becomes a tunnel. model.py has
the record, log.py the file.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from isthmus.errors import DialFailure
from isthmus.frame.audit.log import AuditLog, Backups
from isthmus.frame.audit.model import (
    BY_FAR_SIDE,
    Claimed,
    Record,
    Stage,
    claimed_by,
    cut,
    end_line,
    requester_of,
    rfc3339,
    to_line,
)
from isthmus.settings.audit import AuditSettings
from isthmus.tunnel.end import BaseEnd, Ending, unsent
from isthmus.values import NOTHING

if TYPE_CHECKING:
    import asyncio

    from isthmus.dial.dialers.through_agent import AgentDial
    from isthmus.dial.frontends.backend import RequestOrigin
    from isthmus.tunnel.tunnel import Tunnel
    from isthmus.values import Identity

#: Failures that are decisions; all others were attempts that failed.
_REFUSALS = frozenset({DialFailure.DENIED})
LEFT = "the client left before the answer"
#: Why a dial is refused with --audit-on-failure=deny.
UNAUDITED = "the audit log cannot be written, and --audit-on-failure is deny"


class Auditor:
    """Writes the outcome of each request."""

    def __init__(self, log: AuditLog, *, server_id: str, believes: Callable[[Identity], bool]):
        self.log = log
        self.server_id = server_id
        self._believes = believes

    # Requests.

    def refused(self, request: RequestOrigin, status: int, reason: str) -> None:
        """A request was answered without a dial."""
        requester = request.requester
        self.put(
            Record(
                time=rfc3339(time.time()),
                stage=Stage.REFUSED,
                connection_id=request.connection_id,
                server_id=self.server_id,
                frontend=request.frontend,
                client=request.client_address,
                requester=requester_of(requester),
                claimed=self._claimed(request, requester),
                status=status,
                reason=cut(reason),
            )
        )

    def failed(
        self,
        request: RequestOrigin,
        client: str,
        dial: AgentDial,
        failure: DialFailure | None,
        reason: str,
    ) -> None:
        """A dial was denied or failed; None: its client left."""
        decision = dial.decision
        ours = decision is not None and not decision.allowed
        stage = Stage.REFUSED if ours or failure in _REFUSALS else Stage.FAILED
        record = self._of_dial(stage, request, client, dial)
        if failure in _REFUSALS and not ours:
            record = replace(record, decision="deny", rule=BY_FAR_SIDE)
        self.put(
            replace(
                record,
                end_time=record.time,
                duration_s=_seconds(time.monotonic() - dial.started_at),
                failure=failure.value if failure is not None else "",
                reason=cut(reason),
            )
        )

    def began(
        self, request: RequestOrigin, client: str, dial: AgentDial
    ) -> Callable[[Tunnel, float], None]:
        """A tunnel begins; returns the callback for its end."""
        return self.begin(self._of_dial(Stage.BEGIN, request, client, dial))

    def begin(self, record: Record) -> Callable[[Tunnel, float], None]:
        """A tunnel begins, as in the record; returns the callback for its end."""
        # The line is kept until the end, which repeats it: serializing a record twice would cost
        # more.
        begin = to_line(record)
        self.log.put(begin)
        return partial(self._ended, begin)

    def _ended(self, begin: bytes, tunnel: Tunnel, duration_s: float) -> None:
        ending = tunnel.ending
        self.log.put(
            end_line(
                begin,
                now=time.time(),
                duration_s=duration_s,
                bytes_to_target=tunnel.far.bytes_written,
                bytes_to_client=_delivered(tunnel.client),
                ending=ending.value,
                ended_by=_ended_by(tunnel),
            )
        )

    # Records.

    def _of_dial(
        self,
        stage: Stage,
        request: RequestOrigin,
        client: str,
        dial: AgentDial,
    ) -> Record:
        now, decision, outcome = time.time(), dial.decision, dial.outcome
        requester = dial.request.requester
        verdict = ""
        if decision is not None:
            verdict = "allow" if decision.allowed else "deny"
        # Created at once: a copy with changed fields would double the cost.
        return Record(
            time=rfc3339(now),
            stage=stage,
            connection_id=request.connection_id,
            server_id=self.server_id,
            frontend=request.frontend,
            client=client,
            requester=requester_of(requester),
            claimed=self._claimed(request, requester),
            network=decision.network if decision is not None else "",
            destination=str(dial.request.target),
            address=cut(outcome.address),
            agent_id=outcome.agent_id,
            link_id=outcome.link_id,
            relay=outcome.relay,
            relayed_by=getattr(request, "relayed_by", ""),
            decision=verdict,
            rule=decision.rule if decision is not None else "",
            start_time=rfc3339(now - (time.monotonic() - dial.started_at)),
        )

    def _claimed(self, request: RequestOrigin, requester: Identity) -> Claimed | None:
        asking = request.asking
        if asking is NOTHING:  # most clients; then there are no statements to check
            return None
        return claimed_by(asking, believed=self._believes(requester))

    def put(self, record: Record) -> None:
        """Write a record that the caller created."""
        self.log.put(to_line(record))


def open_audit(
    settings: AuditSettings, *, server_id: str, believes: Callable[[Identity], bool]
) -> Auditor | None:
    """Open the audit log, if one is configured.

    Raises:
        ConfigError: it cannot be opened.
    """
    if not settings.log_path:
        return None
    rotated = Backups(most=settings.log_maxbackup, max_age_days=settings.log_maxage)
    log = AuditLog(
        settings.log_path,
        max_bytes=settings.max_bytes,
        backups=rotated if settings.max_bytes else None,
    )
    return Auditor(log, server_id=server_id, believes=believes)


def reopen_on_hangup(loop: asyncio.AbstractEventLoop, log: AuditLog) -> None:
    """Reopen the file at SIGHUP, as programs that rotate logs expect."""
    # Only the main thread gets signals; a loop in another thread leaves them to its caller.
    with contextlib.suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, log.reopen)


def ignore_hangup(loop: asyncio.AbstractEventLoop) -> None:
    """Restore the earlier handler of SIGHUP."""
    with contextlib.suppress(ValueError, RuntimeError):
        loop.remove_signal_handler(signal.SIGHUP)


def _delivered(client: BaseEnd) -> int:
    """The bytes that the client's socket accepted: a reset discarded the rest."""
    # Bytes that a TLS socket did not accept are counted encrypted, which is a little more.
    return max(0, client.bytes_written - unsent(client))


def _ended_by(tunnel: Tunnel) -> str:
    if tunnel.ending is Ending.CLEAN:
        return "both"  # each side has closed its direction
    if tunnel.ending is not Ending.ADMIN:
        return tunnel.ended_by
    # An operator's name may come from a certificate, and the line is written without escapes.
    return json.dumps(tunnel.ended_by)[1:-1]


def _seconds(duration_s: float) -> float:
    return round(duration_s, 6)
