"""The server: agents and their links, clients and their dials, policy, shares, relays."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Names, meanings and defaults are those of konnectivity's `proxy-server`, except where the tables say
otherwise. Flags are checked against each other before anything is opened; an error is one
line on standard error and exit code 2.

- A TCP frontend needs `--server-cert`, `--server-key` and `--server-ca-cert`. `--uds-name` alone
  opens no TCP port; with `--server-port` as well, both listen.
- `--server-auth=none-on-loopback` asks clients for no certificate. It needs a loopback
  `--server-bind-address`, and no `--server-ca-cert`
  ([who may connect then](../kep-1281.md#the-proposals-own-sample)).
- `--cluster-cert` and `--cluster-key` are always needed, and `--cluster-ca-cert` too unless
  `--insecure-agents` turns off the authentication of agents.
- Ports are 0 to 65535, and 0 takes any free one. `--server-port=0` with `--uds-name` and without
  `--server-cert` opens no TCP port, as manifests written for konnectivity expect.
- `--compat=konnectivity` allows ports from 1024 to 49151 only, and no TCP port beside a UNIX
  socket.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

PROGRAM = Program(
    name="server",
    title="Server",
    called="a server",
    help="Run the server beside the control plane",
    example="--cluster-cert=pki/server.crt --cluster-key=pki/server.key …",
    room=__name__,
    settings="settings:ServerSettings",
    parts="program:parts",
    metrics="metrics:ServerMetrics",
    view="isthmus.frame.model.snapshot:ServerView",
    workers="doors:worker_plan",
    manifest="command_manifest:command",
    chart="render_chart:CHART",
    layout="doctor:ServerLayout",
    log="server",
    id_field="server_id",
    snapshot_kind="ServerSnapshot",
    admin_port=8095,
    flag_rules=_FLAG_RULES,
)
