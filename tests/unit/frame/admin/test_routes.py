"""What the admin port shows besides the snapshot: history, audit records, log lines, flags."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asking import Ask, asking, watched
from hypothesis import given
from hypothesis import strategies as st

import isthmus
from isthmus.frame.admin import routes as routes_module
from isthmus.frame.admin.answers import Watched
from isthmus.frame.admin.routes import admin_routes, health_routes
from isthmus.frame.audit.log import AuditLog
from isthmus.frame.model.history import STEPS, History, Tally
from isthmus.logs import RecentLines, configure, log
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.parsing import load

BAD_LIMITS = ("-1", "x", "", "1e3", "٣", "9" * 30, "1 ", "+1", "0x1")


def asked(program: Watched, talk: Callable[[Ask], Awaitable[None]]) -> None:
    """Serve a program's admin port and talk to it."""

    async def main() -> None:
        async with asking(admin_routes(program), admin=True) as ask:
            await talk(ask)

    asyncio.run(main())


async def json_of(ask: Ask, path: str, **options: Any) -> Any:
    answer = await ask(path, **options)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.headers["Cache-Control"] == "no-store"
    return json.loads(answer.text)


# History.


def test_the_history_is_what_each_step_added() -> None:
    history = History()
    at = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
    times = {0.1: 2, 0.5: 0, math.inf: 0}
    history.take(
        Tally(dials=3, failures={"timed out": 1}, dial_times=times, bytes_to_target=5, tunnels=2),
        at=at,
    )
    failures = {"timed out": 1, "denied by policy": 1}
    times = {math.inf: 4, 0.1: 2, 0.5: 3}
    history.take(
        Tally(dials=4, failures=failures, dial_times=times, bytes_to_target=9, links=1), at=at
    )

    async def talk(ask: Ask) -> None:
        shown = await json_of(ask, "/history")
        assert (shown["kind"], shown["stepSeconds"]) == ("History", 10)
        first, second = shown["steps"]
        assert first == {
            "number": 1, "time": "2026-11-16T12:00:00Z", "dials": 3, "failures": {"timed out": 1},
            "dialTimes": [[0.0, 0.1, 2]],
            "bytesToTarget": 5, "bytesToClient": 0, "tunnels": 2, "agents": 0, "links": 0,
        }  # fmt: skip
        assert (second["number"], second["dials"], second["bytesToTarget"]) == (2, 1, 4)
        assert second["failures"] == {"denied by policy": 1}
        assert second["dialTimes"] == [[0.1, 0.5, 3], [0.5, None, 4]]
        for number in range(STEPS + 5):
            history.take(Tally(dials=number), at=at)
        steps = (await json_of(ask, "/history"))["steps"]
        assert len(steps) == STEPS and steps[-1]["number"] == STEPS + 7

    asked(watched(history=history), talk)


# Audit.


def test_without_an_audit_log_there_are_no_records() -> None:
    async def talk(ask: Ask) -> None:
        shown = await json_of(ask, "/audit")
        assert shown == {"kind": "AuditRecords", "enabled": False, "records": []}

    asked(watched(), talk)


def test_audit_records_are_newest_first(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit.log"), max_bytes=0)
    try:
        for number in range(250):
            audit.put(b'{"n":%d}\n' % number)

        async def talk(ask: Ask) -> None:
            shown = await json_of(ask, "/audit")
            assert shown["enabled"] is True
            assert [it["n"] for it in shown["records"]] == list(range(249, 49, -1))
            shown = await json_of(ask, "/audit?limit=2")
            assert [it["n"] for it in shown["records"]] == [249, 248]
            assert (await json_of(ask, "/audit?limit=0"))["records"] == []
            assert len((await json_of(ask, "/audit?limit=999"))["records"]) == 200

        asked(watched(records=audit.recent), talk)
    finally:
        audit.close()


# Logs.


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecentLines]:
    """A log of this test's own."""
    kept = RecentLines()
    monkeypatch.setattr("isthmus.logs.RECENT", kept)
    monkeypatch.setattr(routes_module, "RECENT", kept)
    loggers = [logging.getLogger(name) for name in ("isthmus", "asyncio", "aiohttp")]
    before = [(it, it.handlers[:], it.level, it.propagate) for it in loggers]
    yield kept
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_log_lines_are_shown_as_json_whatever_is_written(lines: RecentLines, fmt: Any) -> None:
    stream = io.StringIO()
    configure(2, fmt, stream)
    logger = logging.getLogger("isthmus.test")
    log(logger, logging.INFO, "first", token="very secret", peer="a\nb\x1b[31m")
    log(logger, logging.DEBUG, "not at this level")
    log(logger, logging.WARNING, "second", header="Authorization: Bearer abcdefghijklmnop")

    async def talk(ask: Ask) -> None:
        shown = await json_of(ask, "/logs")
        assert shown["kind"] == "LogLines"
        first, second = shown["lines"]
        assert (first["msg"], first["level"], first["logger"]) == ("first", "info", "isthmus.test")
        assert first["token"] == "[redacted]" and first["peer"] == "a\\nb\\x1b[31m"
        assert "abcdefghijklmnop" not in json.dumps(second)
        shown = await json_of(ask, "/logs?limit=1")
        assert [it["msg"] for it in shown["lines"]] == ["second"]
        assert (await json_of(ask, "/logs?limit=0"))["lines"] == []

    asked(watched(), talk)
    assert stream.getvalue().count("\n") == 2
    if fmt == "json":
        assert [json.loads(it) for it in stream.getvalue().splitlines()] == [
            json.loads(it) for it in lines.last(2)
        ]


# Flags.


def test_the_flags_in_effect() -> None:
    settings = load(
        ServerSettings,
        {
            "agent_port": ("8091",),  # the default, but typed
            "cluster_network": ("a=10.0.0.0/8;via=dialer:mine?password=hush&zone=z", "b=10::/16"),
            "keepalive_time_s": ("90s",),
        },
        {},
    )

    async def talk(ask: Ask) -> None:
        shown = await json_of(ask, "/configz")
        assert shown["kind"] == "Configuration"
        assert (shown["program"], shown["instance"]) == ("server", "s1")
        assert (shown["version"], shown["pid"]) == (isthmus.__version__, os.getpid())
        assert datetime.fromisoformat(shown["startedAt"]) <= datetime.now(UTC)
        flags = shown["flags"]
        assert flags["agent-port"] == {"value": "8091", "given": True}
        assert flags["admin-port"] == {"value": "8095", "given": False}
        assert flags["keepalive-time"] == {"value": "1m30s", "given": True}
        assert flags["enable-profiling"] == {"value": "false", "given": False}
        assert flags["cluster-network"] == {
            "value": ["a=10.0.0.0/8;via=dialer:mine?password=[redacted]&zone=z", "b=10::/16"],
            "given": True,
        }
        assert "hush" not in json.dumps(shown)

    asked(watched(settings=settings), talk)


def test_passwords_of_proxies_are_blanked() -> None:
    settings = load(
        HttpsProxySettings,
        {"http_proxy": ("http://me:hush@proxy.example:3128",)},
        {"HTTPS_PROXY": "me:hush@proxy.example:3128"},
    )

    async def talk(ask: Ask) -> None:
        text = json.dumps((await json_of(ask, "/configz"))["flags"])
        assert "hush" not in text and "http://[redacted]@proxy.example:3128" in text

    asked(watched(settings=settings), talk)


# Garbage.


@pytest.mark.parametrize("path", ["/snapshot", "/audit", "/logs"])
def test_a_limit_is_a_whole_number(path: str) -> None:
    async def talk(ask: Ask) -> None:
        for bad in BAD_LIMITS:
            answer = await ask(path, params={"limit": bad})
            assert answer.status == 400, bad
            assert answer.text.startswith("limit: must be a whole number from 0 to ")

    asked(watched(), talk)


def test_any_path_gets_an_answer() -> None:
    port: list[Ask] = []
    loop = asyncio.new_event_loop()
    serving = asking(admin_routes(watched()), admin=True)
    port.append(loop.run_until_complete(serving.__aenter__()))

    segment = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="#?"), max_size=9)
    known = st.sampled_from(["tunnels", "end", "snapshot", "*", "..", "ui", "1", "%2f", "history"])

    @given(
        st.lists(segment | known, max_size=5), st.sampled_from(["GET", "POST", "PUT", "OPTIONS"])
    )
    def ask_any(segments: list[str], method: str) -> None:
        path = "/" + "/".join(segments)
        answer = loop.run_until_complete(port[0](path, method))
        assert answer.status in (200, 301, 400, 403, 404, 405), (path, method)
        assert method == "GET" or answer.status != 200

    try:
        ask_any()
    finally:
        loop.run_until_complete(serving.__aexit__(None, None, None))
        loop.close()


def test_nothing_confidential_is_on_the_health_port() -> None:
    async def main() -> None:
        program = watched(end_tunnel=lambda tunnel, by: "c-1")
        async with asking(health_routes(program)) as ask:
            open_ones = {"/healthz", "/livez", "/readyz", "/ready", "/metrics"}
            assert set(health_routes(program)) == open_ones
            for path in ("/snapshot", "/history", "/audit", "/logs", "/configz", "/ui/"):
                assert (await ask(path)).status == 404, path
            headers = {"X-Isthmus-Intent": "end"}
            assert (await ask("/tunnels/1/end", "POST", headers=headers)).status == 404

    asyncio.run(main())
