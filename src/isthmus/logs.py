"""Logging: one line per event, as text or JSON, safe to display whatever a peer sent.

Text looks like klog's structured lines:

    I1116 00:26:07.123 server] agent connected agent="node-1" address="10.0.0.7:41822"

Text from peers is escaped and truncated, secrets are replaced, and lines that a peer can
trigger repeatedly go through ``OncePer``. Metrics count what logs leave out (metrics.py).
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TextIO

from isthmus.text.text_limits import MAX_LOGGED_CHARS

Format = Literal["text", "json"]

_MAX_CHARS = MAX_LOGGED_CHARS
#: Text examined beyond the cut: enough to recognise a secret that starts before it.
_WINDOW_CHARS = _MAX_CHARS + 256
_MAX_TRACE_LINES = 60
RECENT_LINES = 1000
RECENT_BYTES = 1024 * 1024
# The value of token="…" is a secret, the value of token_path="…" is not.
_SECRET_KEY = re.compile(
    r"(token|secret|password|authorization|cookie|private_?key)$", re.IGNORECASE
)
# Linear on any text: quantifiers are possessive, and an alternative that fails consumes what it
# examined, so nothing is examined twice. A JSON web token starts with base64 of '{"'.
_SECRET_VALUE = re.compile(
    r"\bbearer\s++[\w.~+/=-]{8,}+"
    r"|\bauthorization:[^\r\n]*+"
    r"|\b(?P<begun>eyJ[\w-]*+)(?P<token>\.[\w-]{8,}+\.[\w-]*+)?"
    r"|-----BEGIN [A-Z0-9 ]{0,64}?PRIVATE KEY-----"
    r".*?(?:-----END [A-Z0-9 ]{0,64}?PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_SHORTEST_BEGUN = 11
#: The rest of a text that was cut inside a token.
_CUT_TOKEN = re.compile(r"(?:\.[\w-]*+)?")
_BLANK = "[redacted]"
_RESERVED = frozenset({"ts", "level", "logger", "msg", "stack"})


def level_from_v(v: int) -> int:
    """Translate klog's ``--v``: 0 is warnings and errors, 1 to 4 adds information, 5 every dial."""
    if v <= 0:
        return logging.WARNING
    return logging.INFO if v < 5 else logging.DEBUG


def configure(
    v: int, fmt: Format, stream: TextIO, *, fields: Mapping[str, object] | None = None
) -> None:
    """Send the log of ``isthmus`` and the libraries below it to the stream.

    Every line starts with ``fields``, which tell several processes apart.
    May be called again; the last call applies. The root logger is not changed, for programs that
    use Isthmus as a library.
    """
    handler = _LineHandler(stream)
    if fields:
        handler.addFilter(partial(_with_fields, fields))
    handler.setFormatter(JsonFormatter() if fmt == "json" else TextFormatter())
    for name, level in (
        ("isthmus", level_from_v(v)),
        ("asyncio", logging.WARNING),
        ("aiohttp", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        for old in [h for h in logger.handlers if isinstance(h, _LineHandler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def log(
    logger: logging.Logger,
    level: int,
    msg: str,
    /,
    *,
    exc_info: BaseException | None = None,
    **fields: object,
) -> None:
    """Log one event: a constant message, and the variable parts as fields."""
    if logger.isEnabledFor(level):
        logger.log(level, msg, extra={"fields": fields}, exc_info=exc_info)


def _with_fields(fields: Mapping[str, object], record: logging.LogRecord) -> bool:
    record.fields = {**fields, **getattr(record, "fields", {})}
    return True


def escape(text: str) -> str:
    """Make text safe for one line of a terminal: no control, bidi or lone surrogate characters.

    Long text is cut. Backslashes are doubled, so that no text can imitate an escape or hide a
    quote.
    """
    text = _cut(text, len(text))
    text = text.replace("\\", "\\\\")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape_char(c) for c in text)


def _cut(text: str, chars: int) -> str:
    """Replace the secrets in a text and cut it; ``chars`` is its original length."""
    text = text[:_WINDOW_CHARS]
    parts: list[str] = []
    at = 0
    for found in _SECRET_VALUE.finditer(text):
        if found.start() >= _MAX_CHARS:
            break
        if found["begun"] is not None and not _is_token(found, cut=chars > len(text)):
            continue
        parts += (text[at : found.start()], _BLANK)
        at = found.end()
    parts.append(text[at:_MAX_CHARS])
    if chars > max(at, _MAX_CHARS):
        parts.append(f"…(+{chars - max(at, _MAX_CHARS)})")
    return "".join(parts)


def _is_token(found: re.Match[str], *, cut: bool) -> bool:
    if len(found["begun"]) < _SHORTEST_BEGUN:
        return False
    # For a token that continues beyond the window it is unknown whether it has all three parts.
    return found["token"] is not None or (
        cut and _CUT_TOKEN.fullmatch(found.string, found.end()) is not None
    )


def _escape_char(char: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if short:
        return short
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _safe_value(key: str, value: object) -> object:
    if _SECRET_KEY.search(key):
        return _BLANK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[: _WINDOW_CHARS + 1]).decode("latin-1")
    return escape(str(value))


def _safe(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The message and the fields of a record, escaped once for all formatters."""
    given: Mapping[str, object] = getattr(record, "fields", {})
    done = getattr(record, "escaped", None)
    if done is not None and done[0] is given:
        return done[1], done[2]
    message = escape(record.getMessage())
    # Unknown values are left out: "uds=None" carries no information.
    fields = {key: _safe_value(key, value) for key, value in given.items() if value is not None}
    record.escaped = given, message, fields
    return message, fields


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if not (record.exc_info and record.exc_info[1]):
        return []
    lines = formatter.formatException(record.exc_info).splitlines()
    return [escape(line) for line in lines[-_MAX_TRACE_LINES:]]


class TextFormatter(logging.Formatter):
    """One readable line; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.localtime(record.created)
        letter = {"WARNING": "W", "ERROR": "E", "CRITICAL": "F", "DEBUG": "D"}.get(
            record.levelname, "I"
        )
        name = record.name.removeprefix("isthmus.")
        message, fields = _safe(record)
        parts = [
            f"{letter}{time.strftime('%m%d %H:%M:%S', at)}.{int(record.msecs):03d} {name}] ",
            message,
        ]
        parts.extend(f" {key}={_quoted(value)}" for key, value in fields.items())
        parts.extend(f"\n    | {line}" for line in _stack(self, record))
        return "".join(parts)


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '\\"') + '"'
    return str(value)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, times in RFC 3339 and UTC."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message, fields = _safe(record)
        line: dict[str, Any] = {
            "ts": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": message,
        }
        for key, value in fields.items():
            line[f"{key}_" if key in _RESERVED else key] = value
        if stack := _stack(self, record):
            line["stack"] = stack
        return json.dumps(line, ensure_ascii=False)


class RecentLines:
    """The last lines of a log as JSON, oldest first; bounded in lines and in bytes."""

    def __init__(self, most: int = RECENT_LINES, most_bytes: int = RECENT_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: deque[bytes] = deque()
        #: The number of lines added so far.
        self.count = 0

    def put(self, line: str) -> None:
        """Keep a line; the oldest ones are dropped."""
        self.keep(line.encode("utf-8", "backslashreplace"))

    def keep(self, raw: bytes) -> None:
        """Keep a line that is already encoded."""
        self.count += 1
        self._kept.append(raw)
        self._bytes += len(raw)
        while len(self._kept) > self._most or (self._bytes > self._most_bytes and self._kept):
            self._bytes -= len(self._kept.popleft())

    def last(self, most: int) -> list[bytes]:
        """The last lines, at most ``most``."""
        lines = self._kept.copy()  # other threads log, too
        while len(lines) > most:
            lines.popleft()
        return list(lines)


#: What this process has logged since ``configure``.
RECENT = RecentLines()
_JSON = JsonFormatter()


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines; a line that cannot be written is dropped without an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record and keep it in ``RECENT``."""
        text = super().format(record)
        RECENT.put(text if isinstance(self.formatter, JsonFormatter) else _JSON.format(record))
        return text

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: the reader of the log is gone."""


class OncePer:
    """Lets a line through once per key and period, and counts the suppressed ones.

    Use it for every line that a peer can trigger. Memory is bounded: beyond ``max_keys`` live keys
    all further keys share one, so many addresses cannot cause many lines.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, max_keys: int = 1024
    ) -> None:
        self.suppressed = 0
        self._clock = clock
        self._max_keys = max_keys
        self._quiet: dict[Hashable, tuple[float, int]] = {}
        self._next_sweep = 0.0

    def once_per(self, key: Hashable, seconds: float) -> int | None:
        """Ask whether to log now. None: the line is suppressed and counted.

        A number: log it; that many were suppressed since the last one.
        """
        now = self._clock()
        if key not in self._quiet and len(self._quiet) >= self._max_keys:
            key = self._make_room(key, now)
        until, missed = self._quiet.get(key, (now, 0))
        if now < until:
            self._quiet[key] = (until, missed + 1)
            self.suppressed += 1
            return None
        self._quiet[key] = (now + seconds, 0)
        return missed

    def log(
        self,
        key: Hashable,
        seconds: float,
        logger: logging.Logger,
        level: int,
        msg: str,
        /,
        *,
        exc_info: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Log the event unless one with this key was logged within the period."""
        missed = self.once_per(key, seconds)
        if missed is None:
            return
        if missed:
            fields["suppressed"] = missed
        log(logger, level, msg, exc_info=exc_info, **fields)

    def _make_room(self, key: Hashable, now: float) -> Hashable:
        # At most once a second: a peer can make new keys faster than a sweep is cheap.
        if now >= self._next_sweep:
            self._next_sweep = now + 1.0
            for old in [k for k, (until, _) in self._quiet.items() if until <= now]:
                del self._quiet[old]
        return key if len(self._quiet) < self._max_keys else _OVERFLOW


_OVERFLOW = object()
