"""``isthmus socks5-proxy``: a sidecar whose clients speak SOCKS5."""

from __future__ import annotations

from isthmus.frame.handed import Handed
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.program import Sidecar, run
from isthmus.programs.socks5_proxy.frontend import Socks5Client
from isthmus.programs.socks5_proxy.metrics import Socks5ProxyMetrics
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings


class Socks5Proxy(Sidecar):
    """A running SOCKS5 sidecar."""

    name = "socks5-proxy"

    def __init__(self, settings: Socks5ProxySettings, *, handed: Handed | None = None) -> None:
        """Read files, in the loop.

        Raises:
            ConfigError: one is wrong.
        """
        super().__init__(settings, Socks5ProxyMetrics(), handed=handed)

    def make_connections(self) -> SidecarConnections:
        """Clients speak SOCKS5, and are dialed for as the settings say."""
        return SidecarConnections(
            self.loop,
            self.poller,
            self.settings,
            metrics=self.metrics,
            once=self.once,
            make=Socks5Client,
            dialer=self.dialer,
            credentials=self.credentials,
        )


def main(settings: Socks5ProxySettings) -> int:
    """Run the sidecar until it is told to stop; the exit code."""
    return run(lambda: Socks5Proxy(settings), settings)


def in_worker(settings: Socks5ProxySettings, handed: Handed) -> Socks5Proxy:
    """Make the sidecar of a worker."""
    return Socks5Proxy(settings, handed=handed)
