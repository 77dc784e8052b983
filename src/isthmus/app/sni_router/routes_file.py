"""The routes of ``isthmus sni-router --config``, read again when their file changes."""

from __future__ import annotations

import asyncio
import logging
import os

from isthmus.core.sni import RoutingTable
from isthmus.errors import ConfigError
from isthmus.observe.logs import log
from isthmus.observe.sni_metrics import SniRouterMetrics

LOOK_S = 1.0
_log = logging.getLogger("isthmus.sni")


class RoutesFile:
    """Routes that follow their file: ask ``current`` for each connection.

    Connections that are open stay open whatever new routes say. A file that is gone or not right
    changes nothing, and is said once, in one line.
    """

    def __init__(self, path: str, metrics: SniRouterMetrics) -> None:
        """Read the routes.

        Raises:
            ConfigError: the file cannot be read or is wrong.
        """
        self._path = path
        self._metrics = metrics
        self._stamp = _stamp(path)
        self.current = read_routes(path)

    async def watch(self, look_s: float = LOOK_S) -> None:
        """Follow the file for ever."""
        while True:
            await asyncio.sleep(look_s)
            await self.check()

    async def check(self) -> None:
        """Look at the file, and read it if it changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            # A long file takes its time, and every connection would wait for it.
            table = await asyncio.to_thread(read_routes, self._path)
        except ConfigError as exc:
            self._metrics.reload_failures += 1
            first, *more = str(exc).splitlines()
            log(
                _log, logging.WARNING, "the changed routes are wrong, the old ones stay in use",
                error=first, more=len(more),
            )  # fmt: skip
        else:
            if stamp != _stamp(self._path):
                return  # replaced while we read: the next look gets it whole
            self.current = table
            self._metrics.reloads += 1
            log(
                _log, logging.INFO, "routes reloaded", file=self._path, routes=len(table.routes),
                hosts=table.hosts,
            )  # fmt: skip
        self._stamp = stamp


def read_routes(path: str, *, what: str = "--config ") -> RoutingTable:
    """Read a file with routes; ``what`` stands before its name when it cannot be read.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.config.sni_routes import parse  # YAML is slow to import

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not UTF-8, or no path"
        raise ConfigError(f"{what}{path}: {why}") from exc
    return parse(text, path)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return None
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
