"""Durations as Go writes them: ``1h30m``, ``500ms``, ``1.5s``, and a bare ``0``.

Results are seconds as a float, because clocks use them; the arithmetic in between is in whole
nanoseconds, as in Go, so that parsing, formatting and parsing again gives the same value.
"""

from __future__ import annotations

import re

_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu: Go accepts both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LIMIT_NS = 2**63  # Go uses an int64 of nanoseconds, about 292 years
_MAX_CHARS = 64


def parse_duration(text: str) -> float:
    """Read a Go duration and return seconds.

    Raises:
        ValueError: the text is not a duration; the message shows an example.
    """
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    total = _nanoseconds(rest) if 0 < len(rest) <= _MAX_CHARS else None
    if total is None:
        raise ValueError(f"{text[:_MAX_CHARS]!r} is not a duration such as 500ms, 10s or 1h30m")
    if total >= _LIMIT_NS:
        raise ValueError(f"{text!r} is longer than a duration can be")
    return sign * total / 1e9


def _nanoseconds(text: str) -> int | None:
    total = pos = 0
    while pos < len(text):
        part = _PART.match(text, pos)
        if part is None:
            return None
        whole, fraction, unit = part[1], part[2] or "", _NS[part[3]]
        if not whole and not fraction:
            return None
        # Whole-number arithmetic: 0.1s as a float would not be exactly 100ms.
        total += int(whole or 0) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
        pos = part.end()
    return total


def format_duration(seconds: float) -> str:
    """Write seconds the way people type them: ``1h30m``, ``25s``, ``1.5s``, ``500ms``, ``0s``.

    Go's own text has zero parts (``1h0m0s``); both read back as the same duration.
    """
    ns = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and ns else ""
    if ns < _NS["s"]:
        return sign + _below_a_second(ns)
    hours, ns = divmod(ns, _NS["h"])
    minutes, ns = divmod(ns, _NS["m"])
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    return sign + text + (f"{_decimal(ns, _NS['s'])}s" if ns else "")


def _below_a_second(ns: int) -> str:
    for unit in ("ms", "µs"):
        if ns >= _NS[unit]:
            return _decimal(ns, _NS[unit]) + unit
    return f"{ns}ns" if ns else "0s"


def _decimal(ns: int, unit: int) -> str:
    whole, rest = divmod(ns, unit)
    digits = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
