"""The metrics of the SOCKS5 sidecar."""

from __future__ import annotations

from isthmus.programs.sidecar.metrics import SidecarMetrics


class Socks5ProxyMetrics(SidecarMetrics):
    """Everything that the SOCKS5 sidecar counts."""

    program = "socks5_proxy"
