"""``isthmus https-proxy``: flags in, a running HTTP proxy sidecar out."""

from __future__ import annotations

from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.sidecar.command_shared import sidecar_command


def run(settings: HttpsProxySettings) -> int:
    """Run the sidecar until it is told to stop; returns the exit code."""
    if settings.workers != 1:
        from isthmus.frame.workers.start import main as run_workers
        from isthmus.programs.https_proxy import PROGRAM

        return run_workers(PROGRAM, settings)
    from isthmus.programs.https_proxy.program import main

    return main(settings)


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
