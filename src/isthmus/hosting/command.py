"""``isthmus publish``: plans how a hosted control plane is reached, before anything is created.

plan.py makes the plan, command_output.py prints it; both are imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError, unreadable
from isthmus.frame.cli.tables import TEXT, filled, output_option, print_data

if TYPE_CHECKING:
    from isthmus.hosting.model import HostedCluster, ManagementNetwork, PublishPlan

FINE, WARNED, WRONG = 0, 1, 2
#: Files that ``render`` can write besides those of the plan's own parts.
LAB = "lab.yaml"
_MOST_BYTES = 4 * 1024 * 1024

_OUTPUT = output_option()
_KEEP_SOURCES = click.option(
    "--keep-sources",
    is_flag=True,
    help="Enforce allowed CIDR blocks where only a NetworkPolicy can",
)
_MANAGEMENT_API = click.option(
    "--management-api",
    multiple=True,
    metavar="ADDRESS",
    help="Address of the management cluster's API server, from which pods are kept away; "
    "repeatable",
)
_MANAGEMENT_NETWORK = click.option(
    "--management-network",
    multiple=True,
    metavar="CIDR",
    help="Range of the management cluster's pods or Services, from which pods are kept away; "
    "repeatable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanOptions:
    """The options of a plan, besides its document."""

    keep_sources: bool
    management_api: tuple[str, ...]
    management_network: tuple[str, ...]

    def network(self) -> ManagementNetwork:
        """
        Raises:
            ConfigError: an address or a range is invalid.
        """
        from isthmus.hosting.document_fields import address, part_of_the_world
        from isthmus.hosting.model import ManagementNetwork

        return ManagementNetwork(
            api=_parsed("--management-api", self.management_api, address),
            ranges=_parsed("--management-network", self.management_network, part_of_the_world),
        )


def _parsed(flag: str, texts: tuple[str, ...], parse: Callable[[str], str]) -> tuple[str, ...]:
    found = []
    for text in texts:
        try:
            found.append(parse(text))
        except ValueError as error:
            raise ConfigError(f"{flag}={text}: {error}") from None
    return tuple(found)


def _planning(given: Callable[..., int]) -> Callable[..., int]:
    """The flags of every command that makes a plan, as one argument."""

    @wraps(given)
    def run(**said: Any) -> int:
        options = _PlanOptions(**{each.name: said.pop(each.name) for each in fields(_PlanOptions)})
        return given(**said, options=options)

    return _KEEP_SOURCES(_MANAGEMENT_API(_MANAGEMENT_NETWORK(run)))


@click.group(
    name="publish",
    short_help="Plan how a hosted control plane is reached",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Plan how a hosted control plane is reached

    FILE has a HostedCluster as HyperShift reads it. All errors are reported at once, with file,
    line and column; the exit code is then 2.

    \b
    Example:
      isthmus publish plan cluster.yaml
      isthmus publish render cluster.yaml --directory out
    """


@command.command(short_help="Show who reaches what, and how")
@click.argument("file", callback=filled)
@click.option(
    "--from",
    "old",
    metavar="FILE",
    callback=filled,
    help="Document that is in place now; show what changes from it to the new one",
)
@click.option("--svg", metavar="FILE", callback=filled, help="Write an SVG picture to this file")
@_planning
@_OUTPUT
def plan(file: str, old: str | None, svg: str | None, output: str, options: _PlanOptions) -> int:
    """Show who reaches what, and how

    With --from the exit code is 1 if a step is refused because it cannot be done in place.

    \b
    Example:
      isthmus publish plan cluster.yaml --svg picture.svg
      isthmus publish plan cluster.yaml --from cluster.old.yaml
    """
    from isthmus.hosting.changes import ChangeKind, changes
    from isthmus.hosting.command_output import plan_json, print_plan

    new = _sound(file, options)
    steps = None if old is None else changes(_sound(old, options), new)
    if svg is not None:
        _draw(new, svg)
    if output == TEXT:
        print_plan(new, file, steps)
    else:
        print_data(plan_json(new, steps), output)
    refused = any(step.act is ChangeKind.REFUSE for step in steps or ())
    return WARNED if refused else FINE


@command.command(short_help="Check a document against every rule")
@click.argument("file", callback=filled)
@click.option(
    "--ignore",
    multiple=True,
    metavar="RULE",
    callback=filled,
    help="Rule whose warnings are left out; repeatable",
)
@_planning
@_OUTPUT
def check(file: str, ignore: tuple[str, ...], output: str, options: _PlanOptions) -> int:
    """Check a document against every rule

    The exit code is 0 without findings, 1 with warnings and 2 with errors.

    \b
    Example:
      isthmus publish check cluster.yaml
      isthmus publish check cluster.yaml --ignore cidrs-node-port
    """
    from isthmus.hosting.command_output import finding_json, print_findings
    from isthmus.hosting.model import Weight

    _check_rules(ignore)
    found = _plan(file, options).findings
    kept = [each for each in found if each.weight is Weight.ERROR or each.rule not in ignore]
    if output == TEXT:
        print_findings(kept, file)
        if not kept:
            click.echo(f"{file}: ok")
    else:
        print_data([finding_json(each) for each in kept], output)
    weights = {each.weight for each in kept}
    if Weight.ERROR in weights:
        return WRONG
    return WARNED if Weight.WARNING in weights else FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class _RenderOptions:
    part: str | None
    directory: str | None
    image: str | None
    replicas: int
    addresses: tuple[str, ...]
    nodes_from: str


@command.command(short_help="Write manifests, configurations and a lab")
@click.argument("file", callback=filled)
@click.option(
    "--part",
    metavar="NAME",
    callback=filled,
    help="File to print [default: objects.yaml, which is for the management cluster]",
)
@click.option(
    "--directory", metavar="DIR", callback=filled, help="Directory to write every file into"
)
@click.option("--image", metavar="IMAGE", callback=filled, help="Image of Isthmus to run")
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of kube-apiservers",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="ENDPOINT=HOST[:PORT]",
    help="Address that the platform has chosen for an endpoint; repeatable",
)
@click.option(
    "--nodes-from",
    default="",
    metavar="ADDRESS",
    help="Address that the nodes of the lab come from, such as a NAT gateway's",
)
@_planning
def render(file: str, options: _PlanOptions, **given: Any) -> int:
    """Write manifests, configurations and a lab

    Files that cannot be written yet, because the platform has not chosen an address, are listed on
    standard error.

    \b
    Example:
      isthmus publish render cluster.yaml | kubectl apply -f -
      isthmus publish render cluster.yaml --part lab.yaml > lab.yaml
      isthmus publish render cluster.yaml --directory out --address kube-apiserver=192.0.2.7
    """
    from isthmus.hosting.endpoints import with_addresses
    from isthmus.hosting.lab_topology import lab_topology
    from isthmus.hosting.own_parts import OBJECTS, PartChoices, own_parts

    written = _RenderOptions(**given)
    sound, addresses = _sound(file, options), _endpoint_addresses(written.addresses)
    try:
        found = with_addresses(sound, addresses)
    except ConfigError as error:
        raise ConfigError(f"--address: {error}") from None
    choices = PartChoices(replicas=written.replicas)
    if written.image is not None:
        choices = PartChoices(replicas=written.replicas, image=written.image)
    parts = own_parts(found, choices)
    files, missing = dict(parts.files), list(parts.missing)
    try:
        files[LAB] = lab_topology(found, nodes_from=written.nodes_from)
    except ConfigError as error:
        if written.part == LAB or written.nodes_from:
            raise
        missing.append(f"{LAB}: {error}")  # a plan may be valid even if no lab can be made of it
    if written.directory is not None:
        for why in missing:
            click.echo(f"isthmus: {why}", err=True)
        return _write(Path(written.directory), files)
    name = written.part or OBJECTS
    if name not in files:
        said = "".join(f"; {why}" for why in missing)
        raise ConfigError(f"--part: there is no {name!r}, but there are {', '.join(files)}{said}")
    click.echo(files[name], nl=False)
    return FINE


@command.command(short_help="Explain the reason for every part of the plan")
@click.argument("file", callback=filled)
@_planning
def explain(file: str, options: _PlanOptions) -> int:
    """Explain the reason for every part of the plan

    \b
    Example:
      isthmus publish explain cluster.yaml
    """
    from isthmus.hosting.explain import explain as tell

    click.echo(tell(_sound(file, options)), nl=False)
    return FINE


@command.command(short_help="Convert a document to the other version of the API")
@click.argument("file", callback=filled)
@click.option(
    "--to",
    "version",
    type=click.Choice(["v1alpha1", "v1beta1"]),
    help="Version of the API [default: the version that the document is not in]",
)
def convert(file: str, version: str | None) -> int:
    """Convert a document to the other version of the API

    The document is printed; changes are listed on standard error: fields in another form, and
    services that become visible to others. A field without a counterpart is an error with its
    location, and the exit code is 2.

    \b
    Example:
      isthmus publish convert cluster.yaml > cluster.v1beta1.yaml
      isthmus publish convert cluster.yaml --to v1alpha1
    """
    from isthmus.hosting.command_output import sentence
    from isthmus.hosting.convert import convert as convert_text
    from isthmus.hosting.document import read
    from isthmus.hosting.models import MODELS, other_model

    text = _text(file)
    model = other_model(read(text, file).model)
    model = next((each for each in MODELS.values() if each.version == version), model)
    converted = convert_text(text, file, model)
    if converted.refused:
        raise ConfigError("\n".join(sentence(each, file) for each in converted.refused))
    for line in (*converted.edits, *converted.sight):
        click.echo(f"isthmus: {line}", err=True)
    click.echo(converted.text, nl=False)
    return FINE


def _read(file: str) -> HostedCluster:
    from isthmus.hosting.document import read

    return read(_text(file), file)


def _text(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            contents = opened.read(_MOST_BYTES + 1)
        text = contents.decode()
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if len(contents) > _MOST_BYTES:
        raise ConfigError(f"{file}: is larger than {_MOST_BYTES} bytes")
    return text


def _plan(file: str, options: _PlanOptions) -> PublishPlan:
    from isthmus.hosting.plan import make_plan

    cluster = replace(_read(file), management=options.network())
    return make_plan(cluster, keep_sources=options.keep_sources)


def _sound(file: str, options: _PlanOptions) -> PublishPlan:
    """The plan of a document that has no errors.

    Raises:
        ConfigError: it has some; a line for each.
    """
    from isthmus.hosting.command_output import sentence

    found = _plan(file, options)
    if found.errors:
        raise ConfigError("\n".join(sentence(each, file) for each in found.errors))
    return found


def _check_rules(names: tuple[str, ...]) -> None:
    from isthmus.hosting.plan import RULES_OF
    from isthmus.hosting.rules_endpoints import ENDPOINT_RULES
    from isthmus.text.suggestions import nearest

    rules = {rule.name for each in RULES_OF.values() for rule in each}
    known = [*sorted(rules), *ENDPOINT_RULES]
    for name in names:
        if name not in known:
            raise ConfigError(f"--ignore: there is no rule {name!r}{nearest(name, known)}")


def _endpoint_addresses(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not (name and equals and address):
            raise ConfigError(f"--address takes ENDPOINT=HOST[:PORT], not {text!r}")
        if found.setdefault(name, address) != address:
            raise ConfigError(f"--address: {name} has two, {found[name]} and {address}; keep one")
    return found


def _draw(plan: PublishPlan, path: str) -> None:
    from isthmus.hosting.picture_svg import svg

    _save(Path(path), svg(plan), "--svg=")


def _write(directory: Path, files: dict[str, str]) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--directory={directory}: {error.strerror}") from error
    for name, text in files.items():
        _save(directory / name, text, "--directory: ")
    click.echo("".join(f"{directory / name}\n" for name in files), nl=False)
    return FINE


def _save(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}{path}: {error.strerror}") from error
