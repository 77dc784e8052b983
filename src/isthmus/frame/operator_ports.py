"""The health and admin ports of a program, opened in the same way for all programs.

Their data comes as a Watched; the paths are frame/admin/routes.py, the profiles
frame/admin/debug_routes.py and the page isthmus.dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypedDict

from isthmus.frame.admin.answers import Routes, Watched
from isthmus.frame.admin.debug_routes import debug_routes
from isthmus.frame.admin.guard import OperatorToken, admin_tls, health_tls, say_refused
from isthmus.frame.admin.ports import AdminAccess, Port, PortAccess, serve
from isthmus.frame.admin.routes import AGENT, SERVER, Style, admin_routes, health_routes
from isthmus.frame.dashboard.routes import dashboard_routes
from isthmus.frame.part import Handed
from isthmus.frame.program import OperatorFlags
from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext
from isthmus.net.http_site import Refused
from isthmus.settings.options import options_of
from isthmus.settings.program import CarrierSettings


class VersionsOfTls(TypedDict):
    """The TLS settings, as arguments of ``admin_tls`` and ``health_tls``."""

    min_version: str
    suites: Sequence[str]


class OperatorPorts:
    """The two ports. ``open_ones`` are the open ones, by the flag of their number.

    ``contexts`` are those of --health-cert and --admin-cert, if they are set; the owner follows
    their files.
    """

    def __init__(
        self,
        settings: CarrierSettings,
        *,
        once: OncePer,
        refused: Refused | None = None,
        handed: Handed | None = None,
    ) -> None:
        """Read the files of both; ``refused`` is called for failed handshakes at the admin port.

        A worker, which has ``handed``, opens no port: its parent has them.

        Raises:
            ConfigError: one of them is wrong.
        """
        self._settings = settings
        self._once = once
        self._refused = refused
        self._handed = handed
        self._health_tls = open_health_tls(settings)
        self._admin_tls = admin_tls(settings.admin, **_versions(settings))
        found = (self._health_tls, self._admin_tls)
        self.contexts: list[HotContext] = [it for it in found if it is not None]
        path = settings.admin.token_file
        self._token = OperatorToken(path) if path and handed is None else None
        self._open_paths: Collection[str] = ()
        self._close_page: Callable[[], None] | None = None
        self.open_ones: dict[str, Port] = {}
        self.health = self.admin = 0

    async def open(
        self, watched: Watched, flags: OperatorFlags, *, own: Routes | None = None
    ) -> None:
        """Open both; ``health`` and ``admin`` are their numbers then.

        A program's ``own`` routes replace the common ones.

        Raises:
            ConfigError: one cannot be bound.
        """
        if self._handed is not None:
            self._handed.watched = watched
            return
        settings, own = self._settings, own or {}
        style = _style(flags)
        named = _flags_by_field(settings)
        admin = settings.admin
        health_flag, admin_flag = named["health_port"], named["port"]
        opened = self.open_ones[health_flag] = await open_health(
            settings, watched, flags, own=own, access=self._health_access()
        )
        self.health = opened.number
        metrics_at = self.health if flags.as_agent else 0
        opened = self.open_ones[admin_flag] = await serve(
            {**self._admin_routes(watched, style, metrics_at), **own},
            host=admin.bind_address,
            port=admin.port,
            host_flag="--admin-bind-address",
            port_flag=f"--{admin_flag}",
            access=AdminAccess(
                tls=self._admin_tls,
                refused=self._say_refused,
                admits=admin.admits_operators,
                token=self._token,
                open_paths=self._open_paths,
            ),
        )
        self.admin = opened.number

    def _health_access(self) -> PortAccess:
        refused = partial(say_refused, self._once, port="health")
        return PortAccess(tls=self._health_tls, refused=refused)

    def _admin_routes(self, watched: Watched, style: Style, metrics_at: int) -> Routes:
        page = dashboard_routes(watched)
        self._open_paths, self._close_page = page.open_paths, page.close
        return {
            **admin_routes(
                watched, style, metrics_at=metrics_at, by_tls=self._health_tls is not None
            ),
            **debug_routes(self._settings.admin.enable_profiling),
            **page.routes,
        }

    def _say_refused(self, error: OSError) -> None:
        if self._refused is not None:
            self._refused(error)
        say_refused(self._once, error)

    async def close(self) -> None:
        """Close everything; the dashboard first, because a port would wait for its streams."""
        if self._close_page is not None:
            self._close_page()
        for port in self.open_ones.values():
            await port.close()


def open_health_tls(settings: CarrierSettings) -> HotContext | None:
    """Read the health port's files; None without --health-cert.

    Raises:
        ConfigError: one of them is wrong.
    """
    admin = settings.admin
    return health_tls(admin.health_cert, admin.health_key, **_versions(settings))


def _versions(settings: CarrierSettings) -> VersionsOfTls:
    """Only the server has flags for these."""
    return {
        "min_version": getattr(settings, "tls_min_version", ""),
        "suites": getattr(settings, "cipher_suites", ()),
    }


async def open_health(
    settings: CarrierSettings,
    watched: Watched,
    flags: OperatorFlags,
    *,
    access: PortAccess,
    own: Routes | None = None,
) -> Port:
    """Open the health port alone; a program's ``own`` routes replace the common ones.

    Raises:
        ConfigError: it cannot be bound.
    """
    named, own = _flags_by_field(settings), own or {}
    admin = settings.admin
    return await serve(
        {path: own.get(path, it) for path, it in health_routes(watched, _style(flags)).items()},
        host=admin.health_bind_address,
        port=admin.health_port,
        host_flag=f"--{named['health_bind_address']}",
        port_flag=f"--{named['health_port']}",
        access=access,
    )


def _style(flags: OperatorFlags) -> Style:
    return AGENT if flags.as_agent else SERVER


def _flags_by_field(settings: CarrierSettings) -> dict[str, str]:
    """The names of the ports' flags, which differ in each program."""
    return {it.field: it.flag for it in options_of(type(settings)) if it.block == "admin"}
