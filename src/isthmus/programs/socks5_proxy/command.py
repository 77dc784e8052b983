"""``isthmus socks5-proxy``: flags in, a running SOCKS5 sidecar out."""

from __future__ import annotations

from isthmus.programs.sidecar.command_shared import sidecar_command
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings


def run(settings: Socks5ProxySettings) -> int:
    """Run the sidecar until it is told to stop; returns the exit code."""
    if settings.workers != 1:
        from isthmus.frame.workers.start import main as run_workers
        from isthmus.programs.socks5_proxy import PROGRAM

        return run_workers(PROGRAM, settings)
    from isthmus.programs.socks5_proxy.program import main

    return main(settings)


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
