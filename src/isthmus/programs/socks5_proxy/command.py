"""``isthmus socks5-proxy``: runs a SOCKS5 sidecar."""

from __future__ import annotations

from isthmus.programs.sidecar.command_shared import sidecar_command
from isthmus.programs.socks5_proxy import PROGRAM

command = sidecar_command(
    PROGRAM,
    examples="""\
isthmus socks5-proxy --resolve-from-guest-cluster-dns \\
    --kubeconfig=guest.kubeconfig
isthmus socks5-proxy --konnectivity-uds=/run/isthmus/server.sock \\
    --disable-resolver""",
)
