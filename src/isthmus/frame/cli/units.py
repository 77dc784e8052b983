"""Numbers as people read them: ages as kubectl writes them, sizes, rates, a line of small bars."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "-"
_BARS = "▁▂▃▄▅▆▇█"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


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


def size(count: float | None) -> str:
    """Write bytes with three digits or so: 512B, 1.5KiB, 23MiB."""
    if count is None:
        return UNKNOWN
    amount = float(count)
    for unit in _SIZES:
        if abs(amount) < 1024 or unit == _SIZES[-1]:
            break
        amount /= 1024
    shown = f"{amount:.1f}" if unit != "B" and amount < 9.95 else f"{amount:.0f}"
    return f"{shown}{unit}"


def rate(per_second: float | None) -> str:
    """Write bytes per second."""
    return UNKNOWN if per_second is None else f"{size(per_second)}/s"


def milliseconds(seconds: float | None) -> str:
    """Write a round trip."""
    if seconds is None:
        return UNKNOWN
    shown = seconds * 1000
    return f"{shown:.1f}ms" if shown < 9.95 else f"{shown:.0f}ms"


def bars(values: Sequence[float], width: int = 30) -> str:
    """Draw values, oldest first, as block characters; the highest fills its cell.

    More values than ``width`` are summed in groups; nothing at all is the lowest bar.
    """
    if not values:
        return ""
    group = -(-len(values) // width)
    # Groups are counted from the newest, so that a bar does not change while time goes on.
    cut = len(values) % group
    heads = [sum(values[:cut])] if cut else []
    sums = heads + [sum(values[at : at + group]) for at in range(cut, len(values), group)]
    top = max(sums)
    if top <= 0:
        return _BARS[0] * len(sums)
    # What is more than nothing is seen to be.
    return "".join(_BARS[max(value > 0, round(value / top * (len(_BARS) - 1)))] for value in sums)


def counted(number: int, one: str, many: str = "") -> str:
    """Write a count with its word: 1 agent, 3 agents."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
