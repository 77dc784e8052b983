"""``isthmus dashboard``: one page for several programs, on loopback."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from isthmus.frame.cli.tables import filled
from isthmus.tools.watching.admin_flags import AdminFlags, admin_options

if TYPE_CHECKING:
    from isthmus.frame.dashboard.source import AdminCredentials, Remote

#: The first port after those of the programs, which end at 8103.
DEFAULT_PORT = 8104


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@admin_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    metavar="PORT",
    help="Port to serve the page on; 0 takes a free port",
)
@click.option(
    "--bind-address",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    callback=filled,
    help="Loopback address to serve the page on",
)
def dashboard(admin: AdminFlags, port: int, bind_address: str) -> int:
    """Serve one page that shows several running programs

    Each --admin is the admin port of a server, an agent or another Isthmus program, which also
    serves its own page under /ui/. Only the user who started the command, and root, may open the
    page.

    \b
    Example:
      isthmus dashboard
      isthmus dashboard --admin=http://127.0.0.1:8095 --admin=http://127.0.0.1:8094
    """
    import asyncio

    import uvloop

    remotes = [_remote(admin, client.url, client.address) for client in admin.clients()]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(remotes, bind_address, port))
    return 0


def _remote(admin: AdminFlags, url: str, address: str) -> Remote:
    from isthmus.client.admin import explain
    from isthmus.frame.dashboard.source import Remote

    https = url.startswith("https:")
    return Remote(
        url=url,
        address=address,
        credentials=partial(_credentials, admin, https),
        explain=lambda exc: explain(exc, https=https)[1],
    )


def _credentials(admin: AdminFlags, https: bool) -> AdminCredentials:
    """Read the current content of the files."""
    from isthmus.client.admin import read_token
    from isthmus.frame.dashboard.source import AdminCredentials
    from isthmus.net.contexts import TlsFiles, client_context

    headers = {}
    if admin.token_file:
        headers["Authorization"] = f"Bearer {read_token(admin.token_file)}"
    if not https:
        return AdminCredentials(headers=headers)
    files = TlsFiles(
        cert=admin.cert,
        key=admin.key or admin.cert,  # one file may have both
        ca=admin.cacert,
        labels=("--cert", "--key", "--cacert"),
    )
    return AdminCredentials(context=client_context(files), headers=headers)


async def _serve(remotes: list[Remote], host: str, port: int) -> None:
    from isthmus.frame.admin.ports import AdminAccess, serve
    from isthmus.frame.dashboard.merging import MergedFeed
    from isthmus.frame.dashboard.routes import not_ours, page

    feed = MergedFeed(remotes)
    made = page(feed, feed.end, admit=not_ours)
    opened = await serve(
        made.routes, host=host, port=port, host_flag="--bind-address", port_flag="--port",
        access=AdminAccess(open_paths=made.open_paths),
    )  # fmt: skip
    shown = f"[{host}]" if ":" in host else host
    click.echo(
        f"dashboard at http://{shown}:{opened.number}/ui/ of {_named(remotes)}; Ctrl-C ends it"
    )
    try:
        await _wait_for_signal()
    finally:
        made.close()
        await opened.close()


def _named(remotes: list[Remote]) -> str:
    return ", ".join(remote.address for remote in remotes)


async def _wait_for_signal() -> None:
    import asyncio
    import signal

    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()
