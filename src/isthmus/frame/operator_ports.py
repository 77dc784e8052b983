"""The health and admin ports of a program, opened in one place for all of them.

What they show comes as a Watched; the paths are frame/admin/routes.py, the profiles
frame/admin/debug_routes.py and the page isthmus.dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from isthmus.frame.admin.answers import Routes
from isthmus.frame.admin.debug_routes import debug_routes
from isthmus.frame.admin.ports import Port, serve
from isthmus.frame.admin.routes import SERVER, Style, admin_routes, health_routes
from isthmus.frame.admin.tls import admin_tls, say_refused
from isthmus.frame.admin.token import TokenFile
from isthmus.frame.admin.watched import Watched
from isthmus.frame.dashboard.routes import dashboard_routes
from isthmus.frame.handed import Handed
from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext
from isthmus.net.http_site import Refused
from isthmus.settings.admin import AdminSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a port is to be, as flags say it; port 0 is any free one."""

    host: str
    port: int
    host_flag: str = "health-bind-address"
    port_flag: str = "health-port"


class OperatorPorts:
    """The two ports. ``open_ones`` are those that are open, by the flag of their number.

    ``tls`` is None without --admin-cert; whoever owns this follows its files.
    """

    def __init__(
        self,
        settings: AdminSettings,
        *,
        once: OncePer,
        refused: Refused | None = None,
        min_version: str = "",
        suites: tuple[str, ...] = (),
        handed: Handed | None = None,
    ) -> None:
        """Read the admin port's files; ``refused`` hears of handshakes that failed, as the log.

        In a worker, which is ``handed`` its connections, no port is opened: its parent has them.

        Raises:
            ConfigError: one of them is wrong.
        """
        self._settings = settings
        self._once = once
        self._refused = refused
        self._handed = handed
        self.tls: HotContext | None = admin_tls(settings, min_version=min_version, suites=suites)
        path = settings.admin_token_file
        self._token = TokenFile(path) if path and handed is None else None
        self._open_paths: Collection[str] = ()
        self._close_page: Callable[[], None] | None = None
        self.open_ones: dict[str, Port] = {}
        self.health = self.admin = 0

    async def open(
        self,
        watched: Watched,
        *,
        health: Door,
        admin_port: int,
        admin_flag: str = "admin-port",
        style: Style = SERVER,
        metrics_on_admin: bool = True,
        own: Routes | None = None,
    ) -> None:
        """Open both; ``health`` and ``admin`` are their numbers then.

        The routes of a program's ``own`` come in place of those that all have.

        Raises:
            ConfigError: one cannot be bound.
        """
        if self._handed is not None:
            self._handed.watched = watched
            return
        own = own or {}
        usual = health_routes(watched, style)
        opened = self.open_ones[health.port_flag] = await serve(
            {path: own.get(path, handler) for path, handler in usual.items()},
            host=health.host,
            port=health.port,
            host_flag=f"--{health.host_flag}",
            port_flag=f"--{health.port_flag}",
        )
        self.health = opened.number
        opened = self.open_ones[admin_flag] = await serve(
            {**self._admin_routes(watched, style, 0 if metrics_on_admin else self.health), **own},
            host=self._settings.admin_bind_address,
            port=admin_port,
            host_flag="--admin-bind-address",
            port_flag=f"--{admin_flag}",
            tls=self.tls,
            refused=self._say_refused,
            admin=True,
            admits=self._settings.admits_operators,
            token=self._token,
            open_paths=self._open_paths,
        )
        self.admin = opened.number

    def _admin_routes(self, watched: Watched, style: Style, metrics_at: int) -> Routes:
        page = dashboard_routes(watched)
        self._open_paths, self._close_page = page.open_paths, page.close
        return {
            **admin_routes(watched, style, metrics_at=metrics_at),
            **debug_routes(self._settings.enable_profiling),
            **page.routes,
        }

    def _say_refused(self, error: OSError) -> None:
        if self._refused is not None:
            self._refused(error)
        say_refused(self._once, error)

    async def close(self) -> None:
        """Close what is open; the page first, whose streams a port would wait for."""
        if self._close_page is not None:
            self._close_page()
        for port in self.open_ones.values():
            await port.close()
