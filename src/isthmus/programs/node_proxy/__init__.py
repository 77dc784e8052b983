"""The node service proxy: objects in, rules in the kernel out, health and metrics."""

from isthmus.frame.program import Program

_FLAG_RULES = """\
Names, meanings and defaults are those of kube-proxy, except where the tables say otherwise. Flags
are checked against each other before anything is opened; what is wrong is one sentence on standard
error and exit code 2 ([how to program a node](../how-to/node-proxy.md)).

- `--config` reads kube-proxy's own file. Flags that it has a key for are not used beside it, apart
  from `--hostname-override` and those of *Logging*; which they were is said.
- `--node-cidr` may come without a value: `--node-cidr`, `--node-cidr=` and none are the same.
- A value for another `--detect-local`, `--detect-local-mode` or `--proxy-mode` than the one that is
  chosen is not used, and the log says by which it would be.
- Interfaces have at most 15 characters, and prefixes of them 14; neither takes a `+`.
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
