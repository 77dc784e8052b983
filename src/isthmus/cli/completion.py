"""``isthmus completion``: the script that teaches a shell our commands and flags.

What the script then asks for is completing.py.
"""

from __future__ import annotations

import click


@click.command(
    name="completion",
    short_help="Print a script that completes commands in a shell",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print a script that completes commands in a shell

    The script asks isthmus itself, so it stays right when isthmus is updated. It needs bash 4.4 or
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
    from isthmus.cli.completing import SHELLS, VARIABLE
    from isthmus.cli.main import cli

    click.echo(SHELLS[shell](cli, {}, "isthmus", VARIABLE).source(), nl=False)
    return 0
