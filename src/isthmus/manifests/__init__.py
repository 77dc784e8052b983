"""Settings in, text out: Kubernetes manifests, the Helm chart, systemd units. Nothing is sent.

What a program needs to run is declared in its room, and found by ``Program.manifest`` (its command
below ``isthmus manifest``) and ``Program.chart`` (its part of the chart). Here is what those are
put together from: volumes.py (where files come from), containers.py, pods.py, around.py (rights,
Services, budgets, policies), systemd.py; for the chart template.py (trees that Python
fills in and Helm too), chart_values.py and chart_parts.py. All parts together are installation.py,
which chart.py writes as Helm's templates. What watches it: alerts.py, grafana.py.
"""
