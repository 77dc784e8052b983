"""What every program stands in: its parts and their life, operator ports, metrics, workers.

How to write a program
    Make a room in ``isthmus/programs``, declare ``PROGRAM = Program(...)`` in its ``__init__``
    (program.py says what each field is) and add the room to the list in ``isthmus.programs``.
    Commands, reference pages, the doctor, metrics, manifests and the chart find it there; what
    else names programs is in ARCHITECTURE.md, "Where a change goes". What the doctor looks at is
    its ``doctor.py`` (layout.py), how it is run in a cluster its ``command_manifest.py`` and
    ``render_chart.py``, made of what is in ``isthmus.manifests``.
    Its settings derive from ``CarrierSettings``, which has what operator ports, tracing and the
    memory budget need, and asks for ``admin`` and ``workers``; their ``validate`` calls
    ``check_values``, ``check_carrier`` and whatever else is to hold: nobody asks again behind it.
    Its view has ``version``, ``taken_at``, ``uptime_s``, ``draining`` and ``certificates``, which
    the lifecycle fills in, and what ``ProgramView`` asks for, which parts give: ``TunnelsPart``, or
    where there are no tunnels a part of its own, ``totals`` and an empty ``tunnels``.
    Metrics of a few lines stand in its ``program.py``: tools/shape refuses a module of fewer than
    60 lines that only one other imports. The smallest program to read is ``sni_router``.
    Its ``program.py`` has ``parts(ground)``, which makes the parts, foundations first::

        def parts(ground: Ground[SniRouterSettings, SniRouterMetrics]) -> tuple[Part, ...]:
            routes = RoutesPart(ground.settings.config, ground.metrics)
            tunnels = TunnelsPart(ground)
            connections = SniConnections(ground, routes, tunnels.table)
            listening = Listening(ground, bind, {"--listen": connections.accept})
            return routes, tunnels, connections, listening

    and, where its work is shared between processes, ``worker_plan(settings)``.

How to write a part
    Derive from ``Part`` (part.py) and override what the feature has, nothing else: files to read
    in ``prepare``, ports and addresses in ``open``, gauges in ``start``, long tasks in ``tasks``;
    ``drain``, ``busy``, ``close`` and ``wait_closed`` on the way down; ``ready``, ``snapshot``,
    ``serving``, ``status`` for whoever looks. Metric families are declared by the program's
    metrics class with their rule for workers, fields of snapshots by its view: reference pages and
    a parent of workers need both without any part. A part is told what it may use in its
    constructor, never a whole program, and knows no other program's parts.

Who does what
    lifecycle.py    the passes: prepare, open, start; drain, close, wait
    running.py      which process this is: alone, a parent of workers, or a worker (``workers/``)
    lifetime.py     signals, logging, the event loop, systemd
    listening.py, forwarding.py, tunnels.py    parts that several programs have
    operator_ports.py, ``admin/``, ``dashboard/``    health and admin ports, and what they show
    ``observe/``, ``model/``    what is counted; what a program looks like at one moment
    ``audit/``, revoking.py    records of requests; taking certificates and tokens back
    layout.py, finding.py, patient.py    what settings name; what the doctor finds, and in whom
    ``cli/``        commands made of settings, and what they print
"""
