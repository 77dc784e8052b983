"""The routes of ``isthmus sni-router --config``, read again when their file changes."""

from __future__ import annotations

import logging

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.net.followed_file import FollowedFile, read_text
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.programs.sni_router.rules import RoutingTable

_log = logging.getLogger("isthmus.sni")


def follow_routes(path: str, metrics: SniRouterMetrics) -> FollowedFile[RoutingTable]:
    """Read the routes; ask ``current`` of the answer for each connection.

    Connections that are open stay open whatever new routes say.

    Raises:
        ConfigError: the file cannot be read or is wrong.
    """

    def taken(table: RoutingTable) -> None:
        metrics.reloads += 1
        log(
            _log, logging.INFO, "routes reloaded", file=path, routes=len(table.routes),
            hosts=table.hosts,
        )  # fmt: skip

    def failed(error: ConfigError) -> None:
        metrics.reload_failures += 1
        first, *more = str(error).splitlines()
        log(
            _log, logging.WARNING, "the changed routes are wrong, the old ones stay in use",
            error=first, more=len(more),
        )  # fmt: skip

    return FollowedFile(path, read_routes, taken=taken, failed=failed)


def read_routes(path: str, *, what: str = "--config ") -> RoutingTable:
    """Read a file with routes; ``what`` stands before its name when it cannot be read.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.programs.sni_router.settings_routes import parse  # YAML is slow to import

    return parse(read_text(path, what=what), path)
