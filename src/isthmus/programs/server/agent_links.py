"""The parts of a server for agents: their port, and its links."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from isthmus.frame.admin.answers import Check
from isthmus.frame.lifetime import counted
from isthmus.frame.model.snapshot import AgentView
from isthmus.frame.part import Ground, Part
from isthmus.frame.views import gate_views, is_draining, link_view, round_trip_s
from isthmus.links.link import GOODBYE_S
from isthmus.links.server_side import AgentLink
from isthmus.net.listen import Listener
from isthmus.programs.server.admission import Admission
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.peers_relay import Relays
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.tls import ServerTls

_LOOK_AGAIN_S = 0.05


class AgentListening(Part):
    """The port of agents, which keeps listening while a lone server drains."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        door: AgentDoor,
        tls: ServerTls,
        admission: Admission,
    ) -> None:
        self._gauges = ground.metrics.gauges
        self._door = door
        self._tls = tls
        self._admission = admission

    @override
    async def open(self) -> None:
        self._door.bind()

    @override
    def start(self) -> None:
        self._door.open(self._tls.agents, self._admission)
        self._gauges.handed_on = lambda: len(self._door.handing)

    @override
    def listeners(self) -> Sequence[Listener]:
        return self._door.listeners

    @override
    def drain(self) -> None:
        self._door.drain()

    @override
    def busy(self) -> bool:
        # Traffic passing through to other servers is opaque; agents that by now have another path
        # to those, and no tunnels on this one, have closed it.
        return len(self._door.handing) > 0

    @override
    def drained(self) -> None:
        self._door.take_no_more()

    @override
    def close(self) -> None:
        self._door.shut()


class AgentLinks(Part):
    """The links of a server's agents."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        door: AgentDoor,
        networks: ServerNetworks,
        relays: Relays,
    ) -> None:
        self._ground = ground
        self._door = door
        self._networks = networks
        self._relays = relays

    @property
    def _agent_count(self) -> int:
        return len({link.agent_id for link in self._door.agents if not link.suspended})

    @property
    def has_peers(self) -> bool:  # type: ignore[override]  # agents may go to other servers
        """Whether agents may use other servers; sibling workers do not count."""
        return len(self._door.peers) > 0

    @override
    def start(self) -> None:
        door, gauges = self._door, self._ground.metrics.gauges
        gauges.links = lambda: len(door.agents)
        gauges.suspended_links = lambda: len(door.resumable)
        gauges.kept_bytes = lambda: sum(link.kept_bytes for link in door.links)
        gauges.held_bytes = lambda: sum(link.held_bytes for link in door.links)
        gauges.ready_agents = lambda: self._agent_count
        gauges.ready_by_strategy = door.agents.ready_by_strategy
        gauges.gates = self._ground.settings.gates.states

    @override
    def busy(self) -> bool:
        return any(link.unsent for link in self._door.links)

    @override
    def close(self) -> None:
        for link in list(self._door.links):
            link.close("server is stopping")

    @override
    async def wait_closed(self) -> None:
        """Wait until each peer closed too, at most GOODBYE_S, ignoring errors."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * GOODBYE_S):
                while self._door.links:
                    await asyncio.sleep(_LOOK_AGAIN_S)

    @override
    def ready(self) -> Iterable[Check]:
        """Ready if an agent could be chosen, or none is needed."""
        agents = (
            self._networks.reachable_without_agents
            or any(self._door.agents.ready_by_strategy().values())
            or self._relays.ready_links
        )
        yield Check("agents", "" if agents else "no connection to any proxy agent")

    @override
    def status(self) -> str:
        return counted(self._agent_count, "agent")

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        now = self._ground.now()
        by_agent: dict[str, list[AgentLink]] = {}
        for link in self._door.agents:
            if link.suspended:  # not connected; the link is listed
                continue
            by_agent.setdefault(link.agent_id, []).append(link)
        within = self._networks.name_by_link()
        return {
            "agents": tuple(agent_view(links, within) for links in by_agent.values()),
            "server_count": self._door.server_count,
            "other_servers": self._door.peers.views(),
            "links": tuple(
                link_view(link, link.agent_id, now)
                for link in self._door.links
                if link.ready and not link.relays
            ),
            "feature_gates": gate_views(self._ground.settings.gates),
        }


def agent_view(links: list[AgentLink], within: Mapping[AgentLink, str] | None = None) -> AgentView:
    """The view of an agent, from its links."""
    first = links[0]
    return AgentView(
        id=first.agent_id,
        identity=str(first.identity),
        identifiers=tuple(filter(None, first.identifiers.to_query().split("&"))),
        version=first.version,
        zone=first.zone,
        # Without configured networks an agent may still have named one.
        network=first.network if within is None else within.get(first, ""),
        links=len(links),
        tunnels=sum(link.load for link in links),
        draining=all(is_draining(link) for link in links),
        rtt_s=min((rtt for rtt in map(round_trip_s, links) if rtt is not None), default=None),
    )
