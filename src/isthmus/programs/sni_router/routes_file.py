"""The routes of ``isthmus sni-router --config``, read again when their file changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.part import LongTask, Part
from isthmus.logs import log
from isthmus.net.files import FollowedFile, read_text
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.programs.sni_router.rules import RoutingTable

_log = logging.getLogger("isthmus.sni")


class RoutesPart(Part):
    """The routes in use. Open connections stay open when routes change."""

    def __init__(self, path: str, metrics: SniRouterMetrics) -> None:
        self._path = path
        self._metrics = metrics
        self._file: FollowedFile[RoutingTable] | None = None

    @property
    def table(self) -> RoutingTable:
        """The routes for a new connection; only after ``prepare``."""
        assert self._file is not None
        return self._file.current

    @override
    async def prepare(self) -> None:
        self._file = FollowedFile(
            self._path, read_routes, taken=self._taken, failed=self._reload_failed
        )

    async def check(self) -> None:
        """Read the file again now if it has changed."""
        assert self._file is not None
        await self._file.check()

    @override
    def start(self) -> None:
        self._metrics.routes = lambda: len(self.table.routes)

    @override
    def tasks(self) -> Iterable[LongTask]:
        assert self._file is not None
        yield "routes", self._file.watch()

    @override
    def serving(self) -> dict[str, Any]:
        return {"routes": len(self.table.routes), "hosts": self.table.hosts}

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"config": self._path}

    def _taken(self, table: RoutingTable) -> None:
        self._metrics.reloads += 1
        log(
            _log, logging.INFO, "routes reloaded", file=self._path, routes=len(table.routes),
            hosts=table.hosts,
        )  # fmt: skip

    def _reload_failed(self, error: ConfigError) -> None:
        self._metrics.reload_failures += 1
        first, *more = str(error).splitlines()
        log(
            _log, logging.WARNING, "cannot use the changed routes, keeping the previous ones",
            error=first, more=len(more),
        )  # fmt: skip


def read_routes(path: str, *, what: str = "--config ") -> RoutingTable:
    """Read a file with routes; errors put ``what`` before its name.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.programs.sni_router.settings_routes import parse  # YAML is slow to import

    return parse(read_text(path, what=what), path)
