"""The agent: links to every server, dials to targets, and nodes' own connections."""

from isthmus.frame.program import OperatorFlags, Program

PROGRAM = Program(
    name="agent",
    title="Agent",
    called="an agent",
    help="Run an agent in the network that the server cannot reach",
    example="--proxy-server-host=server.example.com --ca-cert=pki/ca.crt …",
    room=__name__,
    settings="settings:AgentSettings",
    parts="program:parts",
    metrics="metrics:AgentMetrics",
    view="isthmus.frame.model.snapshot:AgentProgramView",
    log="agent",
    id_field="agent_id",
    snapshot_kind="AgentSnapshot",
    operator_flags=OperatorFlags(
        health_host="health_server_host",
        health_port="health_server_port",
        admin_port="admin_server_port",
        as_agent=True,
    ),
)
