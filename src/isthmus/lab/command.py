"""``isthmus lab``: whole networks on one machine. play.py does the work.

command_output.py prints; both are imported when a command runs, not for ``--help``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import Words, completing
from isthmus.frame.cli.tables import output_option

if TYPE_CHECKING:
    from isthmus.lab.play import RunOptions


def _topologies(_: click.Context) -> Words:
    from isthmus.lab import catalog

    return [(name, "") for name in catalog.names()]


def _labs(_: click.Context) -> Words:
    from isthmus.lab import state

    return [(lab.token, lab.topology) for lab in state.labs()]


def _hosts(ctx: click.Context) -> Words:
    from isthmus.lab import play, state

    topology = play.topology_of(state.find(ctx.params.get("token") or ""))
    return [(host.name, "") for host in topology.hosts]


_LAB = click.option(
    "--lab",
    "token",
    metavar="ID",
    default="",
    shell_complete=completing(_labs),
    help="Lab to use if several are up",
)
_FIREWALL = click.option(
    "--firewall",
    type=click.Choice(["nft", "iptables"]),
    help="Firewall tool that builds the walls [default: the first that is installed]",
)
_PATH = click.option(
    "--path",
    multiple=True,
    metavar="DIR",
    help="Directory to search first for the programs of a topology; repeatable",
)


@click.group(
    name="lab",
    short_help="Build test networks with firewalls between them on this machine",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Build test networks with firewalls between them on this machine

    A topology is a small YAML file: networks, hosts, firewall, programs, and what has to be seen.
    Some come with Isthmus (isthmus lab list); give the path of a file for one of your own. Needs
    root. Everything lives in network namespaces and is gone afterwards.

    \b
    Example:
      sudo isthmus lab run isolated-cluster
      sudo isthmus lab up isolated-cluster && sudo isthmus lab show
    """


def _wishes(
    firewall: str | None,
    path: tuple[str, ...],
    *,
    without: tuple[str, ...] = (),
    keep: bool = False,
) -> RunOptions:
    from isthmus.lab.play import RunOptions

    names = tuple(name for text in without for name in text.split(",") if name)
    return RunOptions(firewall=firewall or "", without=names, keep=keep, path=path)


@command.command(short_help="Build a topology, check what it expects, and take it down")
@click.argument("topology", shell_complete=completing(_topologies, or_file=True))
@click.option("--keep", is_flag=True, help="Leave the lab up afterwards")
@output_option()
@_FIREWALL
@_PATH
def run(topology: str, keep: bool, output: str, firewall: str | None, path: tuple[str, ...]) -> int:
    """Build a topology, check what it expects, and take it down

    The exit code is 0 if everything was as the topology says, and 1 if not.

    \b
    Example:
      sudo isthmus lab run isolated-cluster
      sudo isthmus lab run ./my-network.yaml -o json
    """
    from isthmus.lab import command_output as lab_output
    from isthmus.lab import play

    with lab_output.display() as display, lab_output.sentences():
        report = play.run(topology, _wishes(firewall, path, keep=keep), display)
    lab_output.show_report(report, output)
    return 0 if report.held else 1


@command.command(short_help="Build a topology and leave it up")
@click.argument("topology", shell_complete=completing(_topologies, or_file=True))
@click.option(
    "--without",
    multiple=True,
    metavar="PROCESS",
    help="Process to leave out, because you start it by hand; repeatable",
)
@_FIREWALL
@_PATH
def up(
    topology: str, without: tuple[str, ...], firewall: str | None, path: tuple[str, ...]
) -> None:
    """Build a topology and leave it up

    Prints the lab's id, which the other commands take as --lab when several are up.

    \b
    Example:
      sudo isthmus lab up isolated-cluster
      sudo isthmus lab up isolated-cluster --without server --without agent
    """
    from isthmus.lab import command_output as lab_output
    from isthmus.lab import play

    with lab_output.display() as display, lab_output.sentences():
        lab = play.up(topology, _wishes(firewall, path, without=without), display)
    lab_output.show_up(lab, play.topology_of(lab))


@command.command(short_help="Build the programs and images that a topology needs")
@click.argument("topology", shell_complete=completing(_topologies, or_file=True))
def build(topology: str) -> None:
    """Build the programs and images that a topology needs

    lab up and lab run do this first; the result is kept in the user's cache directory. Needs root,
    Go, runc and mmdebstrap. The first build takes 10 to 20 minutes.

    \b
    Example:
      sudo isthmus lab build kubernetes
    """
    from isthmus.lab import catalog, play
    from isthmus.lab import command_output as lab_output

    with lab_output.display() as display, lab_output.sentences():
        found = catalog.load(topology)
        if not found.builds:
            raise ConfigError(f"{topology} needs nothing to be built")
        play.need_root()
        built = play.build(found, display)
    for directory in built.directories:
        click.echo(directory)


@command.command(short_help="Take a lab down")
@_LAB
@click.option("--all", "every", is_flag=True, help="Take all labs down")
def down(token: str, every: bool) -> None:
    """Take a lab down

    Ends its processes and removes its namespaces and files, also of a lab whose command was killed.

    \b
    Example:
      sudo isthmus lab down
      sudo isthmus lab down --lab 3fa9c1
    """
    from isthmus.lab import play, state

    play.need_root()
    labs = state.labs() if every else [state.find(token)]
    play.down(labs)
    for lab in labs:
        click.echo(f"lab {lab.token} is down")


@command.command(name="list", short_help="List topologies, and the labs that are up")
@output_option()
def list_(output: str) -> None:
    """List topologies, and the labs that are up

    \b
    Example:
      isthmus lab list
    """
    from isthmus.lab import command_output as lab_output

    lab_output.show_list(output)


@command.command(short_help="Draw a lab with its tunnels, or a topology")
@click.argument("topology", required=False, shell_complete=completing(_topologies, or_file=True))
@_LAB
@click.option("--svg", metavar="FILE", help="Write an SVG picture to this file")
def show(topology: str | None, token: str, svg: str | None) -> None:
    """Draw a lab with its tunnels, or a topology

    Without a topology, the lab that is up, with the tunnels that are open in it now.

    \b
    Example:
      sudo isthmus lab show
      isthmus lab show isolated-cluster --svg picture.svg
    """
    from isthmus.lab import catalog, play, state
    from isthmus.lab import command_output as lab_output
    from isthmus.lab.picture import picture
    from isthmus.lab.picture_live import LiveState

    if topology is None:
        play.need_root()
        drawn = picture(*play.look(state.find(token)))
    else:
        drawn = picture(catalog.load(topology), LiveState())
    if svg is None:
        lab_output.show_picture(drawn)
        return
    from isthmus.lab.picture_svg import svg as draw

    try:
        Path(svg).write_text(draw(drawn), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--svg={svg}: {exc.strerror or exc}") from exc


@command.command(
    name="shell",
    short_help="Open a shell on a host of a lab, or run a command there",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@_LAB
@click.argument("host", shell_complete=completing(_hosts))
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
def shell_(token: str, host: str, words: tuple[str, ...]) -> None:
    """Open a shell on a host of a lab, or run a command there

    $LAB is the lab's directory: certificates are in $LAB/pki, logs in $LAB/logs. The host named
    wall is the firewall between the networks.

    \b
    Example:
      sudo isthmus lab shell node
      sudo isthmus lab shell node curl http://pod:8080/
    """
    from isthmus.lab import play, state

    play.need_root()
    lab = state.find(token)
    argv, environment = play.shell_command(lab, host, words)
    os.execvpe(argv[0], argv, environment)
