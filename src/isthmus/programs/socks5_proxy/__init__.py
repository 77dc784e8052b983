"""The SOCKS5 sidecar: clients speak SOCKS5; the rest is programs/sidecar."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Names, meanings and defaults are those of HyperShift's `konnectivity-socks5-proxy`, to which the
column *In konnectivity* refers. Flags are validated before anything is opened; an error is one line
on standard error and exit code 2 ([how to run sidecars](../how-to/sidecars.md)).

- The word `run` before the flags is accepted and changes nothing.
- The connectivity server is at `--konnectivity-hostname` and `--konnectivity-port`, with mutual
  TLS; or at `--konnectivity-uds`, which needs no certificates.
- `--username` and `--password-file` must be used together. A `--serving-address` that is not
  loopback needs them, or `--allow-unauthenticated`.
- `--disable-resolver` overrides the other flags of *Names*.
- The sidecar waits up to `--wait-for-files` for certificates, keys and a kubeconfig that do not
  exist yet.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it
  speaks HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

PROGRAM = Program(
    name="socks5-proxy",
    title="SOCKS5 sidecar",
    called="a SOCKS5 sidecar",
    help="Run the SOCKS5 sidecar that leads a hosted control plane into the guest cluster",
    example="run --konnectivity-hostname=konnectivity-server-local …",
    room=__name__,
    settings="settings:Socks5ProxySettings",
    parts="program:parts",
    metrics="isthmus.programs.sidecar.metrics:Socks5ProxyMetrics",
    view="isthmus.programs.sidecar.view:SidecarView",
    workers="isthmus.programs.sidecar.program:worker_plan",
    manifest="isthmus.programs.sidecar.command_manifest:command",
    layout="isthmus.programs.sidecar.doctor:SidecarLayout",
    log="sidecar",
    snapshot_kind="SidecarSnapshot",
    before_a_server=True,
    admin_port=8099,
    flag_rules=_FLAG_RULES,
)
