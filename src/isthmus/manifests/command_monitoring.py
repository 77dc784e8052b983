"""``isthmus manifest monitoring``: Prometheus rules and a Grafana dashboard over our metrics."""

from __future__ import annotations

import click

from isthmus.frame.cli.texts import filled

RULES, OBJECT, GRAFANA = "rules", "prometheus-rule", "grafana"


@click.command(
    name="monitoring",
    short_help="Write Prometheus rules and a Grafana dashboard",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([RULES, OBJECT, GRAFANA]),
    default=RULES,
    show_default=True,
    help="Write rules for Prometheus, the same for its operator, or a dashboard for Grafana",
)
@click.option(
    "--name",
    default="isthmus",
    show_default=True,
    callback=filled,
    help="Give the object this name",
)
@click.option(
    "--namespace",
    default="kube-system",
    show_default=True,
    callback=filled,
    help="Put the operator's object into this namespace",
)
def monitoring(output: str, name: str, namespace: str) -> int:
    """Write Prometheus rules and a Grafana dashboard over our metrics

    \b
    Example:
      isthmus manifest monitoring --output=rules > isthmus-rules.yaml
      isthmus manifest monitoring -o grafana > isthmus.json
    """
    from isthmus.manifests.alerts import prometheus_rule, rules_text
    from isthmus.manifests.grafana_panels import grafana_text

    if output == GRAFANA:
        text = grafana_text()
    elif output == OBJECT:
        text = prometheus_rule(name=name, namespace=namespace)
    else:
        text = rules_text()
    click.echo(text, nl=False)
    return 0
