"""``isthmus manifest``: manifests and units that run a program on a node or in a pod.

The command of a program is in its room (``Program.manifest``), and reads the program's own flags by
the same declarations as the program does: an invalid flag is an error before a node has it. The
commands here are those of a whole installation.
"""

from __future__ import annotations

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import filled
from isthmus.manifests.command_shared import read_file, say_image
from isthmus.programs import programs


@click.group(
    name="manifest",
    short_help="Write manifests and units that run Isthmus",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Write manifests and units that run Isthmus

    \b
    Example:
      isthmus manifest agent --as=static-pod --proxy-server-host=server.example.com \\
          --ca-cert=/etc/isthmus/ca.crt > /etc/kubernetes/manifests/isthmus-agent.yaml
    """


@click.command(
    name="all",
    short_help="Write a whole installation, as the Helm chart does",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--values",
    "files",
    metavar="FILE",
    multiple=True,
    help="Values file of the Helm chart; repeatable, later files override earlier ones",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="kube-system",
    show_default=True,
    help="Namespace of the objects",
)
@click.option(
    "--image",
    metavar="IMAGE",
    callback=filled,
    help="Image to run instead of the one in the values",
)
def everything(files: tuple[str, ...], namespace: str, image: str | None) -> int:
    """Write a whole installation, as the Helm chart does

    Server and agents with their rights, Services, budgets and network policies. Secrets and
    ConfigMaps with certificates are not included; standard error lists those to create.

    \b
    Example:
      isthmus manifest all | kubectl apply --server-side -f -
      isthmus manifest all --values=values.yaml --namespace=isthmus > isthmus.yaml
    """
    from isthmus.manifests.chart_parts import image_values
    from isthmus.manifests.chart_values import defaults, merged, read
    from isthmus.manifests.installation import VALUES, installation, needed_objects
    from isthmus.manifests.settings import check_image, check_namespace
    from isthmus.text.go_yaml import to_yaml

    check_namespace(namespace)
    values = defaults(VALUES)
    for path in files:
        values = merged(values, read(_text(path), path, VALUES))
    if image:
        check_image(image)
        values = merged(values, {"image": image_values(image)})
    text = to_yaml(installation(values, namespace))
    for kind, name, keys in needed_objects(values, namespace):
        click.echo(
            f"isthmus: {namespace} needs the {kind} {name} with {' and '.join(keys)}", err=True
        )
    say_image(text)
    click.echo(text, nl=False)
    return 0


def _text(path: str) -> str:
    try:
        return read_file("--values", path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--values: {path} is not text in UTF-8") from error


RULES, OBJECT, GRAFANA = "rules", "prometheus-rule", "grafana"


@click.command(
    name="monitoring",
    short_help="Write Prometheus rules and a Grafana dashboard",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--part",
    type=click.Choice([RULES, OBJECT, GRAFANA]),
    default=RULES,
    show_default=True,
    help="Part to write: rules for Prometheus, the same for its operator, or a Grafana dashboard",
)
@click.option(
    "--name",
    default="isthmus",
    show_default=True,
    callback=filled,
    help="Name of the object",
)
@click.option(
    "--namespace",
    default="kube-system",
    show_default=True,
    callback=filled,
    help="Namespace of the operator's object",
)
def monitoring(part: str, name: str, namespace: str) -> int:
    """Write Prometheus rules and a Grafana dashboard for Isthmus's metrics

    \b
    Example:
      isthmus manifest monitoring --part=rules > isthmus-rules.yaml
      isthmus manifest monitoring --part=grafana > isthmus.json
    """
    from isthmus.manifests.alerts import prometheus_rule, rules_text
    from isthmus.manifests.grafana import grafana_text

    if part == GRAFANA:
        text = grafana_text()
    elif part == OBJECT:
        text = prometheus_rule(name=name, namespace=namespace)
    else:
        text = rules_text()
    click.echo(text, nl=False)
    return 0


command.add_command(everything)
command.add_command(monitoring)
for _each in programs():
    if _each.manifest:
        command.add_command(_each.found(_each.manifest))
