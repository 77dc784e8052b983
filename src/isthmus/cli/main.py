"""The ``isthmus`` command: finds and runs the sub-command, and prints errors as one line.

A sub-command's module, which contains ``command`` or a command of its name, is imported only when
it runs, so that ``isthmus --help`` and the error for a typo are fast.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakSet

import click
from click._textwrap import TextWrapper

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import NO_COLOR, error_prefix
from isthmus.programs import programs
from isthmus.text.suggestions import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Grouped by task; a command's module is imported when it is needed.
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Try it": {
        "up": ("tools.up.command", "Start a server, an agent and a demo target in this terminal"),
        "lab": ("lab.command", "Build test networks with firewalls between them on this machine"),
    },
    "Run it": {
        "pki": ("tools.pki.command", "Create, revoke and show certificates"),
        **{it.name: (it.command_module.removeprefix("isthmus."), it.help) for it in programs()},
    },
    "Look at it": {
        "status": (
            "tools.watching.command_status",
            "Show the health of running Isthmus programs",
        ),
        "top": ("tools.watching.command_top", "Watch tunnels live, the fastest first"),
        "dashboard": (
            "tools.watching.command_dashboard",
            "Serve one page that shows several running programs",
        ),
        "tunnels": ("tools.watching.command_tunnels", "List tunnels, and end them"),
        "agents": ("tools.watching.command_agents", "List connected agents"),
        "doctor": (
            "tools.doctor.command",
            "Find problems on this machine, and what to do about them",
        ),
        "support-bundle": (
            "tools.doctor.command_bundle",
            "Pack logs and settings into an archive for support, without secrets",
        ),
        "dial": (
            "tools.connectivity.command_dial",
            "Open a connection through the connectivity service",
        ),
        "curl": ("tools.connectivity.command_curl", "Fetch a URL through the connectivity service"),
    },
    "Plan it": {
        "config": (
            "tools.connectivity.command_config",
            "Check and convert connectivity configurations, explain their fields",
        ),
        "egress": (
            "tools.connectivity.command_egress",
            "Explain where kube-apiserver's requests go",
        ),
        "policy": ("tools.connectivity.command_policy", "Test what a policy allows"),
        "resolve": (
            "tools.connectivity.command_resolve",
            "Explain how a sidecar resolves and reaches a name",
        ),
        "publish": ("hosting.command", "Plan how a hosted control plane is reached"),
    },
    "Kubernetes files": {
        "manifest": ("manifests.command", "Write manifests and units that run Isthmus"),
        "bootstrap": (
            "tools.bootstrap.command",
            "Lead nodes to kube-apiserver through their agents",
        ),
    },
    "Other": {
        "completion": ("cli.completion", "Print a script that completes commands in a shell"),
        "help": ("cli.main", "Show the help of a command"),
    },
}
_LISTED = {name: it for group in _GROUPS.values() for name, it in group.items()}
#: The short help of each command.
COMMANDS = {name: says for name, (_, says) in _LISTED.items()}
_WIDEST = max(map(len, COMMANDS))
INTERRUPTED = 130  # 128 + SIGINT, as shells count
#: Errors of writing output to a full or failing disk; click handles a closed pipe.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Wrap help only between words: --server-port and kube-proxy stay whole. click has no option for it.
TextWrapper.wordsep_re = TextWrapper.wordsep_simple_re
# Our help has no escape sequences; searching for them takes a tenth of `server --help`'s time.
vars(click._textwrap)["term_len"] = len
_TEXTS = (click.types.StringParamType, click.Path)
_WATCHED: WeakSet[click.Command] = WeakSet()


class LazyGroup(click.Group):
    """A group whose commands are modules, imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by name; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command = program_command(cmd_name)
        add_no_color(command)
        keep_help_names(command)
        refuse_twice(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        for title, group in _GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(_WIDEST), says) for name, (_, says) in group.items()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names.

        Raises:
            ConfigError: there is no such command.
        """
        wrong = args[0] not in COMMANDS and not args[0].startswith("-")
        if wrong and not ctx.resilient_parsing:  # completion prints no error
            known = [*COMMANDS, "--help", "--version"]  # kubectl has commands for these
            raise ConfigError(f"unknown command {args[0]!r}{nearest(args[0], known)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the names of commands, without importing any."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=says)
            for name, says in COMMANDS.items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)


def _below(command: click.Command) -> Iterable[click.Command]:
    if isinstance(command, click.Group):
        return command.commands.values()
    setup = getattr(command, "setup", None)  # of WithSetup
    return (setup,) if setup else ()


def program_command(name: str) -> click.Command:
    """Import a command of the list."""
    module = import_module(f"isthmus.{_LISTED[name][0]}")
    command = getattr(module, "command", None) or getattr(module, name.replace("-", "_"))
    assert isinstance(command, click.Command), f"{module.__name__} has no command"
    return command


def add_no_color(command: click.Command) -> None:
    """Add --no-color to a command and its sub-commands."""
    for each in _below(command):
        add_no_color(each)
    if all(one.name != NO_COLOR.name for one in command.params):
        command.params.append(NO_COLOR)


def keep_help_names(command: click.Command) -> None:
    """Make a command and its sub-commands accept -h in every context.

    click caches the help option with the names of the first context that uses it.
    """
    for each in _below(command):
        keep_help_names(each)
    command.get_help_option(click.Context(command, help_option_names=["-h", "--help"]))


def refuse_twice(command: click.Command) -> None:
    """Make a command and its sub-commands refuse a value that is given twice.

    click would silently take the last. Settings have their own rule (``Option.takes_one``).
    """
    for each in _below(command):
        refuse_twice(each)
    if command in _WATCHED or hasattr(command, "declared"):
        return
    _WATCHED.add(command)
    parse = command.parse_args

    def parse_once(ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _check_once(command, ctx, args)
        return parse(ctx, args)

    command.parse_args = parse_once  # type: ignore[method-assign]  # click has no hook for it


def _check_once(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    _, _, given = command.make_parser(ctx).parse_args(args=list(args))
    for param in given:
        single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
        if single and isinstance(param.type, _TEXTS) and given.count(param) > 1:
            raise ConfigError(f"{param.opts[-1]} is given more than once and takes one value")


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    add_help_option=False,
    epilog="\b\nExample:\n  isthmus up",
)
@click.version_option(
    __version__,
    prog_name="isthmus",
    message="%(prog)s %(version)s",
    help="Show the version and exit",
)
@click.help_option("-h", "--help", help="Show this help and exit")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Join a Kubernetes control plane and its cluster across a boundary"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.params.append(NO_COLOR)


@click.command(
    name="help",
    short_help="Show the help of a command",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help(words: tuple[str, ...]) -> int:
    """Show the help of a command

    \b
    Example:
      isthmus help agent
      isthmus help manifest agent
    """
    return main([*words, "--help"])


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for a wrong flag, file or certificate."""
    if "_ISTHMUS_COMPLETE" in os.environ:  # set by the shell's completion script
        import_module("isthmus.cli.completion")
    return run(cli, "isthmus", args)


def run(command: click.Command, name: str, args: Sequence[str] | None) -> int:
    """Run a command line under this name; errors are one line on standard error."""
    _open_missing_streams()
    say = partial(_say, error_prefix(name))
    try:
        result = command.main(
            None if args is None else list(args), prog_name=name, standalone_mode=False
        )
    except ConfigError as error:
        return say(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.NoSuchOption as error:
        return say(_unknown_flag(error), 2)
    except click.exceptions.NoSuchCommand as error:
        return say(_unknown_command(error), 2)
    except click.MissingParameter as error:
        return say(_missing(error), 2)
    except click.BadParameter as error:
        return say(_sentence(error.format_message()) + _near_choice(error), error.exit_code)
    except click.ClickException as error:
        return say(_sentence(error.format_message()), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        # Closing the streams at exit would try to write again, and print an error.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # lives as long as the process
        return say(f"cannot write the output: {error.strerror}", 1)
    return result if isinstance(result, int) else 0


def _open_missing_streams() -> None:
    """Open all three streams: Python sets a stream to None that was closed at start (``>&-``)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as the process


def _say(prefix: str, sentence: str, exit_code: int) -> int:
    click.echo(f"{prefix}: {sentence}", err=True)
    return exit_code


def _unknown_flag(error: click.NoSuchOption) -> str:
    params = error.ctx.command.params if error.ctx else []
    known = [name for param in params for name in param.opts if name.startswith("--")]
    return f"unknown flag {error.option_name}{nearest(error.option_name, known)}"


def _unknown_command(error: click.exceptions.NoSuchCommand) -> str:
    group = error.ctx.command if error.ctx else None
    known = group.list_commands(error.ctx) if isinstance(group, click.Group) and error.ctx else []
    return f"unknown command {error.command_name!r}{nearest(error.command_name, known)}"


def _missing(error: click.MissingParameter) -> str:
    """Every missing required flag and argument; click names only the first."""
    ctx = error.ctx
    assert ctx is not None
    # Values that were given are parsed first.
    missing = [one for one in ctx.command.params if one.required and one.name not in ctx.params]
    names = [
        one.make_metavar(ctx).removesuffix("...")
        if isinstance(one, click.Argument)
        else max(one.opts, key=len)
        for one in missing
    ]
    *most, last = names
    what = f"{', '.join(most)} and {last} are" if most else f"{last} is"
    return f"{what} missing, see {ctx.command_path} -h"


def _near_choice(error: click.BadParameter) -> str:
    """Suggest the choice nearest to a wrong one; click has it only in its message."""
    kind = error.param.type if error.param else None
    wrong = re.match(r"'(.*)' is not one of ", error.message)
    return nearest(wrong[1], list(kind.choices)) if wrong and isinstance(kind, click.Choice) else ""


def _sentence(message: str) -> str:
    """Click's message in our form: lower case, no full stop, one line."""
    text = " ".join(message.split()).removesuffix(".")
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(main())
