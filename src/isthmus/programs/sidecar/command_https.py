"""``isthmus https-proxy``: flags in, a running HTTP proxy sidecar out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.programs.sidecar.command_shared import sidecar_command
from isthmus.programs.sidecar.settings_https import HttpsProxySettings

if TYPE_CHECKING:
    from isthmus.frame.handed import Handed
    from isthmus.programs.sidecar.https_proxy import HttpsProxy


def run(settings: HttpsProxySettings) -> int:
    """Run the sidecar until it is told to stop; returns the exit code."""
    if settings.workers != 1:
        from isthmus.frame.workers.start import main as run_workers
        from isthmus.programs.sidecar.metrics import HttpsProxyMetrics
        from isthmus.programs.sidecar.with_workers import SidecarKind

        return run_workers(SidecarKind("https-proxy", settings, _in_worker, HttpsProxyMetrics))
    from isthmus.programs.sidecar.https_proxy import main

    return main(settings)


def _in_worker(settings: HttpsProxySettings, handed: Handed) -> HttpsProxy:
    from isthmus.programs.sidecar.https_proxy import HttpsProxy

    return HttpsProxy(settings, handed=handed)


command = sidecar_command(
    "https-proxy",
    HttpsProxySettings,
    HttpsProxySettings.validate,
    run,
    help="Run the HTTP proxy sidecar of a hosted control plane, into the guest cluster",
    examples="""\
isthmus https-proxy --kubeconfig=guest.kubeconfig
isthmus https-proxy --https-proxy=http://proxy.guest.example:3128 --no-proxy=.svc,10.0.0.0/8""",
)
