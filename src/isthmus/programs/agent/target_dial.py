"""The dials that servers request from an agent, each from the request to the tunnel."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDial, DirectDialer, EndpointsOnly
from isthmus.dial.settings_endpoint_lists import EndpointRefusal, Entry
from isthmus.errors import DialFailure
from isthmus.frame.observe.tracing import Span, Tracing
from isthmus.frame.part import Ground, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.talk import Incoming
from isthmus.logs import log
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.settings import AgentSettings
from isthmus.values import AgentId, DialOutcome, DialRequest, HostPort, is_address

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.agent")


class TargetDials(Part):
    """All pending dials, and their common state."""

    def __init__(self, ground: Ground[AgentSettings, AgentMetrics], tunnels: TunnelTable) -> None:
        settings = ground.settings
        self._ground = ground
        self.agent_id = AgentId(ground.id)
        self.metrics = ground.metrics
        self.tunnels = tunnels
        self.tracing: Tracing | None = None
        self.timeout_s = settings.dial_timeout_s
        self.endpoints = settings.endpoints.endpoint_lists
        self._targets = EndpointsOnly(
            ground.loop, self.endpoints, settings.aliases, denied=self._denied
        )
        self.dialer = DirectDialer(
            ground.loop, ground.poller, self._targets, self._targets.refuse, metadata=None
        )
        self.under_way: set[TargetDial] = set()

    def take(self, incoming: Incoming) -> None:
        """Start a dial that a server requests."""
        try:
            target = _target(incoming.host, incoming.port)
        except ValueError as exc:
            incoming.refuse(DialFailure.UNRESOLVED, str(exc))
            return
        TargetDial(self, incoming, target)

    def _denied(self, target: HostPort, refusal: EndpointRefusal) -> None:
        self.metrics.endpoint_denied(refusal.entry)
        self._ground.once.log(
            ("endpoint", refusal.entry), _QUIET_S, _log, logging.WARNING,
            "denied a dial that the server requested", target=str(target),
            reason=refusal.why,
        )  # fmt: skip

    @override
    async def prepare(self) -> None:
        self.tracing = self._ground.tracing

    @override
    def busy(self) -> bool:
        return bool(self.under_way)

    @override
    def close(self) -> None:
        self._targets.close()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {
            "endpoint_allow": _texts(self.endpoints.allow),
            "endpoint_deny": _texts(self.endpoints.deny),
        }


class TargetDial:
    """One dial that a server requested: the direct dialer's answer goes back to it."""

    __slots__ = ("_dial", "_dials", "_incoming", "_span", "_started_at", "_target")

    def __init__(self, dials: TargetDials, incoming: Incoming, target: HostPort) -> None:
        self._dials = dials
        self._incoming = incoming
        self._target = target
        self._started_at = time.monotonic()
        self._dial: DirectDial | None = None
        self._span: Span | None = None
        if dials.tracing is not None:
            self._span = dials.tracing.connect(
                incoming.asking, connection_id=incoming.connection_id, target=target
            )
        dials.under_way.add(self)
        asked_s = incoming.timeout_s or dials.timeout_s
        dial: DirectDial = dials.dialer.dial(
            target,
            timeout_s=min(asked_s, dials.timeout_s),
            reached=self._reached,
            failed=self._failed,
            client=incoming.requester,
        )
        if not incoming.answered:
            self._dial = dial
            incoming.on_cancelled = self._cancelled

    def _cancelled(self) -> None:
        self._incoming.on_cancelled = None  # breaks the reference cycle
        self._dials.under_way.discard(self)
        if self._span is not None:
            self._span.cancelled()
        if self._dial is not None:
            self._dial.cancel()

    def _reached(self, end: SocketEnd) -> None:
        dials, incoming = self._dials, self._incoming
        connection_id = incoming.connection_id
        dials.metrics.dial_succeeded(time.monotonic() - self._started_at, connection_id)
        if self._span is not None:
            self._span.succeeded()
        client = incoming.accept(_address(end, self._target))
        dials.tunnels.open(
            DialRequest(self._target, incoming.requester, "link", connection_id),
            DialOutcome(dials.agent_id, incoming.link_id),
            client=client,
            far=end,
        )
        dials.under_way.discard(self)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        dials = self._dials
        dials.metrics.dial_failed(failure, time.monotonic() - self._started_at)
        if self._span is not None:
            self._span.failed(failure, detail)
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "dial failed", target=str(self._target),
                reason=failure.value, detail=detail, connection=self._incoming.connection_id,
            )  # fmt: skip
        self._incoming.refuse(failure, detail)
        dials.under_way.discard(self)


def _address(end: SocketEnd, target: HostPort) -> str:
    """The reached address: for a name, the one that answered."""
    literal = _literal(target)
    if literal:
        return literal
    try:
        host, port = end.sock.getpeername()[:2]
    except OSError:  # gone already
        return ""
    return str(HostPort(str(host).partition("%")[0], port))


def _texts(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.text for entry in entries))


@lru_cache(maxsize=1024)
def _target(host: str, port: int) -> HostPort:
    """Check a target; cached, because targets repeat and checking takes 1.5 µs."""
    return HostPort(host, port)


@lru_cache(maxsize=1024)
def _literal(target: HostPort) -> str:
    """An address as written, empty for a name; cached, because targets repeat."""
    return str(target) if is_address(target.host) else ""
