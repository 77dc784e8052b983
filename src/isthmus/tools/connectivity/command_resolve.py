"""``isthmus resolve``: explain step by step how a sidecar resolves and reaches a name.

The resolvers are imported when the command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import TEXT, filled, one_line, output_parameter, print_data
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sidecar.settings_manifest import SIDECARS
from isthmus.programs.sidecar.settings_presets import HTTPS, SOCKS5
from isthmus.settings.options import Option, given_in_vain, options_of
from isthmus.settings.parsing import load
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.dial.rules_name_order import Resolution

FOUND, NOT_FOUND = 0, 1
#: The port for which the proxy of a cloud API is looked up: NO_PROXY may name a port.
HTTPS_PORT = 443
_SETTINGS: dict[str, type[Any]] = {kind: SIDECARS[kind].settings_class for kind in (SOCKS5, HTTPS)}


def _declared() -> list[Option]:
    """The flags of both sidecars, each once."""
    found: dict[str, Option] = {}
    for settings in _SETTINGS.values():
        for option in options_of(settings):
            found.setdefault(option.flag, option)
    return list(found.values())


def _settings(sidecar: str, given: dict[str, tuple[str, ...]]) -> SidecarSettings:
    import os

    settings = _SETTINGS[sidecar]
    known = {option.attribute for option in options_of(settings)}
    for option in _declared():
        if given.get(option.attribute) and option.attribute not in known:
            raise ConfigError(f"--{option.flag} is not a flag of the {sidecar} sidecar")
    loaded: Any = load(settings, given, os.environ)
    loaded.validate()
    vain = given_in_vain(settings, given)
    if vain:
        click.echo(f"isthmus: these flags have no effect here: {', '.join(vain)}", err=True)
    return cast("SidecarSettings", loaded)


def _run(name: str, sidecar: str, output: str, **given: tuple[str, ...]) -> int:
    from isthmus.tools.connectivity.command_dialing import run

    try:
        HostPort(name, 1)
    except ValueError as exc:
        raise ConfigError(f"NAME {name!r}: {exc}") from exc
    settings = _settings(sidecar, given)
    return run(_resolve(name, settings, output))


async def _resolve(name: str, settings: SidecarSettings, output: str) -> int:
    import asyncio
    import os

    from isthmus.dial.rules_name_order import Way
    from isthmus.errors import DialError, DialFailure
    from isthmus.kube.opening import open_kube
    from isthmus.net.poller import Poller
    from isthmus.programs.sidecar.dialer import SidecarDialer

    loop = asyncio.get_running_loop()
    poller = Poller(loop)
    kube = open_kube(settings.kubeconfig) if settings.needs_kube else None
    try:
        dialer = SidecarDialer(loop, poller, settings, kube=kube, environment=os.environ)
        await dialer.start()
        try:
            async with asyncio.timeout(settings.dial_timeout_s):
                found = await dialer.resolve(name)
        except TimeoutError:
            late = f"not resolved within {settings.dial_timeout_s:g} s"
            raise DialError(DialFailure.TIMED_OUT, HostPort(name, 1), late) from None
        finally:
            await dialer.close()
    finally:
        if kube is not None:
            await kube.close()
        poller.shut_down()
    proxy = dialer.proxies.proxy_for(found.host, HTTPS_PORT)
    by = str(proxy) if proxy is not None and found.way is Way.PROXIED else ""
    if output == TEXT:
        click.echo(_text(found, by))
    else:
        print_data(as_json(found, by), output)
    return FOUND if found.failure is None else NOT_FOUND


def as_json(found: Resolution, proxy: str = "") -> dict[str, Any]:
    """The answer as a document; ``proxy`` is the proxy on the way to a cloud API."""
    document: dict[str, Any] = {
        "name": found.name,
        "steps": [
            {
                "source": step.source.value,
                "outcome": step.outcome.value,
                "detail": step.detail,
                "addresses": list(step.addresses),
            }
            for step in found.steps
        ],
    }
    if found.failure is not None:
        return {**document, "failure": found.failure.value, "detail": found.detail}
    dialed = list(found.addresses) or [found.host]
    return {**document, "way": _way(found, proxy), "dialed": dialed}


def _way(found: Resolution, proxy: str) -> str:
    from isthmus.dial.rules_name_order import Way

    if found.way is not Way.PROXIED:
        return str(found.way.value)
    return f"by the proxy {proxy}" if proxy else Way.DIRECT.value


def _text(found: Resolution, proxy: str) -> str:
    rows = [("asked", "outcome", "addresses", "detail")]
    rows += [
        (step.source.value, step.outcome.value, ", ".join(step.addresses), one_line(step.detail))
        for step in found.steps
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    if found.failure is not None:
        last = f"not reached: {found.failure.value}: {one_line(found.detail)}"
    else:
        last = f"dialed {_way(found, proxy)}: {', '.join(found.addresses) or found.host}"
    return "\n".join([line.rstrip() for line in lines] + ["", last])


class _ResolveCommand(FlagCommand):
    """A command that has its own flags and those of the sidecars."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own flags first."""
        flags = {option.attribute for option in self.declared}
        own = [p for p in self.params if isinstance(p, click.Option) and p.name not in flags]
        with formatter.section("Resolving"):
            formatter.write_dl([row for row in (p.get_help_record(ctx) for p in own) if row])
        super().format_options(ctx, formatter)


command = _ResolveCommand(
    "resolve",
    _declared(),
    """\
isthmus resolve api.openshift-oauth-apiserver.svc --resolve-from-guest-cluster-dns
isthmus resolve ldap.example.com --sidecar=https --kubeconfig=guest.kubeconfig""",
    callback=_run,
    help="""Explain how a sidecar resolves and reaches a name

    The flags are those of the sidecar. Shows each step with its result, and then what would be
    dialed, and how. The exit code is 0 if there is an address to dial, 1 if the name is not found
    and 2 if a flag or file is wrong.""",
)
command.params = [
    click.Argument(["name"], metavar="NAME", callback=filled),
    click.Option(
        ["--sidecar"],
        type=click.Choice(list(_SETTINGS)),
        default=SOCKS5,
        show_default=True,
        help="Resolve as this sidecar does",
    ),
    output_parameter(),
    *command.params,
]
