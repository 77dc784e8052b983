"""How every screen writes numbers: bytes, rates, ages and short durations, as kubectl writes them.

The dashboard has the same in ``units.js``; a file of vectors beside the tests checks both.
Durations that people type, as values of flags, are in durations.py.
"""

from __future__ import annotations

UNKNOWN = "-"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def size(count: float | None) -> str:
    """Write bytes with two to four digits: 512B, 1.5KiB, 23MiB."""
    if count is None:
        return UNKNOWN
    amount = max(0.0, float(count))
    unit = _SIZES[0]
    for unit in _SIZES:
        # 1023.5 would be written as 1024 of a unit, which is 1 of the next.
        if amount < 1023.5 or unit == _SIZES[-1]:
            break
        amount /= 1024
    shown = f"{amount:.1f}" if unit != "B" and amount < 9.95 else f"{amount:.0f}"
    return f"{shown}{unit}"


def rate(per_second: float | None) -> str:
    """Write bytes per second: 512B/s, 1.5KiB/s."""
    return UNKNOWN if per_second is None else f"{size(per_second)}/s"


def age(seconds: float | None) -> str:
    """Write a duration in at most two units, fewer the longer it is: 45s, 5m12s, 3h, 12d."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    return f"{whole // _DAY}d"


def _two(whole: int, large: int, name: str, small: int, rest_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{name}{rest}{rest_name}" if rest else f"{whole // large}{name}"


def took(seconds: float | None) -> str:
    """Write how long something took: 40µs, 1.5ms, 350ms, 1.5s, 2m10s."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.0001:
        return f"{max(0.0, seconds) * 1e6:.0f}µs"
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 9.95 else age(seconds)
