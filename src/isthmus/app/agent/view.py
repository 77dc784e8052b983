"""An agent's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.app.views import certificates, gate_views, link_view, memory_view, totals
from isthmus.core.endpoint_lists import Entry
from isthmus.core.snapshot import AgentProgramView

if TYPE_CHECKING:
    from isthmus.app.agent.program import Agent


def _texts(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.text for entry in entries))


def agent_view(agent: Agent, limit: int) -> AgentProgramView:
    """Show the agent, with at most ``limit`` tunnels."""
    now = agent.loop.time()
    servers = agent.servers
    assert servers is not None  # the admin port opens after it is made
    return AgentProgramView(
        agent_id=agent.id,
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=now - agent.started_at,
        draining=agent.draining,
        known_servers=servers.known_count,
        totals=totals(agent.metrics),
        links=tuple(link_view(link, link.server_id, now) for link in servers.links.values()),
        tunnels=agent.tunnels.views(limit),
        truncated=max(0, len(agent.tunnels) - limit),
        recent_endings=agent.tunnels.endings.views(now=now),
        certificates=certificates(agent.contexts),
        feature_gates=gate_views(agent.settings),
        node_traffic=agent.node.view() if agent.node is not None else None,
        endpoint_allow=_texts(agent.endpoints.allow),
        endpoint_deny=_texts(agent.endpoints.deny),
        memory=memory_view(agent.budget),
    )
