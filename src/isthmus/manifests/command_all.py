"""``isthmus manifest all``: server, agents and what is around them, of the values of the chart."""

from __future__ import annotations

import click

from isthmus.errors import ConfigError

_MOST_BYTES = 1024 * 1024


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
    help="Read these values of the Helm chart; repeatable, later files count more",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="kube-system",
    show_default=True,
    help="Put everything into this namespace",
)
def everything(files: tuple[str, ...], namespace: str) -> int:
    """Write a whole installation, as the Helm chart does

    Server and agents with their rights, Services, budgets and network policies. Secrets and
    ConfigMaps with certificates are yours; which, is said on standard error.

    \b
    Example:
      isthmus manifest all | kubectl apply --server-side -f -
      isthmus manifest all --values=values.yaml --namespace=isthmus > isthmus.yaml
    """
    from isthmus.manifests.installation import installation, needed_objects
    from isthmus.manifests.settings import check_namespace
    from isthmus.manifests.settings_value import defaults, merged, read
    from isthmus.manifests.settings_values import VALUES
    from isthmus.settings.go_yaml_writing import to_yaml

    check_namespace(namespace)
    values = defaults(VALUES)
    for path in files:
        values = merged(values, read(_text(path), path, VALUES))
    text = to_yaml(installation(values, namespace))
    for kind, name, keys in needed_objects(values):
        click.echo(
            f"isthmus: {namespace} needs the {kind} {name} with {' and '.join(keys)}", err=True
        )
    click.echo(text, nl=False)
    return 0


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            found = file.read(_MOST_BYTES + 1)
        return found.decode()
    except OSError as error:
        raise ConfigError(f"--values: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--values: {path} is not text in UTF-8") from error
