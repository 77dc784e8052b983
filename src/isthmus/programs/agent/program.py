"""The agent program: links to every server, their dials, and its node's traffic."""

from __future__ import annotations

from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import allow_all
from isthmus.frame.tunnels import TunnelsPart
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.node_traffic import NodeLeftovers, NodeTraffic
from isthmus.programs.agent.server_links import ServerLeases, ServerLinks
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.target_dial import TargetDials


def parts(ground: Ground[AgentSettings, AgentMetrics]) -> tuple[Part, ...]:
    """The parts of an agent, foundations first."""
    settings = ground.settings
    allow_all()
    tunnels = TunnelsPart(ground, noun="")
    dials = TargetDials(ground, tunnels.table)
    links = ServerLinks(ground, dials.take, tunnels.table)
    found: list[Part] = [dials, links, tunnels, NodeLeftovers(settings)]
    if settings.count_server_leases:
        found.insert(0, ServerLeases(settings, links, ground.metrics))
    if settings.takes_node_traffic:
        found.append(NodeTraffic(ground, links, tunnels.table))
    return tuple(found)
