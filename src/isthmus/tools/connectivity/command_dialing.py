"""Shared by ``isthmus dial`` and ``isthmus curl``: choose a network, and report it with -v."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isthmus.errors import ConfigError, IsthmusError
from isthmus.frame.cli.tables import filled

if TYPE_CHECKING:
    from isthmus.client import Connection, ConnectivityService, NetworkContext
    from isthmus.values import HostPort

FAILED = 1
_F = TypeVar("_F", bound=Callable[..., object])


def way_options(*, whose: str, until: str) -> Callable[[_F], _F]:
    """Add the options for the network, the timeout and -v to a command."""
    options = (
        click.option(
            "--config",
            "path",
            metavar="FILE",
            callback=filled,
            help="Connectivity service or egress selector configuration"
            " [default: that of the running isthmus up]",
        ),
        click.option(
            "--network",
            metavar="NAME",
            callback=filled,
            help=f"Network to use [default: the one that the configuration puts {whose} in]",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(0.001, 3600),
            callback=_number,
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help=f"Timeout of {until}",
        ),
        click.option(
            "-v", "--verbose", is_flag=True, help="Print which network was chosen, and why"
        ),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if math.isnan(value):  # click's range check lets nan pass
        raise ConfigError("--timeout: nan is not a number of seconds")
    return value


def configuration(path: str | None) -> str:
    """The file of ``--config``, or that of the newest running ``isthmus up``.

    Raises:
        ConfigError: there is neither.
    """
    from isthmus.tools.up.state import told_connectivity

    found = path or told_connectivity(os.environ)
    if found is None:
        raise ConfigError(
            "--config is required, because no isthmus up of this user is running;"
            " start one, or give a file"
        )
    return str(found)


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run ``work`` in an event loop; print a failed connection as one line, with exit code 1."""
    import asyncio

    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except ConfigError:
        raise
    except BrokenPipeError:
        return FAILED  # the reader of our output has left
    except (IsthmusError, OSError) as exc:
        click.echo(f"isthmus: {_sentence(exc)}", err=True)
        return FAILED


def _sentence(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return str(exc) or "timed out"
    if isinstance(exc, OSError) and exc.strerror:
        return str(getattr(exc, "verify_message", "") or exc.strerror)
    return str(exc)


class Teller:
    """With -v, prints on standard error what the command does and why."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def __call__(self, text: str) -> None:
        """Say it."""
        if self._verbose:
            click.echo(f"* {text}", err=True)


def choose(
    service: ConnectivityService, target: HostPort, network: str | None, tell: Teller
) -> NetworkContext:
    """Choose the network: that of --network, or the one whose destinations list the target.

    Raises:
        ConfigError: there is no such network.
    """
    from isthmus.client import NetworkContext, UnknownNetworkError

    try:
        only = _only_network(service)
        if network:
            context = NetworkContext(network)
            why = "as --network says"
        elif only:
            context = NetworkContext(only)
            why = "the configuration has no other, and no list of destinations"
        else:
            context = service.context_for(target)
            why = f"the configuration puts {target} there"
        how = service.how(context.name)
    except UnknownNetworkError as exc:
        more = "" if network else "; name one with --network"
        raise ConfigError(f"{exc}{more}") from exc
    found = service.config.network(context.name)
    where = f" ({found.where})" if found is not None and found.where else ""
    tell(f"network {context.name}: {why}{where}")
    tell(f"reached {how}")
    return context


def _only_network(service: ConnectivityService) -> str:
    networks = list(service.config.networks.values())
    if len(networks) != 1 or networks[0].cidrs or networks[0].hosts:
        return ""
    return networks[0].name


async def dial(
    service: ConnectivityService,
    target: HostPort,
    network: str | None,
    timeout_s: float,
    tell: Teller,
) -> Connection:
    """Choose a network and open a connection."""
    context = choose(service, target, network, tell)
    from isthmus.text.units import took

    started_at = time.monotonic()
    connection = await service.dialer(context).dial("tcp", target, timeout_s=timeout_s)
    tell(f"connected to {target} in {took(time.monotonic() - started_at)}")
    return connection
