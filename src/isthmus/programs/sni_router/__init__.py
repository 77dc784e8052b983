"""The SNI router: one port for many hosted control planes, told apart by TLS server name."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Flags are validated before anything is opened; an error is one line on standard error and exit
code 2. Routes are in the file of `--config`
([how to share an address](../how-to/sni-router.md)).

- `--listen` takes `HOST:PORT`, `[V6]:PORT`, or `:PORT` for every address; port 0 takes a free one.
- `--accept-proxy` needs `--proxy-from`: then every connection at `--listen` must begin with a PROXY
  header, and connections from other networks are reset.
- At `--listen-proxy` every connection must begin with a PROXY header, from any sender. Its TLVs are
  always read; its source address is trusted only from `--proxy-from`.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

PROGRAM = Program(
    name="sni-router",
    title="SNI router",
    called="an SNI router",
    help="Share one address between many control planes, told apart by TLS server name",
    example="--config=routes.yaml",
    room=__name__,
    settings="settings:SniRouterSettings",
    parts="program:parts",
    metrics="metrics:SniRouterMetrics",
    view="view:SniRouterView",
    workers="program:worker_plan",
    manifest="command_manifest:command",
    chart="render_chart:CHART",
    layout="doctor:SniRouterLayout",
    log="sni",
    snapshot_kind="SniRouterSnapshot",
    admin_port=8097,
    flag_rules=_FLAG_RULES,
)
