"""The SNI router: one port for many hosted control planes, told apart by name."""

from isthmus.frame.program import Program

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
    log="sni",
    snapshot_kind="SniRouterSnapshot",
)
