"""What all programs share: parts and their life cycle, operator ports, metrics, workers.

How to write a program
    Create a room in ``isthmus/programs``, declare ``PROGRAM = Program(...)`` in its ``__init__``
    (program.py describes each field) and add the room to the list in ``isthmus.programs``.
    Commands, reference pages, the doctor, metrics, manifests and the chart find it there; other
    places that name programs are in ARCHITECTURE.md, "Where a change goes". What the doctor checks
    is in its ``doctor.py`` (layout.py); how it runs in a cluster is in its ``command_manifest.py``
    and ``render_chart.py``, which use ``isthmus.manifests``.
    Its settings derive from ``CarrierSettings``, which has what operator ports, tracing and the
    memory budget need, and requires ``admin`` and ``workers``. Their ``validate`` calls
    ``check_values``, ``check_carrier`` and all other checks: nothing is checked again later.
    Its view has ``version``, ``taken_at``, ``uptime_s``, ``draining`` and ``certificates``, which
    the lifecycle fills in, and what ``ProgramView`` requires, which parts provide:
    ``TunnelsPart``, or in a program without tunnels its own part with ``totals`` and empty
    ``tunnels``.
    Metrics of a few lines belong in its ``program.py``: tools/shape refuses a module of fewer than
    60 lines that only one other imports. The smallest program to read is ``sni_router``.
    Its ``program.py`` has ``parts(ground)``, which creates the parts, foundations first::

        def parts(ground: Ground[SniRouterSettings, SniRouterMetrics]) -> tuple[Part, ...]:
            routes = RoutesPart(ground.settings.config, ground.metrics)
            tunnels = TunnelsPart(ground)
            connections = SniConnections(ground, routes, tunnels.table)
            listening = Listening(ground, bind, {"--listen": connections.accept})
            return routes, tunnels, connections, listening

    and, if several processes share its work, ``worker_plan(settings)``.

How to write a part
    Derive from ``Part`` (part.py) and override only what the feature needs: files to read
    in ``prepare``, ports and addresses in ``open``, gauges in ``start``, long tasks in ``tasks``;
    ``drain``, ``busy``, ``close`` and ``wait_closed`` on the way down; ``ready``, ``snapshot``,
    ``serving``, ``status`` for observers. Metric families are declared by the program's
    metrics class with their rule for workers, fields of snapshots by its view: reference pages and
    a parent of workers need both without any part. A part gets what it may use in its constructor,
    never a whole program, and does not know the parts of other programs.

Where things are
    lifecycle.py    the passes: prepare, open, start; drain, close, wait
    running.py      which process this is: alone, a parent of workers, or a worker (``workers/``)
    lifetime.py     signals, logging, the event loop, systemd
    listening.py, forwarding.py, tunnels.py    parts that several programs have
    operator_ports.py, ``admin/``, ``dashboard/``    health and admin ports, and what they show
    ``observe/``, ``model/``    counters and profiles; snapshots and histories as values
    ``audit/``, revoking.py    records of requests; revoked certificates and tokens
    layout.py, finding.py, patient.py    what settings refer to; the doctor's findings and its
    subjects
    ``cli/``        commands made from settings, and their output
"""
