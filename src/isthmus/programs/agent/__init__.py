"""The agent: links to every server, dials to targets, and connections from nodes."""

from isthmus.frame.program import OperatorFlags, Program

_FLAG_RULES = """\
Names, meanings and defaults are those of konnectivity's `proxy-agent`, except where the tables say
otherwise. Flags are checked against each other before anything is opened; an error is one
line on standard error and exit code 2.

- `--ca-cert` is always needed; `--agent-cert` and `--agent-key` come together.
- `--proxy-server-host` may be given several times, and may be an SRV name
  (`_service._tcp.name`), which brings its own ports.
- `--agent-identifiers` is a URL query with the keys `ipv4`, `ipv6`, `host`, `cidr` and
  `default-route`; any other key is an error, an empty value among others a warning.
- `--host-alias` names are known only to this agent: a dial to such a name reaches the given
  address, whatever DNS says.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

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
    manifest="command_manifest:command",
    chart="render_chart:CHART",
    layout="doctor:AgentLayout",
    log="agent",
    id_field="agent_id",
    snapshot_kind="AgentSnapshot",
    admin_port=8094,
    operator_flags=OperatorFlags(as_agent=True),
    flag_rules=_FLAG_RULES,
)
