"""What a program looks like at one moment, as values: tunnels, agents, links, recent endings.

Whoever owns the live objects fills these in; core/snapshot_json.py turns any of them into JSON.
Nothing here reads a clock: ages come in as numbers, wall times as ``datetime``. The admin
port that serves them is admin/routes.py; what the fields mean to an operator is docs/snapshot.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal

from isthmus.core.names_view import NamesView
from isthmus.tunnel.end import Ending
from isthmus.values import AgentId, ServerId, TunnelId


class TunnelState(Enum):
    """Where a tunnel is in its life."""

    OPEN = "open"
    HALF_CLOSED = "half-closed"
    STALLED = "stalled"


class LinkState(Enum):
    """Where a link is in its life."""

    GREETING = "greeting"
    OPEN = "open"
    STUCK = "stuck"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """One tunnel. ``stalled`` is empty, or one sentence saying why it does not move.

    ``relay`` is the other server that has the agent, if one has; ``link_id`` is then that to it.
    """

    id: TunnelId
    frontend: str
    requester: str
    target: str
    agent_id: AgentId
    link_id: int
    state: TunnelState
    age_s: float
    bytes_to_target: int
    bytes_to_client: int
    stalled: str = ""
    connection_id: str = ""
    relay: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link between a server and an agent, seen from either side.

    ``peer_id`` is the agent's id on a server and the server's id on an agent; ``peer_version`` is
    empty where it does not say, as konnectivity's own. Window growth is what
    receiving streams have above the window they began with, now and at most so far; none by gRPC,
    which has no window per connection.
    """

    id: int
    peer_id: str
    peer_address: str
    peer_version: str
    carrier: str
    state: LinkState
    age_s: float
    streams: int
    rtt_s: float | None
    held_bytes: int
    sent_bytes: int
    received_bytes: int
    window_growth_bytes: int
    window_growth_peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One agent as its server knows it; ``rtt_s`` is the best of its links, None before a ping.

    ``network`` is the one that it is asked in; empty if there is none.
    """

    id: AgentId
    identity: str
    identifiers: tuple[str, ...]
    version: str
    zone: str
    network: str = ""
    links: int
    tunnels: int
    draining: bool
    rtt_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayView:
    """A link by which one server passes dials to the agents of another; ``to`` it, or from it.

    ``agents``: the other server says that it has some, which only that side says.
    """

    server_id: ServerId
    direction: Literal["to", "from"]
    address: str
    identity: str
    state: LinkState
    agents: bool
    streams: int
    age_s: float
    rtt_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """A network of a server, the way there, and how many agents it can be reached through."""

    name: str
    way: str
    agents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedView:
    """How one of the last tunnels ended, who ended it, and what it had carried."""

    target: str
    ending: str
    by: str
    bytes_to_target: int
    bytes_to_client: int
    duration_s: float
    age_s: float
    connection_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateView:
    """A certificate in use. ``not_after`` is a wall time, so it is written as RFC 3339."""

    file: str
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A feature gate, and whether it is on."""

    name: str
    stage: str
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTargetView:
    """A local port of an agent, and what connections to it reach."""

    local_port: int
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServerView:
    """A server as the connections from a node see it.

    ``carries`` is ``yes``, ``no`` or ``unknown``; ``silent``: it did not answer the last of them.
    """

    server_id: ServerId
    carries: str
    silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailureView:
    """A connection from a node that was reset: ``result`` is a word, ``reason`` says it in full."""

    client: str
    destination: str
    result: str
    reason: str
    age_s: float
    connection_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrafficView:
    """Connections from an agent's node to the control plane.

    ``waits_for`` is empty, or one sentence saying why they cannot be served now.
    """

    address: str
    interface: str
    listening: bool
    waits_for: str
    waiting: int
    open: int
    targets: tuple[NodeTargetView, ...]
    servers: tuple[NodeServerView, ...]
    recent_failures: tuple[NodeFailureView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the program started."""

    dials: int = 0
    dials_failed: int = 0
    tunnels_ended: int = 0
    bytes_to_target: int = 0
    bytes_to_client: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A whole server. ``truncated`` tunnels were left out to stay inside the asked limit."""

    kind: Literal["ServerSnapshot"] = "ServerSnapshot"
    server_id: ServerId
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    totals: Totals
    networks: tuple[NetworkView, ...] = ()
    agents: tuple[AgentView, ...]
    links: tuple[LinkView, ...]
    relays: tuple[RelayView, ...] = ()
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    feature_gates: tuple[GateView, ...] = ()
    allowed_destinations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgramView:
    """A whole agent. ``known_servers`` is how many servers it tries to be connected to.

    ``endpoint_allow`` and ``endpoint_deny`` are what it may dial, the defaults included.
    """

    kind: Literal["AgentSnapshot"] = "AgentSnapshot"
    agent_id: AgentId
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    known_servers: int
    totals: Totals
    links: tuple[LinkView, ...]
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    feature_gates: tuple[GateView, ...] = ()
    node_traffic: NodeTrafficView | None = None
    endpoint_allow: tuple[str, ...] = ()
    endpoint_deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendView:
    """A backend of a route. ``failed``: it could not be reached a moment ago, and comes last."""

    address: str
    connections: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """A route of the SNI router. ``max_connections`` 0 is no limit."""

    name: str
    hosts: tuple[str, ...]
    alpn: tuple[str, ...]
    is_default: bool
    connections: int
    max_connections: int
    backends: tuple[BackendView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRouterView:
    """A whole SNI router. The ``frontend`` of its tunnels is the name of their route."""

    kind: Literal["SniRouterSnapshot"] = "SniRouterSnapshot"
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    config: str
    hellos: int
    totals: Totals
    routes: tuple[RouteView, ...]
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamView:
    """An upstream of the apiserver proxy. ``failed``: it could not be reached a moment ago."""

    address: str
    connections: int
    up: bool
    failed: bool
    checks: int
    last_check: str
    resolved: tuple[str, ...] = ()
    through: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiserverProxyView:
    """A whole apiserver proxy."""

    kind: Literal["ApiserverProxySnapshot"] = "ApiserverProxySnapshot"
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    config: str
    listeners: tuple[str, ...]
    addresses: tuple[str, ...]
    dialing: int
    totals: Totals
    upstreams: tuple[UpstreamView, ...]
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarView:
    """A whole sidecar. ``requests``: clients that wait for a dial, or exchange plain HTTP."""

    kind: Literal["SidecarSnapshot"] = "SidecarSnapshot"
    program: str
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    server: str
    handshakes: int
    requests: int
    names: NamesView
    totals: Totals
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()


ProgramView = ServerView | AgentProgramView | SniRouterView | ApiserverProxyView | SidecarView


class RecentEndings:
    """The last tunnels' endings, newest first; ``limit`` bounds the memory."""

    __slots__ = ("_kept",)

    def __init__(self, limit: int = 100) -> None:
        self._kept: deque[tuple[float, str, Ending, str, int, int, float, str]] = deque(
            maxlen=limit
        )

    def add(
        self,
        *,
        now: float,
        target: str,
        ending: Ending,
        by: str,
        bytes_to_target: int,
        bytes_to_client: int,
        duration_s: float,
        connection_id: str = "",
    ) -> None:
        """Remember one ending; the oldest makes room."""
        self._kept.appendleft(
            (now, target, ending, by, bytes_to_target, bytes_to_client, duration_s, connection_id)
        )

    def views(self, *, now: float) -> tuple[EndedView, ...]:
        """Show them, newest first, with their ages at ``now``."""
        return tuple(
            EndedView(
                target=target,
                ending=ending.value,
                by=by,
                bytes_to_target=to_target,
                bytes_to_client=to_client,
                duration_s=duration_s,
                age_s=now - at,
                connection_id=connection_id,
            )
            for at, target, ending, by, to_target, to_client, duration_s, connection_id in (
                self._kept
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes waiting in one direction, and for how long none of them moved.

    ``no_credit``: they wait for the far side of the link to grant window, so the reader that
    stopped is behind the agent and not at this socket.
    """

    bytes: int = 0
    for_s: float = 0.0
    no_credit: bool = False


STALLED_AFTER_S = 5.0
_NOTHING = Held()


def why_stalled(
    *,
    to_client: Held = _NOTHING,
    to_target: Held = _NOTHING,
    link_stuck_s: float = 0.0,
    after_s: float = STALLED_AFTER_S,
) -> str:
    """Say in one sentence why a tunnel does not move; empty if it does.

    A link that makes no progress is named alone: everything on it waits, whoever reads.
    """
    if link_stuck_s >= after_s:
        waiting = to_client.bytes + to_target.bytes
        return f"link makes no progress; {waiting} bytes held for {link_stuck_s:.0f} s"
    return " and ".join(
        f"{who} stopped reading{' (no credit on the link)' if held.no_credit else ''};"
        f" {held.bytes} bytes held for {held.for_s:.0f} s"
        for who, held in (("client", to_client), ("target", to_target))
        if held.bytes and held.for_s >= after_s
    )
