"""The server: agents and their links, clients and their dials, policy, shares, relays."""

from isthmus.frame.program import Program

PROGRAM = Program(
    name="server",
    title="Server",
    called="a server",
    help="Run the server beside the control plane",
    example="--cluster-cert=pki/server.crt --cluster-key=pki/server.key …",
    room=__name__,
    settings="settings:ServerSettings",
    made="with_workers:in_worker",
    metrics="metrics:ServerMetrics",
    view="isthmus.frame.model.snapshot:ServerView",
    workers="with_workers:worker_plan",
    log="server",
    id_field="server_id",
    snapshot_kind="ServerSnapshot",
)
