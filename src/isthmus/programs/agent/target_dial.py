"""One dial that a server asked an agent for, from the question to the tunnel."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from isthmus.dial.dialers.direct import DirectDial
from isthmus.errors import DialFailure
from isthmus.frame.observe.tracing import Span
from isthmus.links.talk import Incoming
from isthmus.logs import log
from isthmus.net.socket_end import SocketEnd
from isthmus.values import DialOutcome, DialRequest, HostPort, is_address

if TYPE_CHECKING:
    from isthmus.programs.agent.program import Agent

_log = logging.getLogger("isthmus.agent")


class TargetDial:
    """One dial that a server asked for: the answer of the direct dialer goes back to it."""

    __slots__ = ("_agent", "_dial", "_incoming", "_span", "_started_at", "_target")

    def __init__(self, agent: Agent, incoming: Incoming, target: HostPort) -> None:
        self._agent = agent
        self._incoming = incoming
        self._target = target
        self._started_at = time.monotonic()
        self._dial: DirectDial | None = None
        self._span: Span | None = None
        if agent.tracing is not None:
            self._span = agent.tracing.connect(
                incoming.asking, connection_id=incoming.connection_id, target=target
            )
        agent.dials.add(self)
        asked_s = incoming.timeout_s or agent.settings.dial_timeout_s
        dial: DirectDial = agent.dialer.dial(
            target,
            timeout_s=min(asked_s, agent.settings.dial_timeout_s),
            reached=self._reached,
            failed=self._failed,
            client=incoming.requester,
        )
        if not incoming.answered:
            self._dial = dial
            incoming.on_cancelled = self._cancelled

    def _cancelled(self) -> None:
        self._incoming.on_cancelled = None  # or it and we would keep each other
        self._agent.dial_over(self)
        if self._span is not None:
            self._span.cancelled()
        if self._dial is not None:
            self._dial.cancel()

    def _reached(self, end: SocketEnd) -> None:
        agent, incoming = self._agent, self._incoming
        connection_id = incoming.connection_id
        agent.metrics.dial_succeeded(time.monotonic() - self._started_at, connection_id)
        if self._span is not None:
            self._span.succeeded()
        client = incoming.accept(_address(end, self._target))
        agent.tunnels.open(
            DialRequest(self._target, incoming.requester, "link", connection_id),
            DialOutcome(agent.id, incoming.link_id),
            client=client,
            far=end,
        )
        agent.dial_over(self)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        agent = self._agent
        agent.metrics.dial_failed(failure, time.monotonic() - self._started_at)
        if self._span is not None:
            self._span.failed(failure, detail)
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "dial failed", target=str(self._target),
                reason=failure.value, detail=detail, connection=self._incoming.connection_id,
            )  # fmt: skip
        self._incoming.refuse(failure, detail)
        agent.dial_over(self)


def _address(end: SocketEnd, target: HostPort) -> str:
    """What was reached: of a name, the one of its addresses that answered."""
    literal = _literal(target)
    if literal:
        return literal
    try:
        host, port = end.sock.getpeername()[:2]
    except OSError:  # gone already
        return ""
    return str(HostPort(str(host).partition("%")[0], port))


@lru_cache(maxsize=1024)
def _literal(target: HostPort) -> str:
    """An address as it is written, empty for a name; the same ones come again and again."""
    return str(target) if is_address(target.host) else ""
