"""The state of a program at one moment, as values and as JSON.

The fields that every program has are here; each declares its own view in its room. The owners of
the live objects fill these in. Nothing here reads a clock: ages come in as numbers, wall times as
``datetime``. frame/admin/routes.py serves them; docs/snapshot.md explains the fields to operators.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

from isthmus.frame.model.merge import CONCAT, KEY, MAX, MIN, PARTS, ROWS, SAME, SUM, Merge, merges
from isthmus.net.rules_expiry import Standing
from isthmus.tunnel.end import Ending
from isthmus.values import AgentId, DialRequest, ServerId, TunnelId

_PLAIN = frozenset({str, int, bool, type(None)})
CHUNK_ITEMS = 100


class TunnelState(Enum):
    """The state of a tunnel."""

    OPEN = "open"
    HALF_CLOSED = "half-closed"
    STALLED = "stalled"
    SLOW = "slow"


class LinkState(Enum):
    """The state of a link."""

    GREETING = "greeting"
    OPEN = "open"
    STUCK = "stuck"
    SUSPENDED = "suspended"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """One tunnel. ``stalled`` is empty, or the reason.

    ``slow`` is likewise the reason if bytes wait though some move (frame/tunnels.py).

    ``relay`` is the other server that has the agent, if any; ``link_id`` is then the link to it.
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
    slow: str = ""
    connection_id: str = ""
    relay: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link between a server and an agent, seen from either side.

    ``peer_id`` is the agent's id on a server and the server's id on an agent; ``peer_version`` is
    empty if the peer does not report it, as konnectivity's own. Window growth is what receiving
    streams have above their initial window, now and at most so far; 0 over gRPC, which has no
    window per connection. ``resumes`` is how often the link continued on another connection,
    ``kept_bytes`` the bytes kept to be sent again.
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
    resumes: int = 0
    kept_bytes: int = 0


@merges(
    id=KEY, identity=SAME, identifiers=SAME, version=SAME, zone=SAME, network=SAME, links=SUM,
    tunnels=SUM, draining=MIN, rtt_s=MIN,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One agent as its server knows it; ``rtt_s`` is the best of its links, None before a ping.

    ``network`` is the one in which it gets dials; empty if there is none.
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


@merges(
    # The worst state of the links is shown.
    lead=lambda row: row.state is not LinkState.STUCK,
    server_id=KEY, direction=KEY, address=SAME, identity=SAME, state=SAME, agents=MAX,
    agent_count=MAX, streams=SUM, age_s=MAX, rtt_s=MIN,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class RelayView:
    """A link on which one server passes dials to the agents of another; ``to`` it, or from it.

    ``agents``: the other server reported agents, and ``agent_count`` how many; only a link ``to`` a
    server has that.
    """

    server_id: ServerId
    direction: Literal["to", "from"]
    address: str
    identity: str
    state: LinkState
    agents: bool
    agent_count: int = 0
    streams: int
    age_s: float
    rtt_s: float | None


@merges(server_id=KEY, known_by=SAME, address=SAME)
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownServerView:
    """Another server of the installation: how it is known, and the address of its agent port.

    ``known_by`` is ``lease``, ``flag``, or ``worker`` for the other workers of one program.
    ``address`` is empty if it is unknown.
    """

    server_id: ServerId
    known_by: str
    address: str


@merges(name=KEY, way=SAME, agents=MAX)
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """A network of a server, the way there, and the number of agents that reach it."""

    name: str
    way: str
    agents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedView:
    """How one of the last tunnels ended, who ended it, and the bytes that it carried."""

    target: str
    ending: str
    by: str
    bytes_to_target: int
    bytes_to_client: int
    duration_s: float
    age_s: float = 0.0
    connection_id: str = ""


@merges(
    # Shows a worker that has not read the new file yet.
    lead=lambda row: row.not_after,
    file=KEY, not_after=SAME, not_before=SAME, standing=SAME,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateView:
    """A certificate in use. Wall times are written as RFC 3339; ``not_before`` None is unknown."""

    file: str
    not_after: datetime
    not_before: datetime | None = None
    standing: Standing = Standing.OK


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
    """A connection from a node that was reset: ``result`` is a word, ``reason`` the full text."""

    client: str
    destination: str
    result: str
    reason: str
    age_s: float
    connection_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrafficView:
    """Connections from an agent's node to the control plane.

    ``address`` is the first of ``addresses``, of which there is one of each family at most.
    ``waits_for`` is empty, or the reason why they cannot be served now.
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
    addresses: tuple[str, ...] = ()


#: The rules for the fields of every program with tunnels.
PROGRAM_RULES: Mapping[str, Merge] = {
    "kind": SAME, "version": SAME, "taken_at": MAX, "uptime_s": MAX, "draining": MIN,
    "totals": PARTS, "tunnels": CONCAT, "truncated": SUM, "recent_endings": CONCAT,
    "certificates": ROWS, "memory": PARTS,
}  # fmt: skip


@merges(dials=SUM, dials_failed=SUM, tunnels_ended=SUM, bytes_to_target=SUM, bytes_to_client=SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the program started."""

    dials: int = 0
    dials_failed: int = 0
    tunnels_ended: int = 0
    bytes_to_target: int = 0
    bytes_to_client: int = 0


@merges(peer=KEY, bytes=SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A peer, and the bytes held on its behalf."""

    peer: str
    bytes: int


@merges(
    budget_bytes=SUM, used_bytes=SUM, most_used_bytes=SUM, peers=SUM, over_share=SUM, largest=ROWS
)
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The memory budget: ``over_share`` counts how often a peer was slowed or refused.

    ``largest`` are the peers that hold the most.
    """

    budget_bytes: int
    used_bytes: int
    most_used_bytes: int
    peers: int
    over_share: int
    largest: tuple[HolderView, ...] = ()


@merges(
    PROGRAM_RULES, server_id=SAME, networks=ROWS, agents=ROWS, links=CONCAT, relays=ROWS,
    server_count=MAX, other_servers=ROWS, feature_gates=SAME, allowed_destinations=SAME,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A whole server. ``truncated`` tunnels were left out because of the requested limit.

    ``server_count`` is how many servers there are, as agents are told; ``other_servers`` are those
    of them with a known id, besides this one.
    """

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
    server_count: int = 1
    other_servers: tuple[KnownServerView, ...] = ()
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    feature_gates: tuple[GateView, ...] = ()
    allowed_destinations: tuple[str, ...] = ()
    memory: MemoryView | None = None


@merges(
    PROGRAM_RULES, agent_id=SAME, known_servers=MAX, links=CONCAT, feature_gates=SAME,
    node_traffic=SAME, endpoint_allow=SAME, endpoint_deny=SAME,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgramView:
    """A whole agent. ``known_servers`` is how many servers it tries to connect to.

    ``endpoint_allow`` and ``endpoint_deny`` are what it may dial, including the defaults.
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
    memory: MemoryView | None = None


class ProgramView(Protocol):
    """A whole program, as each declares it in its room: the common fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def kind(self) -> str:
        """The kind of the program."""

    @property
    def totals(self) -> Totals:
        """The counts since it started."""

    @property
    def tunnels(self) -> tuple[TunnelView, ...]:
        """Its tunnels, oldest first, up to the requested limit."""

    @property
    def truncated(self) -> int:
        """How many tunnels were left out."""

    @property
    def recent_endings(self) -> tuple[EndedView, ...]:
        """How the last tunnels ended, newest first."""


#: Time, target, ending and who caused it, bytes to the target and back, and lifetime. A plain
#: tuple: every tunnel creates one, and most are never read.
EndedTunnel = tuple[float, DialRequest, Ending, str, int, int, float]


class RecentEndings:
    """The last tunnels' endings, newest first; ``limit`` bounds the memory."""

    __slots__ = ("_kept",)

    def __init__(self, limit: int = 100) -> None:
        self._kept: deque[EndedTunnel] = deque(maxlen=limit)

    def add(self, ended: EndedTunnel) -> None:
        """Remember one ending; drops the oldest when full."""
        self._kept.appendleft(ended)

    def views(self, *, now: float) -> tuple[EndedView, ...]:
        """The endings, newest first, with their ages at ``now``."""
        return tuple(
            EndedView(
                target=str(request.target),
                ending=ending.value,
                by=by,
                bytes_to_target=to_target,
                bytes_to_client=to_client,
                duration_s=duration_s,
                age_s=now - at,
                connection_id=request.connection_id,
            )
            for at, request, ending, by, to_target, to_client, duration_s in self._kept
        )


def to_json(view: Any) -> Any:
    """Convert a view for ``json.dumps``, with keys in camelCase in the order declared.

    A trailing ``_s`` is written ``Seconds``, as the Kubernetes API does (``periodSeconds``).
    Seconds are rounded to microseconds.
    """
    kind = type(view)
    # By exact type: isinstance over unions took three times as long for a thousand tunnels.
    if kind in _PLAIN:
        return view
    if kind is float:
        return round(view, 6)
    if is_dataclass(kind):
        return {key: to_json(getattr(view, name)) for name, key in _keys(kind)}
    if kind is tuple or kind is list:
        return [to_json(item) for item in view]
    if isinstance(view, Enum):
        return view.value
    if isinstance(view, datetime):
        return view.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    raise TypeError(f"not part of a snapshot: {kind.__name__}")


def json_chunks(view: ProgramView) -> Iterator[str]:
    """Write a program's view as JSON in pieces of at most ``CHUNK_ITEMS`` list items.

    The pieces joined are one JSON object. The caller lets other work run between two pieces:
    a thousand tunnels in one piece would hold the loop for 8 ms.
    """
    opening = "{"
    kind: type = type(view)
    for name, key in _keys(kind):
        value = getattr(view, name)
        yield f"{opening}{json.dumps(key)}: "
        opening = ", "
        if not isinstance(value, tuple):
            yield json.dumps(to_json(value))
            continue
        yield "["
        for start in range(0, len(value), CHUNK_ITEMS):
            text = json.dumps(to_json(value[start : start + CHUNK_ITEMS]))[1:-1]
            yield f", {text}" if start else text
        yield "]"
    yield "}\n"


@cache
def _keys(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, camel(field.name)) for field in fields(kind))


def camel(name: str) -> str:
    """A field's name as a key; a trailing ``_s`` becomes ``Seconds``."""
    if name.endswith("_s"):
        name = f"{name}econds"
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
