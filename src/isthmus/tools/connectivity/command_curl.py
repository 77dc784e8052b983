"""``isthmus curl``: one request over the connectivity service, for debugging."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError, unreadable
from isthmus.frame.cli.tables import filled
from isthmus.tools.connectivity.command_dialing import way_options

if TYPE_CHECKING:
    import ssl

    from isthmus.client.http1 import ClientRequest

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.6.2
_VALUE = re.compile(r"[\t -~]*")
_MOST_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CurlFlags:
    """The flags of the command, as click gives them."""

    path: str | None
    network: str | None
    timeout_s: float
    include: bool
    headers: tuple[str, ...]
    data: str | None
    method: str | None
    cacert: str | None
    insecure: bool
    verbose: bool


@click.command(
    name="curl",
    short_help="Fetch a URL through the connectivity service",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("url", metavar="URL")
@way_options(whose="the URL's host", until="the whole answer")
@click.option("-i", "--include", is_flag=True, help="Print the head of the answer as well")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="Header to send"
)
@click.option(
    "-d", "--data", metavar="DATA", help="Data to send by POST; @FILE is a file, @- standard input"
)
@click.option("-X", "--request", "method", metavar="METHOD", callback=filled, help="HTTP method")
@click.option(
    "--cacert",
    metavar="FILE",
    callback=filled,
    help="CAs that certificates of https admin ports must come from",
)
@click.option("-k", "--insecure", is_flag=True, help="Accept any certificate of the target")
def command(url: str, **given: Any) -> int:
    """Fetch a URL through the connectivity service

    The body of the answer is written to standard output, whatever its status. Exit code 1 if there
    was no answer. It speaks HTTP/1.1 and follows no redirect.

    \b
    Example:
      isthmus curl http://demo.internal/
      isthmus curl http://10.0.0.5:8080/healthz --config connectivity.yaml
      isthmus curl https://10.0.0.5/api -i -v --config c.yaml --network cluster --cacert ca.crt
    """
    from isthmus.client.http1 import ClientRequest, Url
    from isthmus.tools.connectivity.command_dialing import configuration, run

    flags = CurlFlags(**given)
    try:
        where = Url.parse(url)
    except ValueError as exc:
        raise ConfigError(f"URL: {exc}") from exc
    if flags.method is not None and not _TOKEN.fullmatch(flags.method):
        raise ConfigError(f"-X {flags.method!r}: not an HTTP method")
    request = ClientRequest(
        method=flags.method or ("GET" if flags.data is None else "POST"),
        url=where,
        headers=[_header(text) for text in flags.headers],
        body=None if flags.data is None else _body(flags.data),
    )
    context = _trust(flags.cacert, flags.insecure) if where.https else None
    return run(_fetch(request, configuration(flags.path), flags, context))


async def _fetch(
    request: ClientRequest, path: str, flags: CurlFlags, context: ssl.SSLContext | None
) -> int:
    import asyncio

    from isthmus.client import ConnectivityService, start_tls
    from isthmus.client.http1 import ClientExchange
    from isthmus.client.tls import ByteStream
    from isthmus.tools.connectivity.command_dialing import Teller, dial

    tell = Teller(flags.verbose)
    target = request.url.target
    async with (
        ConnectivityService.from_file(path) as service,
        asyncio.timeout(flags.timeout_s),
    ):
        connection = await dial(service, target, flags.network, flags.timeout_s, tell)
        try:
            stream: ByteStream = connection
            if context is not None:
                secured = await start_tls(connection, context, target.host.rstrip("."))
                tell(f"TLS with the target: {secured.get_extra_info('ssl_object').version()}")
                stream = secured
            exchange = ClientExchange(stream)
            await exchange.begin(request)
            tell(f"answered: {exchange.line}")
            if flags.include:
                head = [exchange.line, *(f"{name}: {value}" for name, value in exchange.headers)]
                _write("\r\n".join([*head, "", ""]).encode("latin-1"))
            async for piece in exchange.body():
                await asyncio.to_thread(_write, piece)
        except BaseException:
            connection.abort()
            raise
        await stream.close(grace_s=0.0)
    return 0


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not _TOKEN.fullmatch(name):
        raise ConfigError(f"-H {text!r}: not a header, which is NAME: VALUE")
    if not _VALUE.fullmatch(value):
        raise ConfigError(f"-H {text!r}: only printable ASCII characters are allowed")
    return name, value


def _body(data: str) -> bytes:
    if not data.startswith("@"):
        return data.encode()
    try:
        if data == "@-":
            body = sys.stdin.buffer.read(_MOST_BODY_BYTES + 1)
        else:
            with open(data[1:], "rb") as file:
                body = file.read(_MOST_BODY_BYTES + 1)
    except OSError as exc:
        raise unreadable(f"-d {data}", exc) from exc
    if len(body) > _MOST_BODY_BYTES:
        raise ConfigError(f"-d {data}: more than {_MOST_BODY_BYTES} bytes")
    return body


def _trust(cacert: str | None, insecure: bool) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=cacert)
    except OSError as exc:
        raise ConfigError(f"--cacert {cacert}: contains no readable certificates: {exc}") from exc
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
