"""Shell completion: click's completion, extended for our flags.

Click completes commands and its own options. Added here: flags of declared settings, booleans as
Go parses them, lists with commas, files if the metavar is FILE, and values after ``--flag=`` in
every shell. ``isthmus completion`` prints the script for a shell. Only these two uses load this
module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    # Private, and the only way to get the parameter that is being completed.
    _resolve_context,
    _resolve_incomplete,
    add_completion_class,
)

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand, go_style
from isthmus.settings.options import Kind, Option

Items = list[CompletionItem[str]]
VARIABLE = "_ISTHMUS_COMPLETE"
_PLACES = re.compile(r"\b(FILE|PATH|DIR)\b")


class OurFlags(ShellComplete):
    """Finds the completions of the word at the cursor."""

    #: Whether the shell treats ``--flag=value`` as one word and replaces all of it.
    whole_words = True

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """The completions; none if the words before are invalid."""
        try:
            ctx = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
            if isinstance(ctx.command, FlagCommand):
                args = go_style(args, ctx.command.declared)
            asked, word = _resolve_incomplete(ctx, args, incomplete)
            found = _of(ctx, asked, word)
        except ConfigError:
            return []
        flag = incomplete[: len(incomplete) - len(word)]
        if not (self.whole_words and flag):
            return found
        return [
            CompletionItem(f"{flag}{item.value}", type=item.type, help=item.help) for item in found
        ]


def _of(ctx: click.Context, asked: click.Command | click.Parameter, word: str) -> Items:
    if isinstance(asked, click.Command):
        declared = asked.declared if isinstance(asked, FlagCommand) else ()
        hidden = {f"--{option.flag}" for option in declared if option.ignored}
        return [item for item in asked.shell_complete(ctx, word) if item.value not in hidden]
    found = asked.shell_complete(ctx, word)
    if found:
        return found
    if isinstance(ctx.command, FlagCommand):
        for option in ctx.command.declared:
            if option.attribute == asked.name and (items := _of_setting(option, word)):
                return items
    return _of_place(asked.metavar or "", word)


def _of_setting(option: Option, word: str) -> Items:
    """The choices of a declared setting; after a comma, those of the next word of a list."""
    if option.kind is Kind.BOOL:
        return _beginning(("true", "false"), "", word)
    before = ""
    if option.kind is Kind.LIST and "," in word:
        before, _, word = word.rpartition(",")
        before += ","
    return _beginning(option.choices, before, word)


def _beginning(choices: Iterable[str], before: str, word: str) -> Items:
    fitting = [choice for choice in choices if choice and choice.startswith(word)]
    return [CompletionItem(f"{before}{choice}") for choice in fitting]


def _of_place(metavar: str, word: str) -> Items:
    """Files or directories, which the shell itself finds, if the metavar names them."""
    places = set(_PLACES.findall(metavar))
    if not places or "=" in metavar:
        return []
    return [CompletionItem(word, type="dir" if places == {"DIR"} else "file")]


class Bash(OurFlags, BashComplete):
    """Bash, which treats ``=`` as a separate word."""

    whole_words = False

    def source(self) -> str:
        """The script, without click's check for bash 4.4, which starts bash."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        args, incomplete = super().get_completion_args()
        # --flag=value comes as three words, of which the last may be missing.
        words: list[str] = []
        for word in (*args, incomplete):
            goes_on = bool(words) and words[-1].startswith("-")
            if goes_on and (word == "=" or words[-1].endswith("=")):
                words[-1] += word
            else:
                words.append(word)
        return words[:-1], words[-1]


class Zsh(OurFlags, ZshComplete):
    """Zsh, which completes files after ``--flag=``, too."""

    source_template = ZshComplete.source_template.replace(
        "_path_files -", "compset -P 1 '--*='; _path_files -"
    )


class Fish(OurFlags, FishComplete):
    """Fish, which completes files after ``--flag=``, too; values and help may have commas."""

    source_template = re.sub(
        r"(__fish_complete_\w+) \$metadata\[2\];",
        r"""set -l flag (string match --regex -- '^--[^=]*=' $metadata[2]);
            set -l word (string replace --regex -- '^--[^=]*=' '' $metadata[2]);
            for found in (\1 "$word");
                echo "$flag$found";
            end;""",
        FishComplete.source_template.replace('string split ","', 'string split --max 1 ","'),
    )


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}
for _name, _class in SHELLS.items():
    add_completion_class(_class, _name)


@click.command(
    name="completion",
    short_help="Print a script that completes commands in a shell",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print a script that completes commands in a shell

    The script calls isthmus, so it needs no update when isthmus is updated. It needs bash 4.4 or
    later, and in zsh `autoload -U compinit; compinit` before it.

    \b
    In this shell, and in every new one:
      bash   source <(isthmus completion bash)
             isthmus completion bash > /etc/bash_completion.d/isthmus
      zsh    source <(isthmus completion zsh)
             isthmus completion zsh > "${fpath[1]}/_isthmus"
      fish   isthmus completion fish | source
             isthmus completion fish > ~/.config/fish/completions/isthmus.fish

    \b
    Example:
      isthmus completion bash
    """
    from isthmus.cli.main import cli

    click.echo(SHELLS[shell](cli, {}, "isthmus", VARIABLE).source(), nl=False)
    return 0
