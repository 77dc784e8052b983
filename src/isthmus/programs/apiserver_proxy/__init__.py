"""The node-local proxy of API servers: health of the upstreams, and each client's way to one."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Flags are validated before anything is opened; an error is one line on standard error and exit
code 2 ([how to give nodes their apiserver](../how-to/apiserver-proxy.md)).

- `--config` names a file that replaces the flags of the groups *Listening*, *Upstreams*, *Health of
  the upstreams*, *PROXY protocol and HTTP proxy* and *Limits*: use either the file or the flags.
- `--listen` takes `HOST:PORT`, `[V6]:PORT`, or `:PORT` for every address; port 0 takes a free one.
  Loopback addresses and `:PORT` are never put on `lo`.
- `--listen-addr`, `--apiserver-addr` and `--proxy-addr` are the flags of HyperShift's
  kubernetes-default-proxy.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

PROGRAM = Program(
    name="apiserver-proxy",
    title="Apiserver proxy",
    called="an apiserver proxy",
    help="Give a node its own address for an apiserver that runs elsewhere",
    example="--upstream=api.example.com:6443 --ca-cert=/etc/kubernetes/ca.crt",
    room=__name__,
    settings="settings:ApiserverProxySettings",
    parts="program:parts",
    metrics="metrics:ApiserverProxyMetrics",
    view="view:ApiserverProxyView",
    workers="program:worker_plan",
    manifest="command_manifest:command",
    layout="doctor:ApiserverProxyLayout",
    log="apiserver_proxy",
    snapshot_kind="ApiserverProxySnapshot",
    admin_port=8103,
    flag_rules=_FLAG_RULES,
)
