"""The paths of the health and admin ports, made from what a program provides.

Paths and statuses are konnectivity's where it has them. guard.py has admitted a request before
anything here is called. The profiles are in debug_routes.py, the dashboard in
isthmus.frame.dashboard; frame/operator_ports.py puts all of them together.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from isthmus import __version__
from isthmus.frame.admin.answers import (
    HEADERS,
    POST,
    Checks,
    Handler,
    Metrics,
    RecentRecords,
    Routes,
    Snapshot,
    Watched,
    asked_limit,
    bad_limit,
    json_reply,
    reply,
    settled,
)
from isthmus.frame.admin.guard import current_operator, host_only
from isthmus.frame.audit.log import RECENT_RECORDS
from isthmus.frame.model.history import STEP_S, History, step_json
from isthmus.frame.model.snapshot import json_chunks, to_json
from isthmus.logs import RECENT, RECENT_LINES, log
from isthmus.settings.options import shown_flags
from isthmus.values import TunnelId

DEFAULT_TUNNELS = 1000
MAX_TUNNELS = 100_000
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The path of the change; the star is the tunnel's number.
END_PATH = "/tunnels/*/end"
_MOST_DIGITS = 18
_log = logging.getLogger("isthmus.ports")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a program reports a failed check; ``lines``: always with one line per check."""

    failed_status: int
    lines: bool


#: Like konnectivity's server, and like its agent.
SERVER = Style(failed_status=500, lines=False)
AGENT = Style(failed_status=503, lines=True)


def probe_routes(live: Checks, ready: Checks, style: Style = SERVER) -> Routes:
    """The paths of probes."""
    # A program that fails liveness is killed: always name the failed check, as kube-apiserver does.
    liveness = partial(_probe, live, style.failed_status, True)
    readiness = partial(_probe, ready, style.failed_status, style.lines)
    return {
        "/healthz": liveness,
        "/livez": liveness,
        "/readyz": readiness,
        "/ready": readiness,  # deprecated in konnectivity, and still probed
    }


def metrics_route(metrics: Metrics, open_metrics: Metrics | None = None) -> Handler:
    """The handler of ``/metrics``."""
    return partial(_metrics, metrics, open_metrics)


def health_routes(watched: Watched, style: Style = SERVER) -> Routes:
    """The paths of a health port: nothing confidential."""
    metrics = metrics_route(watched.metrics, watched.open_metrics)
    return {**probe_routes(watched.live, watched.ready, style), "/metrics": metrics}


def admin_routes(
    watched: Watched, style: Style = SERVER, *, metrics_at: int = 0, by_tls: bool = False
) -> Routes:
    """The paths of an admin port; ``metrics_at`` is the port that metrics redirect to."""
    routes: dict[str, Handler] = {
        **health_routes(watched, style),
        "/snapshot": partial(_snapshot, watched.snapshot),
        "/history": partial(_history, watched.history),
        "/audit": partial(_audit, watched.records),
        "/logs": _logs,
        "/configz": partial(_configz, watched),
        f"{POST}{END_PATH}": partial(end_named, watched),
    }
    if metrics_at:
        routes["/metrics"] = partial(_redirect, metrics_at, by_tls)
    return routes


async def _probe(
    ask: Checks, failed_status: int, always_lines: bool, request: web.BaseRequest
) -> web.Response:
    checks = ask()
    failures = [check.failure for check in checks if check.failure]
    lines = "".join(
        f"[-]{check.name} failed: {check.failure}\n" if check.failure else f"[+]{check.name} ok\n"
        for check in checks
    )
    verbose = "verbose" in request.query
    if failures:
        return reply(failed_status, lines if verbose or always_lines else "; ".join(failures))
    return reply(200, f"{lines}check passed\n" if verbose else "ok")


async def _metrics(
    metrics: Metrics, open_metrics: Metrics | None, request: web.BaseRequest
) -> web.Response:
    headers = {**HEADERS, "Content-Type": METRICS_TYPE, "Vary": "Accept"}
    if open_metrics is None or "application/openmetrics-text" not in request.headers.get(
        "Accept", ""
    ):
        return web.Response(body=await settled(metrics()), headers=headers)
    headers["Content-Type"] = OPEN_METRICS_TYPE
    return web.Response(body=await settled(open_metrics()), headers=headers)


async def _redirect(health_port: int, by_tls: bool, request: web.BaseRequest) -> web.Response:
    host = host_only(request.headers.get("Host", "")) or "127.0.0.1"
    authority = f"[{host}]:{health_port}" if ":" in host else f"{host}:{health_port}"
    # konnectivity leaves out the scheme, which is then that of the request.
    scheme = "" if request.secure == by_tls else "https:" if by_tls else "http:"
    response = reply(301, "moved permanently to the health port\n")
    response.headers["Location"] = f"{scheme}//{authority}{request.path_qs}"
    return response


async def _snapshot(snapshot: Snapshot, request: web.BaseRequest) -> web.Response:
    limit = asked_limit(request, default=DEFAULT_TUNNELS, most=MAX_TUNNELS)
    if limit is None:
        return bad_limit(MAX_TUNNELS)
    pieces: list[str] = []
    for piece in json_chunks(await settled(snapshot(limit))):
        pieces.append(piece)
        # Let tunnels continue while a large snapshot is written.
        await asyncio.sleep(0)
    return json_reply("".join(pieces))


async def _history(history: History, request: web.BaseRequest) -> web.Response:
    steps = [step_json(step) for step in history.steps()]
    return json_reply(
        json.dumps({"kind": "History", "stepSeconds": int(STEP_S), "steps": steps}) + "\n"
    )


async def _audit(records: RecentRecords | None, request: web.BaseRequest) -> web.Response:
    limit = asked_limit(request, default=RECENT_RECORDS, most=RECENT_RECORDS)
    if limit is None:
        return bad_limit(RECENT_RECORDS)
    lines = records(0, limit)[0] if records is not None else []
    head = b'{"kind": "AuditRecords", "enabled": %b, "records": ['
    found = b", ".join(line.strip() for line in reversed(lines))
    return json_reply(head % (b"true" if records is not None else b"false") + found + b"]}\n")


async def _logs(request: web.BaseRequest) -> web.Response:
    limit = asked_limit(request, default=RECENT_LINES, most=RECENT_LINES)
    if limit is None:
        return bad_limit(RECENT_LINES)
    return json_reply(b'{"kind": "LogLines", "lines": [' + b", ".join(RECENT.last(limit)) + b"]}\n")


async def _configz(watched: Watched, request: web.BaseRequest) -> web.Response:
    shown = {
        "kind": "Configuration",
        "program": watched.program,
        "instance": watched.instance,
        "version": __version__,
        "pid": os.getpid(),
        "startedAt": to_json(watched.started_at),
        "flags": shown_flags(watched.settings),
    }
    return json_reply(json.dumps(shown) + "\n")


async def end_named(watched: Watched, request: web.BaseRequest) -> web.Response:
    """End the tunnel named in the path."""
    number = request.path.split("/")[2]
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        return reply(400, "the tunnel id must be a whole number\n")
    return await end_tunnel(watched, request, TunnelId(int(number)))


async def end_tunnel(watched: Watched, request: web.BaseRequest, tunnel: TunnelId) -> web.Response:
    """End a tunnel for the current operator."""
    if watched.end_tunnel is None:
        return reply(404, "this program has no tunnels\n")
    operator = current_operator()
    connection_id = await settled(watched.end_tunnel(tunnel, operator))
    if connection_id is None:
        return reply(404, f"no such tunnel: {tunnel}\n")
    log(
        _log, logging.WARNING, "tunnel ended by an operator", tunnel=tunnel,
        connection=connection_id, operator=operator,
    )  # fmt: skip
    return json_reply(json.dumps({"ended": tunnel, "connectionId": connection_id}) + "\n")
