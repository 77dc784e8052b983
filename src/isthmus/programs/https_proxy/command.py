"""``isthmus https-proxy``: runs an HTTP proxy sidecar."""

from __future__ import annotations

from isthmus.programs.https_proxy import PROGRAM
from isthmus.programs.sidecar.command_shared import sidecar_command

command = sidecar_command(
    PROGRAM,
    examples="""\
isthmus https-proxy --kubeconfig=guest.kubeconfig
isthmus https-proxy --https-proxy=http://proxy.guest.example:3128 \\
    --no-proxy=.svc,10.0.0.0/8""",
)
