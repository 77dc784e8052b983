"""The server program: frontends on one side, agents on the other, dials in between."""

from __future__ import annotations

from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import allow_all
from isthmus.frame.tunnels import TunnelsPart
from isthmus.programs.server.admission import Admission
from isthmus.programs.server.agent_links import AgentLinks, AgentListening
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.client_dial import ClientRequests
from isthmus.programs.server.dials import ServerDials, records_of
from isthmus.programs.server.doors import ClientListening, Doors, Frontends
from isthmus.programs.server.kube import ServerKube
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.networks import ServerNetworks
from isthmus.programs.server.node_dials import NodeDials
from isthmus.programs.server.peers_relay import Relays
from isthmus.programs.server.relayed import RelayedDials
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.tls import ServerTls


def parts(ground: Ground[ServerSettings, ServerMetrics]) -> tuple[Part, ...]:
    """The parts of a server, foundations first."""
    allow_all()
    tunnels = TunnelsPart(ground, noun="tunnel")
    records = records_of(ground)
    networks = ServerNetworks(ground)
    door = AgentDoor(ground, networks.agents)
    tls = ServerTls(ground, tunnels.table)
    dials = ServerDials(ground, tunnels.table, door, networks, records)
    node_dials = NodeDials(dials)
    relays = Relays(ground, door, tls, dials.dialer)
    kube = ServerKube(ground, door)
    admission = Admission(ground, reviewer=lambda: kube.reviewer, cut=tls.cut_token)
    doors = Doors(ground, ClientRequests(dials), tls.client_context)
    links = AgentLinks(ground, door, networks, relays)
    door.take_dials(node_dials.take, RelayedDials(dials).take)
    tls.agent_alpn = lambda: door.alpn
    tls.links = lambda: (*door.links, *relays.open_links)
    return (
        records, tls, networks, Frontends(ground, doors), relays, links, node_dials, dials,
        tunnels, kube, admission, AgentListening(ground, door, tls, admission),
        ClientListening(ground, doors, door),
    )  # fmt: skip
