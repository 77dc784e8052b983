"""Settings in, text out: Kubernetes manifests, the Helm chart, systemd units. Nothing is sent.

A program: agent.py, server.py with server_plan.py, apiserver_proxy.py, sidecar.py. What they are
put together from: volumes.py (where files come from), containers.py, pods.py, around.py (rights,
Services, budgets, policies), systemd.py. All of it for values of the chart: installation*.py, which
Python fills in and chart.py writes as Helm's templates (template.py). What watches it: alerts.py,
grafana.py. Flags are in settings*.py and command.py.
"""
