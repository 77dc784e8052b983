"""``isthmus https-proxy``: flags in, a running HTTP proxy sidecar out."""

from __future__ import annotations

from isthmus.cli.sidecars import sidecar_command
from isthmus.config.https_proxy import HttpsProxySettings


def run(settings: HttpsProxySettings) -> int:
    """Run the sidecar until it is told to stop; returns the exit code."""
    from isthmus.app.https_proxy import main

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
