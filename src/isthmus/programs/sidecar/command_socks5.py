"""``isthmus socks5-proxy``: flags in, a running SOCKS5 sidecar out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.programs.sidecar.command_shared import sidecar_command
from isthmus.programs.sidecar.settings_socks5 import Socks5ProxySettings

if TYPE_CHECKING:
    from isthmus.frame.handed import Handed
    from isthmus.programs.sidecar.socks5_proxy import Socks5Proxy


def run(settings: Socks5ProxySettings) -> int:
    """Run the sidecar until it is told to stop; returns the exit code."""
    if settings.workers != 1:
        from isthmus.frame.workers.start import main as run_workers
        from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics
        from isthmus.programs.sidecar.with_workers import SidecarKind

        return run_workers(SidecarKind("socks5-proxy", settings, _in_worker, Socks5ProxyMetrics))
    from isthmus.programs.sidecar.socks5_proxy import main

    return main(settings)


def _in_worker(settings: Socks5ProxySettings, handed: Handed) -> Socks5Proxy:
    from isthmus.programs.sidecar.socks5_proxy import Socks5Proxy

    return Socks5Proxy(settings, handed=handed)


command = sidecar_command(
    "socks5-proxy",
    Socks5ProxySettings,
    Socks5ProxySettings.validate,
    run,
    help="Run the SOCKS5 sidecar of a hosted control plane, into the guest cluster",
    examples="""\
isthmus socks5-proxy --resolve-from-guest-cluster-dns --kubeconfig=guest.kubeconfig
isthmus socks5-proxy --konnectivity-uds=/run/isthmus/server.sock --disable-resolver""",
)
