"""``isthmus socks5-proxy``: a sidecar whose clients speak SOCKS5."""

from __future__ import annotations

from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.sidecar.program import DialingPart, SidecarListening
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.socks5_proxy.frontend import Socks5Client


def parts(ground: Ground[SidecarSettings, Socks5ProxyMetrics]) -> tuple[Part, ...]:
    """The parts of a SOCKS5 sidecar, foundations first; clients are dialed for as flags say."""
    settings = ground.settings
    allow_connections(settings.max_connections)
    password = PasswordFile(settings.username, settings.password_file)
    dialing, tunnels = DialingPart(ground), TunnelsPart(ground)
    connections = SidecarConnections(
        ground, tunnels.table, make=Socks5Client, dialer=dialing.dialer, password=password
    )
    listening = SidecarListening(ground, connections)
    return password, dialing, tunnels, connections, listening
