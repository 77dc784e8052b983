"""A server's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from isthmus import __version__
from isthmus.config.gates import GATES, GateSettings
from isthmus.core.history import Tally
from isthmus.core.snapshot import (
    AgentView,
    CertificateView,
    GateView,
    LinkState,
    LinkView,
    NetworkView,
    RelayView,
    ServerView,
    Totals,
)
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink
from isthmus.net.contexts import HotContext
from isthmus.observe.program import ProgramMetrics
from isthmus.values import ServerId

if TYPE_CHECKING:
    from isthmus.app.server import Server
    from isthmus.app.server_networks import ServerNetworks


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
        feature_gates=gate_views(server.settings),
        allowed_destinations=tuple(map(str, server.settings.destinations)),
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
        state=_state(link),
        agents=agents,
        streams=link.load,
        age_s=now - link.opened_at,
        rtt_s=_rtt_s(link),
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
        draining=all(_is_draining(link) for link in links),
        rtt_s=min((rtt for rtt in map(_rtt_s, links) if rtt is not None), default=None),
    )


def link_view(link: Link, peer_id: str, now: float) -> LinkView:
    """Show one link, from either side."""
    return LinkView(
        id=link.id,
        peer_id=peer_id,
        peer_address=link.peer_address,
        peer_version=link.version,
        carrier=link.talk.name if link.talk is not None else "",
        state=_state(link),
        age_s=now - link.opened_at,
        streams=link.load,
        rtt_s=_rtt_s(link),
        held_bytes=link.held_bytes,
        sent_bytes=link.carrier.bytes_out,
        received_bytes=link.carrier.bytes_in,
        window_growth_bytes=link.window_growth_bytes,
        window_growth_peak_bytes=link.window_growth_peak_bytes,
    )


def _state(link: Link) -> LinkState:
    if not link.ready:
        return LinkState.GREETING
    if link.stuck:
        return LinkState.STUCK
    return LinkState.DRAINING if _is_draining(link) else LinkState.OPEN


def _is_draining(link: Link) -> bool:
    """The peer said so, by either word; a link that is full or stuck is not draining."""
    return link.draining or (link.talk is not None and link.talk.peer_drains)


def _rtt_s(link: Link) -> float | None:
    """The last round trip; None before the first answer to a ping."""
    return (link.talk.round_trip_s or None) if link.talk is not None else None


def totals(metrics: ProgramMetrics) -> Totals:
    """Sum up what has ended and what goes on."""
    to_target, to_client = metrics.bytes_carried()
    failed = sum(metrics.dial_failures.values())
    return Totals(
        dials=metrics.dials.count + failed,
        dials_failed=failed,
        tunnels_ended=sum(metrics.endings.values()),
        bytes_to_target=to_target,
        bytes_to_client=to_client,
    )


def tally(metrics: ProgramMetrics, *, tunnels: int) -> Tally:
    """Sum up for the history of a program, which has so many tunnels open."""
    to_target, to_client = metrics.bytes_carried()
    failures = {reason.value: count for reason, count in metrics.dial_failures.items() if count}
    return Tally(
        dials=metrics.dials.count + sum(failures.values()),
        failures=failures,
        bytes_to_target=to_target,
        bytes_to_client=to_client,
        tunnels=tunnels,
        agents=metrics.gauges.ready_agents(),
        links=metrics.gauges.links(),
    )


def gate_views(settings: GateSettings) -> tuple[GateView, ...]:
    """Show the feature gates of a program."""
    return tuple(
        GateView(name=name, stage=GATES[name].stage, enabled=on)
        for name, on in settings.gates().items()
    )


def certificates(contexts: list[HotContext]) -> tuple[CertificateView, ...]:
    """Show the certificate files in use."""
    found: dict[str, CertificateView] = {}
    for context in contexts:
        for path, not_after in context.certificate_expiries().items():
            expiry = datetime.fromtimestamp(not_after, UTC)
            found[path] = CertificateView(file=path, not_after=expiry)
    return tuple(found.values())
