"""The SOCKS5 sidecar: clients speak SOCKS5; the rest is programs/sidecar."""

from isthmus.frame.program import Program

PROGRAM = Program(
    name="socks5-proxy",
    title="SOCKS5 sidecar",
    called="a SOCKS5 sidecar",
    help="Run the SOCKS5 sidecar of a hosted control plane, into the guest cluster",
    example="run --konnectivity-hostname=konnectivity-server-local …",
    room=__name__,
    settings="settings:Socks5ProxySettings",
    parts="program:parts",
    metrics="metrics:Socks5ProxyMetrics",
    view="isthmus.programs.sidecar.view:SidecarView",
    workers="isthmus.programs.sidecar.program:worker_plan",
    log="sidecar",
    snapshot_kind="SidecarSnapshot",
)
