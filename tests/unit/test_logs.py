"""Log lines: their two forms, what peers cannot do to them, and saying things once."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from isthmus.logs import RECENT, Format, OncePer, RecentLines, configure, escape, level_from_v, log

LOGGER = logging.getLogger("isthmus.server")
NAMES = ("isthmus", "asyncio", "aiohttp")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    before = [
        (logger, logger.handlers[:], logger.level, logger.propagate)
        for logger in map(logging.getLogger, NAMES)
    ]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def written(fmt: Format, msg: str = "hello", /, **fields: object) -> str:
    stream = io.StringIO()
    configure(4, fmt, stream)
    log(LOGGER, logging.INFO, msg, **fields)  # type: ignore[arg-type]
    return stream.getvalue()


def test_a_text_line_looks_like_klogs() -> None:
    line = written("text", "agent connected", agent="node-1", links=2, rtt_s=0.5, zone=None)
    assert re.fullmatch(
        r"I\d{4} \d\d:\d\d:\d\d\.\d{3} server\] agent connected"
        r' agent="node-1" links=2 rtt_s=0\.5\n',
        line,
    )


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_what_is_not_known_is_left_out(fmt: Format) -> None:
    line = written(fmt, uds=None, network=None, token=None, zone="", links=0, ready=False)
    assert "None" not in line
    assert "null" not in line
    assert not any(name in line for name in ("uds", "network", "token"))
    # What is known to be nothing is not the same.
    assert all(name in line for name in ("zone", "links", "ready"))
    assert b"null" not in RECENT.last(1)[0]


def test_a_json_line_is_one_object() -> None:
    line = written("json", "agent connected", agent="nöde", links=2, msg="theirs")
    assert line.count("\n") == 1
    read = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read.pop("ts"))
    assert read == {
        "level": "info",
        "logger": "isthmus.server",
        "msg": "agent connected",
        "agent": "nöde",
        "links": 2,
        "msg_": "theirs",
    }


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_peer_cannot_forge_lines_or_move_the_cursor(fmt: Format) -> None:
    evil = 'x\nE1116 00:00:00.000 server] all lost" admin="y\x1b[2J\u202e\x85\u2028\ud800\\'
    line = written(fmt, who=evil, raw=evil.encode("utf-8", "surrogatepass"))
    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()
    if fmt == "text":
        quoted = re.findall(r' (\w+)="((?:[^"\\]|\\.)*)"', line)
        assert [key for key, _ in quoted] == ["who", "raw"]


def test_escapes_are_unambiguous() -> None:
    assert escape("a\nb\\n\x00\u202e\U000e0001") == r"a\nb\\n\x00\u202e\U000e0001"
    assert escape("plain ünicode") == "plain ünicode"


def test_long_values_are_cut() -> None:
    line = written("text", who="x" * 100_000)
    assert len(line) < 1200
    assert "…(+98976)" in line


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        ({"token": "hunter2secret"}, "hunter2secret"),
        ({"Authorization": "Basic aHVudGVyMg=="}, "aHVudGVyMg"),
        ({"head": "Authorization: Basic aHVudGVyMg=="}, "aHVudGVyMg"),
        ({"error": "refused Bearer abcdefgh.ijkl"}, "abcdefgh"),
        ({"error": "bad token eyJhbGciOiJS.eyJpc3MiOiJr.c2ln"}, "eyJpc3MiOiJr"),
        ({"file": "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----"}, "MHcC"),
        ({"file": "-----BEGIN PRIVATE KEY-----\nMHcCAQ cut"}, "MHcC"),
    ],
)
@pytest.mark.parametrize("fmt", ["text", "json"])
def test_secrets_are_blanked(fmt: Format, fields: dict[str, object], secret: str) -> None:
    line = written(fmt, **fields)
    assert secret not in line
    assert "[redacted]" in line


def test_the_path_of_a_token_is_not_a_secret() -> None:
    assert 'token_path="/run/token"' in written("text", token_path="/run/token")


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_traceback_is_kept_inside_its_event(fmt: Format) -> None:
    stream = io.StringIO()
    configure(4, fmt, stream)
    try:
        raise ValueError("first\nI1116 forged] line")
    except ValueError as exc:
        log(LOGGER, logging.ERROR, "broke", exc_info=exc)
    lines = stream.getvalue().splitlines()
    assert "ValueError: first" in stream.getvalue()
    if fmt == "json":
        assert len(lines) == 1
        assert json.loads(lines[0])["stack"][0].startswith("Traceback")
    else:
        assert lines[0].endswith("server] broke")
        assert all(line.startswith("    | ") for line in lines[1:])


@pytest.mark.parametrize(
    ("v", "level"),
    [(-1, "WARNING"), (0, "WARNING"), (1, "INFO"), (4, "INFO"), (5, "DEBUG"), (10, "DEBUG")],
)
def test_v_chooses_the_level(v: int, level: str) -> None:
    assert logging.getLevelName(level_from_v(v)) == level


def test_levels_are_kept_and_the_last_configuration_counts() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(4, "text", first)
    configure(0, "text", second)
    log(LOGGER, logging.INFO, "quiet")
    log(LOGGER, logging.WARNING, "heard")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    assert first.getvalue() == ""
    heard = [line.split("] ")[1] for line in second.getvalue().splitlines()]
    assert heard == ["heard", "slow callback"]


def test_a_log_that_cannot_be_written_stops_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure(4, "text", stream)
    stream.close()
    log(LOGGER, logging.INFO, "into the void")
    assert capfd.readouterr().err == ""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_once_per_key_and_period() -> None:
    clock = Clock()
    limiter = OncePer(clock)
    assert limiter.once_per("a", 10.0) == 0
    assert limiter.once_per("a", 10.0) is None
    assert limiter.once_per("b", 10.0) == 0
    clock.now += 9.9
    assert limiter.once_per("a", 10.0) is None
    clock.now += 0.1
    assert limiter.once_per("a", 10.0) == 2
    assert limiter.suppressed == 2


def test_many_keys_share_one_line_and_room_comes_back() -> None:
    clock = Clock()
    limiter = OncePer(clock, max_keys=4)
    said = [limiter.once_per(n, 10.0) for n in range(100)]
    assert sum(answer is not None for answer in said) == 5
    assert limiter.suppressed == 95
    clock.now += 10.0
    assert limiter.once_per("new", 10.0) == 0


def test_the_line_says_how_many_were_kept_quiet() -> None:
    stream, clock = io.StringIO(), Clock()
    configure(4, "text", stream)
    limiter = OncePer(clock)
    for _ in range(3):
        limiter.log("bad head", 5.0, LOGGER, logging.WARNING, "bad request", peer="10.0.0.9")
    clock.now += 5.0
    limiter.log("bad head", 5.0, LOGGER, logging.WARNING, "bad request", peer="10.0.0.9")
    first, second = stream.getvalue().splitlines()
    assert first.endswith('bad request peer="10.0.0.9"')
    assert second.endswith('bad request peer="10.0.0.9" suppressed=2')


def test_the_last_lines_are_kept_as_json_objects() -> None:
    for fmt in ("text", "json"):
        written(fmt, "kept", peer="10.0.0.9", token="hush")
        found = json.loads(RECENT.last(1)[0])
        assert (found["msg"], found["peer"], found["token"]) == ("kept", "10.0.0.9", "[redacted]")


def test_lines_are_kept_within_bounds() -> None:
    lines = RecentLines(most=3, most_bytes=10)
    for number in range(5):
        lines.put(str(number))
    assert lines.last(9) == [b"2", b"3", b"4"]
    assert lines.last(2) == [b"3", b"4"]
    assert lines.last(0) == []
    lines.put("x" * 8)
    assert lines.last(9) == [b"3", b"4", b"x" * 8]
    lines.put("y" * 11)  # more than there is room for
    assert lines.last(9) == []
    lines.put("\udcff")
    assert lines.last(9) == [b"\\udcff"]


JWT = f"eyJ{'h' * 40}.eyJ{'p' * 120}.{'s' * 43}"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{'k' * 3000}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("secret", "mark"),
    [(JWT, "hh"), (JWT.upper(), "HH"), (f"bearer {'t' * 300}", "tt"), (PEM, "kk"),
     (f"Authorization: {'a' * 300}", "aa"), (f"eyJ{'h' * 5000}.b", "hh")],
)  # fmt: skip
@pytest.mark.parametrize("before", [0, 900, 980, 1000, 1010, 1020, 1022, 1023, 1024, 1500])
def test_a_secret_that_the_cut_falls_into_is_blanked(secret: str, mark: str, before: int) -> None:
    """Wherever it begins: what is shown of a long text has no part of it."""
    shown = escape(f"{'. ' * (before // 2)}{secret}{' .' * 5000}")
    assert mark not in shown and len(shown) < 1100


def test_a_text_that_is_cut_shows_nothing_from_behind_the_cut() -> None:
    """Blanking what comes first makes no room for what comes later."""
    shown = escape(f"bearer {'t' * 1000} " + "x" * 20 + " late " + "y" * 3000)
    assert shown.startswith("[redacted] ") and "late" not in shown and "(+" in shown


def test_what_only_looks_like_a_token_stays() -> None:
    for text in ("eyJabcdefgh", "eyJ-eyJ-eyJ-", "eyJabcdefghijkl.com", "bearer of news"):
        assert escape(text) == text


def test_a_line_is_escaped_once_for_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus import logs

    seen: list[str] = []
    monkeypatch.setattr(logs, "escape", lambda text: seen.append(text) or text)
    stream = io.StringIO()
    configure(1, "text", stream)
    logs.log(logging.getLogger("isthmus.x"), logging.INFO, "said", agent="a", why="b")
    assert seen == ["said", "a", "b"]
    assert 'agent="a"' in stream.getvalue()
    assert json.loads(logs.RECENT.last(1)[0])["why"] == "b"
