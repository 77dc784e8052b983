"""Dials from nodes to the control plane (KEP-2025), on the server.

An agent requests a dial on its link; the server checks it against --allowed-destination, resolves
it once, dials it, and joins the two. The requester is the authenticated agent; the client of
the agent is only a claim. Policy and networks are for the other direction; only traffic
classes apply to both.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDial, DirectDialer, PermittedOnly
from isthmus.dial.frontends.backend import new_connection_id
from isthmus.dial.rules_policy import BY_AUDIT, Question, class_of
from isthmus.dial.settings_destinations import BY_GATE, UNLISTED, Destination, Ruling
from isthmus.errors import DialFailure
from isthmus.frame.audit.model import Claimed, Record, Stage, cut, requester_of, rfc3339
from isthmus.frame.audit.recording import UNAUDITED
from isthmus.frame.part import Part
from isthmus.links.link import peer_of
from isthmus.links.server_side import AgentLink
from isthmus.links.talk import Incoming
from isthmus.net.descriptors import descriptors
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.net.socket_end import SocketEnd
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.text.pacing import TokenBucket
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import ANONYMOUS, NORMAL, DialOutcome, DialRequest, HostPort, TrafficClass

if TYPE_CHECKING:
    from isthmus.frame.observe.tracing import Span
    from isthmus.programs.server.dials import ServerDials

#: The frontend name of tunnels from nodes; clients' tunnels have the name of a mode.
FRONTEND = "agent"
_QUIET_S = 60.0
_ID = re.compile(r"[!-~]{1,64}", re.ASCII)
_log = logging.getLogger("isthmus.server")


class NodeDial:
    """One pending dial for a node, which becomes a tunnel, fails, or is cancelled."""

    __slots__ = ("_dial", "_dials", "_incoming", "_ruling", "_span", "request")

    def __init__(
        self, dials: NodeDials, incoming: Incoming, request: NodeRequest, ruling: Ruling
    ) -> None:
        self._dials = dials
        self._incoming = incoming
        self._ruling = ruling
        self._dial: DirectDial | None = None
        self._span: Span | None = None
        self.request = request

    def start(self, target: HostPort, timeout_s: float) -> None:
        """Dial; the answer may come before this returns."""
        incoming, tracing = self._incoming, self._dials.server.tracing
        if tracing is not None:
            self._span = tracing.connect(
                incoming.asking, connection_id=self.request.connection_id, target=target
            )
        dial = self._dials.dialer.dial(
            target,
            timeout_s=timeout_s,
            reached=self._reached,
            failed=self._failed,
            client=self.request.link.identity,
        )
        if not incoming.answered:
            self._dial = dial
            incoming.on_cancelled = self._cancelled

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """Fail from our side, ignoring later results."""
        if self._dial is not None:
            self._dial.cancel()
        self._failed(failure, detail)

    def _cancelled(self) -> None:
        """The agent cancelled it, or its link is lost."""
        self._incoming.on_cancelled = None  # breaks the reference cycle
        if self._dial is not None:
            self._dial.cancel()
        if self._span is not None:
            self._span.cancelled()
        self._dials.cancelled(self)

    def _reached(self, end: SocketEnd) -> None:
        if self._span is not None:
            self._span.succeeded()
        self._dials.reached(self, self._incoming, end, self._ruling)

    def _failed(self, failure: DialFailure, detail: str) -> None:
        if self._span is not None:
            self._span.failed(failure, detail)
        self._dials.failed(self, self._incoming, failure, detail)


class NodeDials(Part):
    """The dials and tunnels of nodes: checked, limited, counted, audited."""

    def __init__(self, server: ServerDials) -> None:
        settings = server.settings
        self.server = server
        self.enabled = settings.gates.enabled(CLUSTER_TO_MASTER)
        self.destinations = settings.node_traffic.destinations
        self.resolver = PermittedOnly(server.loop, self.destinations)
        # An exactly listed metadata address is intended; one inside a listed range is not.
        exact = (it.network for it in self.destinations if it.network is not None)
        self.dialer = DirectDialer(
            server.loop, server.poller, self.resolver, metadata=MetadataGuard(exact)
        )
        self.limit_s = settings.dial_limit_s
        self.bounds = NodeBounds(most_open())
        self.pending: set[NodeDial] = set()
        self.tunnels = 0

    def take(self, incoming: Incoming) -> None:
        """Handle a dial requested by an agent; see links.link.Link.on_dial."""
        link = self.server.agent_door.link_of(incoming.link_id)
        if link is None:
            incoming.refuse(DialFailure.AGENT_LOST, "the link no longer exists")
        elif fast := self.bounds.too_fast(link, now=self.server.loop.time()):
            self._too_fast(link, incoming, fast)
        elif not self.enabled:
            self._deny(self._request(link, incoming), incoming, BY_GATE)
        elif self.server.unaudited():
            self._deny(self._request(link, incoming), incoming, BY_AUDIT)
        else:
            self._take(self._request(link, incoming), incoming)

    def _take(self, request: NodeRequest, incoming: Incoming) -> None:
        try:
            ruling = self.destinations.judge(HostPort(incoming.host, incoming.port))
        except ValueError:  # a spelling that only some resolvers accept, or an invalid one
            ruling = Ruling()
        if ruling.target is None:
            self._deny(request, incoming, UNLISTED)
            return
        link_id = request.link.id
        busy = self.bounds.too_many(link_id)
        if busy:
            self._fail(request, incoming, DialFailure.TOO_MANY, busy)
            return
        dial = NodeDial(self, incoming, request, ruling)
        self.pending.add(dial)
        self.bounds.began(link_id)
        dial.start(ruling.target, min(incoming.timeout_s or self.limit_s, self.limit_s))

    def _request(self, link: AgentLink, incoming: Incoming) -> NodeRequest:
        # The agent chooses the id, so that both use the same; it goes into logs and metrics.
        known, client = incoming.connection_id, incoming.requester
        return NodeRequest(
            connection_id=known if _ID.fullmatch(known) else new_connection_id(),
            link=link,
            claimed_client=cut(client.name) if client is not ANONYMOUS else "",
            destination=_shown(incoming.host, incoming.port),
            started_at=time.monotonic(),
        )

    # Results of dials.

    def reached(self, dial: NodeDial, incoming: Incoming, end: SocketEnd, ruling: Ruling) -> None:
        """The destination was reached: join."""
        server, request = self.server, dial.request
        self._no_longer_pending(dial)
        address = peer_of(end.sock)
        by = ruling.by or self._covering(end)
        connection_id, link = request.connection_id, request.link
        server.metrics.node_dial_succeeded(time.monotonic() - request.started_at, connection_id)
        told = None
        if server.audit is not None:
            record = node_record(
                request, Stage.BEGIN, server_id=server.id, address=address,
                rule=str(by) if by is not None else "",
            )  # fmt: skip
            told = server.audit.begin(record)
        assert ruling.target is not None  # otherwise it would not have been dialed
        self.tunnels += 1
        server.tunnels.open(
            DialRequest(ruling.target, link.identity, FRONTEND, connection_id),
            DialOutcome(link.agent_id, link.id),
            client=incoming.accept(address, self._class_of(request, ruling.target)),
            far=end,
            on_ended=partial(self._ended, link.id, told),
        )

    def failed(self, dial: NodeDial, incoming: Incoming, failure: DialFailure, detail: str) -> None:
        """The dial failed: answer."""
        self._no_longer_pending(dial)
        self.bounds.ended(dial.request.link.id)
        if failure is DialFailure.DENIED:  # because of the addresses of its name
            self._deny(dial.request, incoming, UNLISTED)
        else:
            self._fail(dial.request, incoming, failure, detail)

    def cancelled(self, dial: NodeDial) -> None:
        """The dial was cancelled."""
        self._no_longer_pending(dial)
        self.bounds.ended(dial.request.link.id)
        self._audit(dial.request, Stage.FAILED, None, "the agent cancelled it before the answer")

    def _ended(
        self,
        link_id: int,
        told: Callable[[Tunnel, float], None] | None,
        tunnel: Tunnel,
        duration_s: float,
    ) -> None:
        self.tunnels -= 1
        self.bounds.ended(link_id)
        if told is not None:
            told(tunnel, duration_s)

    # Part.

    @override
    def start(self) -> None:
        gauges = self.server.metrics.gauges
        gauges.node_dials = lambda: len(self.pending)
        gauges.node_tunnels = lambda: self.tunnels

    @override
    def busy(self) -> bool:
        return bool(self.pending)

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"allowed_destinations": tuple(map(str, self.destinations))}

    @override
    def close(self) -> None:
        for dial in list(self.pending):
            dial.give_up(DialFailure.AGENT_LOST, "server is stopping")
        self.resolver.close()

    # Refusals.

    def _deny(self, request: NodeRequest, incoming: Incoming, rule: str) -> None:
        if rule == BY_GATE:
            why = f"{CLUSTER_TO_MASTER} is off at this server; turn it on with --feature-gates"
        elif rule == BY_AUDIT:
            why = UNAUDITED
        else:
            why = "--allowed-destination of this server does not list it"
        sentence = f"{request.destination}: {why}"
        server, link = self.server, request.link
        server.metrics.node_dial_failed(DialFailure.DENIED)
        server.once.log(
            ("node denied", link.agent_id, rule), _QUIET_S, _log, logging.WARNING,
            "denied a dial from a node", agent_id=link.agent_id, link=link.id,
            destination=request.destination, client=request.claimed_client or None, reason=why,
            connection=request.connection_id,
        )  # fmt: skip
        self._audit(request, Stage.REFUSED, DialFailure.DENIED, sentence, rule=rule)
        incoming.refuse(DialFailure.DENIED, sentence)

    def _too_fast(self, link: AgentLink, incoming: Incoming, why: str) -> None:
        # The request is not parsed, and there would be too many records for the audit log.
        server, failure = self.server, DialFailure.TOO_MANY
        server.metrics.node_dial_failed(failure)
        server.once.log(
            ("node dial", failure, link.agent_id), _QUIET_S, _log, logging.WARNING,
            "dial from a node failed", agent_id=link.agent_id, link=link.id, reason=failure.value,
            detail=why,
        )  # fmt: skip
        incoming.refuse(failure, why)

    def _fail(
        self, request: NodeRequest, incoming: Incoming, failure: DialFailure, detail: str
    ) -> None:
        server = self.server
        server.metrics.node_dial_failed(failure)
        server.once.log(
            ("node dial", failure, request.link.agent_id), _QUIET_S, _log, logging.WARNING,
            "dial from a node failed", agent_id=request.link.agent_id,
            destination=request.destination, reason=failure.value, detail=detail,
            connection=request.connection_id,
        )  # fmt: skip
        self._audit(request, Stage.FAILED, failure, detail)
        incoming.refuse(failure, detail)

    def _audit(
        self,
        request: NodeRequest,
        stage: Stage,
        failure: DialFailure | None,
        reason: str,
        rule: str = "",
    ) -> None:
        if self.server.audit is None:
            return
        record = node_record(
            request, stage, server_id=self.server.id, rule=rule, failure=failure, reason=reason,
        )  # fmt: skip
        self.server.audit.put(record)

    def _class_of(self, request: NodeRequest, target: HostPort) -> TrafficClass:
        """The traffic class of a request; the agent's own claim is ignored."""
        policy = self.server.networks.policy
        if policy is None or not policy.current.classes:
            return NORMAL
        asked = Question(requester=request.link.identity, network="", target=target)
        return class_of(policy.current, asked)

    # Counting.

    def _no_longer_pending(self, dial: NodeDial) -> None:
        self.pending.discard(dial)
        self.bounds.answered(dial.request.link.id)

    def _covering(self, end: SocketEnd) -> Destination | None:
        try:
            host, port = end.sock.getpeername()[:2]
        except OSError:  # already gone
            return None
        return self.destinations.covering(str(host), port)


def _shown(host: str, port: int) -> str:
    """The requested destination for display, even if invalid."""
    try:
        return str(HostPort(host, port))
    except ValueError:
        # Without a port the request was one text, which may contain one.
        return f"{host[:300]!r} port {port}" if port else f"{host[:300]!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """A request of an agent, its client, and its start (``time.monotonic``)."""

    connection_id: str
    link: AgentLink
    claimed_client: str
    destination: str
    started_at: float


def node_record(
    request: NodeRequest,
    stage: Stage,
    *,
    server_id: str,
    rule: str = "",
    address: str = "",
    failure: DialFailure | None = None,
    reason: str = "",
) -> Record:
    """The audit record of a request's result; for a tunnel, of its start.

    The authenticated agent is the requester. The client is only the agent's claim:
    it is never trusted, and recorded separately.
    """
    now, link = time.time(), request.link
    since = time.monotonic() - request.started_at
    begins = stage is Stage.BEGIN
    claimed = request.claimed_client
    return Record(
        time=rfc3339(now),
        stage=stage,
        connection_id=request.connection_id,
        server_id=server_id,
        frontend="agent",
        client=link.peer_address,
        requester=requester_of(link.identity),
        claimed=Claimed(believed=False, client=cut(claimed)) if claimed else None,
        destination=cut(request.destination),
        address=address,
        agent_id=link.agent_id,
        link_id=link.id,
        decision="deny" if failure is DialFailure.DENIED else "allow",
        rule=rule,
        start_time=rfc3339(now - since),
        end_time="" if begins else rfc3339(now),
        duration_s=None if begins else round(since, 6),
        failure=failure.value if failure is not None else "",
        reason=cut(reason),
    )


#: Limit of pending dials per link, each of which may wait for the resolver.
MOST_PENDING_PER_LINK = 1024
#: Rate limit per link: a node that lost all its connections can restore them at once, but one that
#: keeps requesting and cancelling uses up neither the server's time nor its audit log.
BURST_PER_LINK, PER_S_PER_LINK = 4096, 500.0


def most_open() -> int:
    """The limit of dials and tunnels of nodes: half of the descriptors."""
    return max(2, descriptors() // 2)


class NodeBounds:
    """Counts the dials and tunnels of nodes, and enforces their limits."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_per_link = most // 2  # one agent cannot use up all
        #: By link id: dials and tunnels; and of these the pending dials.
        self.open: Counter[int] = Counter()
        self.pending: Counter[int] = Counter()
        self._buckets: WeakKeyDictionary[AgentLink, TokenBucket] = WeakKeyDictionary()

    def too_fast(self, link: AgentLink, *, now: float) -> str:
        """Count one more request; returns why it is rejected unread, or ""."""
        bucket = self._buckets.get(link)
        if bucket is None:
            bucket = TokenBucket(rate=PER_S_PER_LINK, burst=BURST_PER_LINK, now=now)
            self._buckets[link] = bucket
        if bucket.allows(now=now):
            return ""
        return f"this agent requests more than {PER_S_PER_LINK:.0f} connections per second"

    def too_many(self, link_id: int) -> str:
        """Why there can be no further dial, or ""."""
        if self.open.total() >= self.most:
            return f"this server already has {self.most} connections from nodes"
        if self.open[link_id] >= self.most_per_link:
            return f"this agent already has {self.most_per_link} connections to the control plane"
        if self.pending[link_id] >= MOST_PENDING_PER_LINK:
            return f"{MOST_PENDING_PER_LINK} dials of this agent are pending"
        return ""

    def began(self, link_id: int) -> None:
        """Count a started dial."""
        self.open[link_id] += 1
        self.pending[link_id] += 1

    def answered(self, link_id: int) -> None:
        """Count an answered dial."""
        _less(self.pending, link_id)

    def ended(self, link_id: int) -> None:
        """Count the end of a failed dial or of a tunnel."""
        _less(self.open, link_id)


def _less(counts: Counter[int], key: int) -> None:
    """Count down; a key at zero is removed."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
