"""Settings in, text out: Kubernetes manifests, the Helm chart, systemd units. Nothing is sent.

Each program declares what it needs to run in its own room: ``Program.manifest`` is its command
below ``isthmus manifest``, and ``Program.chart`` its part of the chart. They are built from:
volumes.py (where files come from), containers.py, pods.py, around.py (rights, Services, budgets,
policies), systemd.py; for the chart template.py (trees that both Python and Helm fill in),
chart_values.py and chart_parts.py. installation.py puts all parts together, and chart.py writes
them as Helm's templates. alerts.py and grafana.py are for monitoring.
"""
