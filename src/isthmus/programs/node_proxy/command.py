"""``isthmus node-proxy``: runs a node proxy from flags or kube-proxy's file; and its cleanup.

Imports happen when a command runs.
"""

from __future__ import annotations

import click
from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagGroup
from isthmus.programs.node_proxy import command_tools
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.settings.options import options_of

# The flag may come without a value: the ranges are then the Node's.
_BARE = "--node-cidr"


class _NodeProxyCommand(FlagGroup):
    """The command; --node-cidr without a value gets an empty one."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = [*args[1:], "--"]
        return super().parse_args(
            ctx,
            [
                f"{arg}=" if arg == _BARE and after.startswith("-") else arg
                for arg, after in zip(args, following, strict=False)
            ],
        )


def _run(**given: tuple[str, ...]) -> int:
    below = click.get_current_context().invoked_subcommand
    if below is not None:
        if any(given.values()):
            raise ConfigError(f"flags of node-proxy {below} go after the subcommand")
        return 0
    from isthmus.programs.node_proxy.config import read_settings

    settings = read_settings(given)
    if settings.cleanup:
        return _clean(settings)
    if settings.write_config_to:
        from isthmus.programs.node_proxy.config import write_config

        write_config(settings)
        return 0
    from isthmus.programs.node_proxy.program import initialize, main

    return initialize(settings) if settings.init_only else main(settings)


def _clean(settings: NodeProxySettings) -> int:
    from isthmus.programs.node_proxy.backends import clean_all

    stayed = clean_all(settings)
    for message in stayed:
        click.echo(f"isthmus: {message}", err=True)
    return 1 if stayed else 0


command = _NodeProxyCommand(
    "node-proxy",
    options_of(NodeProxySettings),
    """\
isthmus node-proxy --kubeconfig=/etc/kubernetes/kube-proxy.conf \\
    --detect-local=node-cidr
isthmus node-proxy --config=/var/lib/kube-proxy/config.conf --take-over
isthmus node-proxy --manifests=/etc/isthmus/services \\
    --cluster-cidr=10.1.0.0/16
isthmus node-proxy cleanup""",
    callback=_run,
    invoke_without_command=True,
    help="Program the kernel of a node for Services, as kube-proxy does",
)


@command.command(short_help="Remove all rules of a node proxy from this node")
def cleanup() -> int:
    """Remove all rules of a node proxy from this node

    Removes the rules of the modes iptables, nftables and ipvs, including kube-proxy's, which have
    the same names. Rules of other programs stay. If something cannot be removed, a message says so
    and the exit code is 1.

    \b
    Example:
      isthmus node-proxy cleanup
    """
    return _clean(NodeProxySettings())


for _tool in command_tools.COMMANDS:
    command.add_command(_tool)
