"""``isthmus dial``: netcat over the connectivity service.

The library is imported when the command runs: ``--help`` should not load an event loop.
"""

from __future__ import annotations

import click

from isthmus.errors import ConfigError
from isthmus.tools.connectivity.command_dialing import way_options
from isthmus.values import HostPort


@click.command(
    name="dial",
    short_help="Open a connection through the connectivity service",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("address", metavar="ADDRESS")
@way_options(whose="ADDRESS", until="reaching the target")
def command(
    address: str, path: str | None, network: str | None, timeout_s: float, verbose: bool
) -> int:
    """Open a connection through the connectivity service

    Standard input is sent to ADDRESS (host:port), and what comes back is written to standard
    output. The end of standard input half-closes the connection; it ends when the target ends it.
    Exit code 1 if the target was not reached or the connection was reset.

    \b
    Example:
      isthmus dial 10.0.0.5:443 --config connectivity.yaml -v
      printf 'GET / HTTP/1.0\\r\\n\\r\\n' | isthmus dial web.cluster.local:80 --config c.yaml
    """
    from isthmus.tools.connectivity.command_dialing import configuration, run

    try:
        target = HostPort.parse(address)
    except ValueError as exc:
        raise ConfigError(f"ADDRESS {address!r}: {exc}") from exc
    return run(_dial(target, configuration(path), network, timeout_s, verbose))


async def _dial(
    target: HostPort, path: str, network: str | None, timeout_s: float, verbose: bool
) -> int:
    from isthmus.client import ConnectivityService
    from isthmus.client.terminal import join_standard_streams
    from isthmus.tools.connectivity.command_dialing import Teller, dial

    async with (
        ConnectivityService.from_file(path) as service,
        await dial(service, target, network, timeout_s, Teller(verbose)) as connection,
    ):
        await join_standard_streams(connection, 0, 1)
    return 0
