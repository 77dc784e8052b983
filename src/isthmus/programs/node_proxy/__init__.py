"""The node service proxy: objects in, rules in the kernel out, health and metrics."""

from isthmus.frame.program import Program

PROGRAM = Program(
    name="node-proxy",
    title="Node proxy",
    called="a node proxy",
    help="Program a node for the Services of its cluster, as kube-proxy does",
    example="--kubeconfig=/etc/kubernetes/kube-proxy.conf",
    room=__name__,
    settings="settings:NodeProxySettings",
    parts="program:parts",
    metrics="metrics:NodeProxyMetrics",
    log="node_proxy",
    operator_flags=None,
)
