"""The node-local proxy of API servers: which one is well, and each client's way to it."""

from isthmus.frame.program import Program

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
    log="apiserver_proxy",
    snapshot_kind="ApiserverProxySnapshot",
)
