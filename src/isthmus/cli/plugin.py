"""``kubectl isthmus``: the commands that show programs, for the pods of a cluster.

kubectl runs ``kubectl-isthmus`` from PATH, and ``kubectl_complete-isthmus`` for completion. The
commands are those of ``isthmus``; only the search for programs differs, which is in
``tools/kubectl``.
"""

from __future__ import annotations

import copy
import inspect
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from isthmus import __version__
from isthmus.cli.main import add_no_color, keep_help_names, program_command, refuse_twice, run
from isthmus.frame.cli.tables import filled
from isthmus.tools.kubectl.cluster import ALL, HANDED_ON, MOST_PODS, Cluster, ClusterFlags
from isthmus.tools.kubectl.forwarding import MOST_OPEN
from isthmus.tools.watching.admin_flags import FINDER

NAME = "kubectl isthmus"
_CLUSTER = "isthmus.cli.plugin.cluster"
_COMPLETE_S = 5.0
#: Directives of cobra, kubectl's completion: complete files as well, or nothing else.
_FILES, _NO_FILES = 0, 4
#: The commands in the order of the help, each with an example.
_EXAMPLES = {
    "status": "kubectl isthmus status -n isthmus-system",
    "top": "kubectl isthmus top -l isthmus.dev/program=server",
    "tunnels": "kubectl isthmus tunnels -A --stalled -o wide",
    "tunnels end": "kubectl isthmus tunnels end 17 --pod=isthmus-server-x7k2p",
    "agents": "kubectl isthmus agents --context=management -n clusters-a",
    "doctor": "kubectl isthmus doctor -A -o json",
    "support-bundle": "kubectl isthmus support-bundle -n isthmus-system -f bundle.tar.gz",
}
#: The programs that a command queries; a command that is not listed queries all.
_ONLY = {"agents": ("server",)}
#: Commands that watch continuously keep their port-forwards.
_MOST = {"top": MOST_OPEN}
#: Parameters that do not apply to a cluster, and their values there.
_WITHOUT: dict[str, Any] = {"urls": (), "target": None}
_EXAMPLE = re.compile(r"\n+\x08\nExample:.*", re.DOTALL)


def _parameters() -> list[click.Parameter]:
    """The flags that select pods, for every command; accepted before and after its name."""
    own = [
        click.Option(
            ["-n", "--namespace"], metavar="NAMESPACE", shell_complete=_asked("namespace"),
            help="Namespace of the pods [default: that of the context]",
        ),
        click.Option(
            ["-A", "--all-namespaces", ALL], is_flag=True, help="Pods of all namespaces"
        ),
        click.Option(
            ["-l", "--selector"], metavar="SELECTOR", callback=filled,
            help="Label selector of the pods [default: isthmus.dev/program]",
        ),
        click.Option(
            ["--pod"], metavar="NAME", multiple=True, callback=filled, shell_complete=_pods,
            help="Only the pod of this name, repeatable",
        ),
    ]  # fmt: skip
    return [*own, *(_handed_on(name, says) for name, says in HANDED_ON.items())]


def _handed_on(name: str, says: str) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    kind = {"kubeconfig": "FILE", "request_timeout": "DURATION"}.get(name, "NAME")
    return click.Option(
        [flag, f"kube_{name}"], metavar=kind, multiple=name == "as_group", callback=filled,
        shell_complete=None if kind == "FILE" else _asked(name), help=f"{says} (for kubectl)",
    )  # fmt: skip


def _take(ctx: click.Context, given: dict[str, Any]) -> Cluster:
    """Remove the flags that select pods from the parameters; the last of each counts."""
    cluster: Cluster = ctx.find_root().meta[_CLUSTER]
    for parameter in _parameters():
        assert parameter.name is not None
        value = given.pop(parameter.name)
        if ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            cluster.chosen[parameter.name.removeprefix("kube_")] = value
    return cluster


class PluginGroup(click.Group):
    """The commands of the plugin, imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return [name for name in _EXAMPLES if " " not in name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by name; None when there is no such command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        made = _of_cluster(program_command(cmd_name), cmd_name)
        add_no_color(made)
        keep_help_names(made)
        refuse_twice(made)
        return made


def _of_cluster(command: click.Command, name: str) -> click.Command:
    """The same command for the pods of a cluster."""
    own = _parameters()
    taken = {opt for one in own for opt in one.opts}
    without = {one.name: _WITHOUT[one.name] for one in command.params if one.name in _WITHOUT}
    kept = [_apart(one, taken) for one in command.params if one.name not in _WITHOUT]
    says = _EXAMPLE.sub("", inspect.cleandoc(command.help or ""))
    settings: dict[str, Any] = {
        "params": [*own, *kept],
        "help": f"{says}\n\n\b\nExample:\n  {_EXAMPLES[name]}",
        "short_help": command.short_help,
        "callback": partial(_call, command.callback, name, without),
        "context_settings": command.context_settings,
    }
    # The doctor's sub-commands check the flags of a program for this machine.
    if not isinstance(command, click.Group) or name == "doctor":
        return click.Command(command.name, **settings)
    below = {one: _of_cluster(it, f"{name} {one}") for one, it in command.commands.items()}
    return click.Group(command.name, below, invoke_without_command=True, **settings)


def _apart(parameter: click.Parameter, taken: Collection[str]) -> click.Parameter:
    """The parameter without names that have another meaning in kubectl."""
    made = copy.copy(parameter)
    made.opts = [opt for opt in parameter.opts if opt not in taken]
    return made


def _call(
    callback: Callable[..., Any] | None, name: str, without: dict[str, Any], **given: Any
) -> Any:
    ctx = click.get_current_context()
    cluster = _take(ctx, given)
    cluster.programs = _ONLY.get(name, ())
    cluster.most = _MOST.get(name, MOST_PODS)
    assert callback is not None
    return callback(**without, **given)


def _asked(name: str) -> Callable[..., list[CompletionItem]]:
    """kubectl's own completion of this flag's value."""

    def found(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem]:
        return _kubectl_completes(ctx, ["get", "pods", f"--{name.replace('_', '-')}", word])

    return found


def _pods(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem]:
    namespace = _typed(ctx, "namespace")
    return _kubectl_completes(ctx, ["get", "pods", *(["-n", namespace] if namespace else []), word])


def _typed(ctx: click.Context, name: str) -> Any:
    return ctx.params.get(name) or (ctx.parent.params.get(name) if ctx.parent else None)


def _kubectl_completes(ctx: click.Context, words: Sequence[str]) -> list[CompletionItem]:
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name in HANDED_ON
        if isinstance(value := _typed(ctx, f"kube_{name}"), str) and value
    ]
    try:
        done = subprocess.run(
            ["kubectl", "__complete", words[0], *flags, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMPLETE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = (line.partition("\t") for line in done.stdout.splitlines() if line[:1] != ":")
    return [CompletionItem(value, help=says or None) for value, _, says in lines]


@click.group(
    cls=PluginGroup,
    name="isthmus",
    params=_parameters(),
    invoke_without_command=True,
    add_help_option=False,
)
@click.version_option(
    __version__, prog_name=NAME, message="%(prog)s %(version)s", help="Show the version and exit"
)
@click.help_option("-h", "--help", help="Show this help and exit")
@click.pass_context
def cli(ctx: click.Context, /, **given: Any) -> None:
    """Look at the Isthmus programs in a cluster, all at once

    Finds pods by the label isthmus.dev/program and queries their admin ports through kubectl
    port-forward. For a pod that cannot be reached it prints one line on standard error.

    \b
    Example:
      kubectl isthmus status -A
    """
    cluster = Cluster()
    ctx.meta[_CLUSTER] = cluster
    ctx.meta[FINDER] = partial(ClusterFlags, cluster=cluster)
    ctx.call_on_close(cluster.close)
    _take(ctx, given)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the plugin and return the exit code."""
    if args is None:  # run as a process: port-forwards end with it on every signal
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    return run(cli, NAME, args)


def complete(args: Sequence[str] | None = None) -> int:
    """Answer kubectl's request to complete the last word."""
    from isthmus.cli.completion import OurFlags

    words = list(sys.argv[1:] if args is None else args)
    found = OurFlags(cli, {}, NAME, "").get_completions(words[:-1], words[-1] if words else "")
    files = any(item.type in ("file", "dir") for item in found)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_FILES if files else _NO_FILES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
