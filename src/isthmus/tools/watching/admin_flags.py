"""The flags of every command that queries admin ports: addresses, credentials, output format."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import JSON, TEXT, WIDE, YAML, filled
from isthmus.programs import programs

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient, Reach
    from isthmus.tools.doctor.bundle_parts import BundlePart

_F = TypeVar("_F", bound=Callable[..., Any])

#: The default admin ports of programs, in the order in which they are shown.
PROGRAM_PORTS = {it.admin_port: it.name for it in programs() if it.admin_port}
#: The values of -o for tables that can have more columns.
FORMATS_OF_TABLES = (TEXT, WIDE, JSON, YAML)
_LOOK_S = 2.0
#: The entry of click's ``meta`` that replaces AdminFlags with another way to find programs.
FINDER = "isthmus.tools.watching.finder"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminFlags:
    """The admin ports to query and the credentials for them, as typed."""

    urls: tuple[str, ...] = ()
    cacert: str = ""
    cert: str = ""
    key: str = ""
    token_file: str = ""

    @property
    def named(self) -> bool:
        """Whether programs were named rather than searched for."""
        return bool(self.urls)

    @property
    def chosen_by(self) -> str:
        """The flag that chooses one program."""
        return "--admin"

    def surroundings(self) -> Iterator[BundlePart]:
        """What a support bundle has in addition to programs: this machine."""
        from isthmus.tools.doctor.bundle_parts import machine_parts

        return machine_parts(os.environ)

    def clients(self, *, timeout_s: float = 5.0) -> list[AdminClient]:
        """A client for each --admin, in order; without any, for the programs that run here.

        Raises:
            ConfigError: a flag or a file is wrong, or no program was named and none runs here.
        """
        if self.urls:
            return [self.client(url, timeout_s=timeout_s) for url in dict.fromkeys(self.urls)]
        found = self._look_at(PROGRAM_PORTS, timeout_s)
        if not found:
            from isthmus.tools.up.state import told_admin_ports

            found = self._look_at(told_admin_ports(os.environ), timeout_s)
        if not found:
            ports = ", ".join(f"{port} ({name})" for port, name in PROGRAM_PORTS.items())
            raise ConfigError(
                f"no Isthmus program is running here (tried ports {ports});"
                " name one with --admin=URL"
            )
        return found

    def client(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        token: bool = True,
        reach: Reach | None = None,
    ) -> AdminClient:
        """A client for one URL with these files, with or without ``token``; connects by ``reach``.

        Raises:
            ConfigError: the URL or a file cannot be used.
        """
        from isthmus.client.admin import AdminClient, read_token

        # Read in any case: a missing file is an error even if the token is not sent.
        known = read_token(self.token_file) if self.token_file else ""
        return AdminClient(
            url,
            cacert=self.cacert,
            cert=self.cert,
            key=self.key,
            token=known if token else "",
            timeout_s=timeout_s,
            reach=reach,
        )

    def _look_at(self, ports: Iterable[int], timeout_s: float) -> list[AdminClient]:
        looks = (self._look(port, timeout_s) for port in ports)
        return [client for client in looks if client is not None]

    def _look(self, port: int, timeout_s: float) -> AdminClient | None:
        """A client for a port here; None if no Isthmus program listens there."""
        from isthmus.client.admin import AdminError, Trouble

        address = f"127.0.0.1:{port}"
        for scheme in ("http", "https"):
            # With https the certificate proves which program answers.
            token = scheme == "https" or self._may_be_shown_token(port)
            url = f"{scheme}://{address}"
            client = self.client(url, timeout_s=min(timeout_s, _LOOK_S), token=token)
            try:
                kind = str(client.get("/snapshot?limit=0").get("kind"))
            except AdminError as error:
                match error.why:
                    case Trouble.REFUSED | Trouble.NOT_FOUND | Trouble.STATUS | Trouble.NOT_JSON:
                        return None
                    case Trouble.NOT_HTTP if scheme == "http":
                        continue
                    case Trouble.NOT_HTTP:
                        return None
                    case Trouble.UNAUTHORIZED if not token and self.token_file:
                        click.echo(
                            f"isthmus: {address} is not shown the token, which its user may not"
                            f" read; name it with --admin={url}",
                            err=True,
                        )
                        return None
                    case _:  # it refuses us: the request of the command will report that
                        pass
            else:
                if not kind.endswith("Snapshot"):
                    return None
            return self.client(url, timeout_s=timeout_s, token=token)
        return None

    def _may_be_shown_token(self, port: int) -> bool:
        if not self.token_file:
            return True

        return may_be_shown(self.token_file, port)


_OPTIONS = (
    click.option(
        "--admin",
        "urls",
        multiple=True,
        metavar="URL",
        envvar="ISTHMUS_ADMIN",
        callback=filled,
        help="Admin port of a program, as http://127.0.0.1:8095; repeatable, env ISTHMUS_ADMIN "
        "[default: the programs that run here on their usual ports, or else those of isthmus up]",
    ),
    click.option(
        "--cacert",
        metavar="FILE",
        callback=filled,
        help="CAs that certificates of https admin ports must come from",
    ),
    click.option(
        "--cert", metavar="FILE", callback=filled, help="TLS certificate shown to the admin port"
    ),
    click.option("--key", metavar="FILE", callback=filled, help="Private key of --cert"),
    click.option(
        "--token-file",
        metavar="FILE",
        callback=filled,
        help="File with the token for the admin port",
    ),
)


def admin_options(function: _F) -> _F:
    """Add the flags for admin ports to a command, which gets them as ``admin``."""

    @wraps(function)
    def bundled(
        *,
        urls: tuple[str, ...],
        cacert: str | None,
        cert: str | None,
        key: str | None,
        token_file: str | None,
        **rest: Any,
    ) -> Any:
        finder = click.get_current_context().meta.get(FINDER, AdminFlags)
        admin = finder(
            urls=urls,
            cacert=cacert or "",
            cert=cert or "",
            key=key or "",
            token_file=token_file or "",
        )
        return function(admin=admin, **rest)

    made: Any = bundled
    for option in reversed(_OPTIONS):
        made = option(made)
    return made  # type: ignore[no-any-return]  # click's options give back what they got


_ROOT = 0


def may_be_shown(token_file: str, port: int) -> bool:
    """Whether every user who listens on this port of the machine may read the file.

    False if no process listens, or if its user is not known.
    """
    from isthmus.tools.doctor.ports import users_of  # slow to import

    users = users_of(port)
    try:
        return bool(users) and all(_may_read(user, os.stat(token_file)) for user in users)
    except (OSError, ValueError):
        return False


def _may_read(user: int, file: os.stat_result) -> bool:
    if user in (_ROOT, os.geteuid(), file.st_uid) or file.st_mode & stat.S_IROTH:
        return True
    return bool(file.st_mode & stat.S_IRGRP) and file.st_gid in _groups(user)


def _groups(user: int) -> list[int]:
    try:
        known = pwd.getpwuid(user)
        return os.getgrouplist(known.pw_name, known.pw_gid)
    except (KeyError, OSError):
        return []
