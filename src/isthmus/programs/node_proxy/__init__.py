"""The node service proxy: reads API objects, programs the kernel, serves health and metrics."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Names, meanings and defaults are those of kube-proxy, except where the tables say otherwise. Flags
are checked against each other at the start; an error is one line on standard error and exit code 2
([how to program a node](../how-to/node-proxy.md)).

- `--config` reads kube-proxy's own file. Flags for which the file has a key are ignored, with a
  message, apart from `--hostname-override` and those of *Logging*.
- `--node-cidr` may come without a value: `--node-cidr`, `--node-cidr=` and no flag are the same.
- A value for another `--detect-local`, `--detect-local-mode` or `--proxy-mode` than the chosen one
  is ignored, and the log says which one would use it.
- Interface names have at most 15 characters, and prefixes 14, without a `+`.
"""

PROGRAM = Program(
    name="node-proxy",
    title="Node proxy",
    called="a node proxy",
    help="Program the kernel of a node for Services, as kube-proxy does",
    example="--kubeconfig=/etc/kubernetes/kube-proxy.conf",
    room=__name__,
    settings="settings:NodeProxySettings",
    parts="program:parts",
    metrics="metrics:NodeProxyMetrics",
    view="view:NodeProxyView",
    layout="doctor:NodeProxyLayout",
    log="node_proxy",
    operator_flags=None,
    manifest="command_manifest:command",
    chart="render_chart:CHART",
    flag_rules=_FLAG_RULES,
    flags_of="kube-proxy",
)
