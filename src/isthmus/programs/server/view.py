"""A server's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from isthmus import __version__
from isthmus.frame.model.snapshot import AgentView, NetworkView, RelayView, ServerView
from isthmus.frame.views import (
    certificates,
    gate_views,
    is_draining,
    link_view,
    memory_view,
    round_trip_s,
    state_of,
    totals,
)
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink
from isthmus.values import ServerId

if TYPE_CHECKING:
    from isthmus.programs.server.networks import ServerNetworks
    from isthmus.programs.server.program import Server


def server_view(server: Server, limit: int) -> ServerView:
    """Show the server, with at most ``limit`` tunnels."""
    now = server.loop.time()
    by_agent: dict[str, list[AgentLink]] = {}
    for link in server.agents:
        by_agent.setdefault(link.agent_id, []).append(link)
    within = server.networks.name_by_link()
    return ServerView(
        server_id=server.id,
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=now - server.started_at,
        draining=server.draining,
        totals=totals(server.metrics),
        networks=network_views(server.networks),
        agents=tuple(_agent(links, within) for links in by_agent.values()),
        links=tuple(
            link_view(link, link.agent_id, now)
            for link in server.links
            if link.ready and not link.relays
        ),
        relays=tuple(_relays(server, now)),
        tunnels=server.tunnels.views(limit),
        truncated=max(0, len(server.tunnels) - limit),
        recent_endings=server.tunnels.endings.views(now=now),
        certificates=certificates(server.contexts),
        feature_gates=gate_views(server.settings.gates),
        allowed_destinations=tuple(map(str, server.settings.node_traffic.destinations)),
        memory=memory_view(server.budget),
    )


def _relays(server: Server, now: float) -> Iterator[RelayView]:
    for link in server.relays.links if server.relays is not None else ():
        yield _relay(link, link.server_id, "to", agents=link.agents, now=now)
    for other in server.agent_door.relays:
        yield _relay(other, other.agent_id, "from", agents=False, now=now)


def _relay(
    link: Link, server_id: str, direction: Literal["to", "from"], *, agents: bool, now: float
) -> RelayView:
    return RelayView(
        server_id=ServerId(server_id),
        direction=direction,
        address=link.peer_address,
        identity=str(link.identity),
        state=state_of(link),
        agents=agents,
        streams=link.load,
        age_s=now - link.opened_at,
        rtt_s=round_trip_s(link),
    )


def network_views(networks: ServerNetworks) -> tuple[NetworkView, ...]:
    """Show the networks of a server; none where it has no --cluster-network."""
    return tuple(
        NetworkView(
            name=network.name,
            way=networks.way_to(network),
            agents=networks.agents_in(network),
        )
        for network in networks.networks or ()
    )


def _agent(links: list[AgentLink], within: Mapping[AgentLink, str] | None = None) -> AgentView:
    first = links[0]
    return AgentView(
        id=first.agent_id,
        identity=str(first.identity),
        identifiers=tuple(filter(None, first.identifiers.to_query().split("&"))),
        version=first.version,
        zone=first.zone,
        # Without networks an agent may still have named one.
        network=first.network if within is None else within.get(first, ""),
        links=len(links),
        tunnels=sum(link.load for link in links),
        draining=all(is_draining(link) for link in links),
        rtt_s=min((rtt for rtt in map(round_trip_s, links) if rtt is not None), default=None),
    )
