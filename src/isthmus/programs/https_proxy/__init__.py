"""The HTTP proxy sidecar: clients take it for their HTTP proxy; the rest is programs/sidecar."""

from isthmus.frame.program import Program

PROGRAM = Program(
    name="https-proxy",
    title="HTTP proxy sidecar",
    called="an HTTP proxy sidecar",
    help="Run the HTTP proxy sidecar of a hosted control plane, into the guest cluster",
    example="run --konnectivity-hostname=konnectivity-server-local …",
    room=__name__,
    settings="settings:HttpsProxySettings",
    parts="program:parts",
    metrics="metrics:HttpsProxyMetrics",
    view="isthmus.programs.sidecar.view:SidecarView",
    workers="isthmus.programs.sidecar.program:worker_plan",
    log="sidecar",
    snapshot_kind="SidecarSnapshot",
)
