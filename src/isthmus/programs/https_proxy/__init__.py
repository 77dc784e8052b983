"""The HTTP proxy sidecar: clients take it for their HTTP proxy; the rest is programs/sidecar."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Names, meanings and defaults are those of HyperShift's `konnectivity-https-proxy`, which is what the
column *In konnectivity* speaks of. Flags are checked against each other before anything is opened;
what is wrong is one sentence on standard error and exit code 2
([how to run sidecars](../how-to/sidecars.md)).

- The word `run` before the flags is accepted and changes nothing.
- The connectivity server is at `--konnectivity-hostname` and `--konnectivity-port`, with mutual
  TLS; or at `--konnectivity-uds`, and then no certificates are needed.
- `--username` and `--password-file` come together. A `--serving-address` that is not loopback needs
  them, or `--allow-unauthenticated`.
- Names are resolved before each dial by the DNS of the guest cluster; there are no flags for that.
- `--http-proxy` is for plain requests, `--https-proxy` for `CONNECT`. `--no-proxy` is for both and
  is read as Go reads `NO_PROXY`; `localhost` and loopback addresses never go by a proxy.
- Certificates, keys and a kubeconfig that are not there yet are waited for, for
  `--wait-for-files`.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it
  speaks HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

PROGRAM = Program(
    name="https-proxy",
    title="HTTP proxy sidecar",
    called="an HTTP proxy sidecar",
    help="Run the HTTP proxy sidecar that leads a hosted control plane into the guest cluster",
    example="run --konnectivity-hostname=konnectivity-server-local …",
    room=__name__,
    settings="settings:HttpsProxySettings",
    parts="program:parts",
    metrics="isthmus.programs.sidecar.metrics:HttpsProxyMetrics",
    view="isthmus.programs.sidecar.view:SidecarView",
    workers="isthmus.programs.sidecar.program:worker_plan",
    manifest="isthmus.programs.sidecar.command_manifest:command",
    layout="isthmus.programs.sidecar.doctor:SidecarLayout",
    log="sidecar",
    snapshot_kind="SidecarSnapshot",
    before_a_server=True,
    admin_port=8101,
    flag_rules=_FLAG_RULES,
)
