"""Why a tunnel is stalled or slow: what a reader took between two samples, as a message.

Waiting bytes alone mean nothing: a slow reader always has some. The caller therefore
remembers what the reader had taken at the last sample (``ReaderPace``), including the kernel's
queue, and only a reader that took nothing has stalled. Pure: time is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.text.units import age, rate, size

STALLED_AFTER_S = 5.0
#: The rate of a slower reader is reported; a faster one is not a concern.
SLOW_BELOW_BYTES_S = 1_000_000
#: Number of samples for a rate, at least a second apart.
_LOOKS = 16
_APART_S = 1.0
#: A reader that pauses longer has stalled, however long its earlier pauses were.
_MOST_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes waiting in one direction, and how long none of them moved.

    ``full_s`` is how long there were some at every sample. ``rate`` is what is taken per
    second, None before a second sample. ``no_credit``: they wait for the far side of the link to
    grant window, so the reader is behind the agent and not at this socket. ``patience_s``: the
    longest pause that is similar to earlier ones.
    """

    bytes: int = 0
    for_s: float = 0.0
    no_credit: bool = False
    full_s: float = 0.0
    rate: float | None = None
    patience_s: float = 0.0

    def stopped(self, after_s: float) -> bool:
        """Nothing moved for this long, and for longer than between the last bytes that did."""
        return bool(self.bytes) and self.for_s >= max(after_s, self.patience_s)

    def slow(self, after_s: float) -> bool:
        """Bytes have waited all this time, and some moved, though few."""
        return (
            bool(self.bytes)
            and self.full_s >= after_s
            and not self.stopped(after_s)
            and self.rate is not None
            and 0 < self.rate < SLOW_BELOW_BYTES_S
        )


class ReaderPace:
    """What one reader took between samples, while bytes waited for it."""

    __slots__ = ("_gaps", "_moved_at", "_points", "_rests_since", "_seen", "_started_at")

    def __init__(self, *, now: float) -> None:
        self._started_at = self._moved_at = self._rests_since = now
        self._seen: tuple[int, int] | None = None
        self._gaps = (0.0, 0.0)
        self._points: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def look(self, *, passed: int, queued: int, now: float) -> None:
        """Sample the bytes passed to the kernel so far, and those still queued there."""
        if self._seen is not None and self._seen != (passed, queued):
            # Credit is returned in pieces: a usual pause between two of them is not a stall.
            self._gaps = (self._gaps[1], now - self._moved_at)
            self._moved_at = now
        self._seen = (passed, queued)
        if not self._points or now - self._points[-1][0] >= _APART_S:
            self._points.append((now, passed - queued))

    def rest(self, *, now: float) -> bool:
        """Nothing waits now; True if this has lasted long enough to drop the state."""
        if self._seen is not None:
            self._seen, self._rests_since = None, now
        self._started_at = self._moved_at = now
        rested_s = now - self._rests_since
        if rested_s >= STALLED_AFTER_S:  # until then the reader only caught up for a moment
            self._points.clear()
        return rested_s >= _MOST_PATIENCE_S

    def held(self, waiting: int, *, now: float, no_credit: bool = False) -> Held:
        """Summarise what the reader did, with ``waiting`` bytes still queued for it."""
        return Held(
            bytes=waiting,
            for_s=now - self._moved_at,
            no_credit=no_credit,
            full_s=now - self._started_at,
            rate=self._rate(),
            patience_s=min(2 * max(self._gaps), _MOST_PATIENCE_S),
        )

    def _rate(self) -> float | None:
        (began, first), (ended, last) = self._points[0], self._points[-1]
        return max(0, last - first) / (ended - began) if ended > began else None


_NOTHING = Held()


def why_stalled(
    *,
    to_client: Held = _NOTHING,
    to_target: Held = _NOTHING,
    link_stuck_s: float = 0.0,
    after_s: float = STALLED_AFTER_S,
) -> str:
    """A message about why a tunnel does not move; empty if it does.

    A stalled link is the only cause named: everything on it waits, whatever the reader.
    """
    if link_stuck_s >= after_s:
        waiting = to_client.bytes + to_target.bytes
        return f"link makes no progress; {size(waiting)} held for {age(link_stuck_s)}"
    return " and ".join(
        f"{who} stopped reading{_where(held)}; {size(held.bytes)} held for {age(held.for_s)}"
        for who, held in _sides(to_client, to_target)
        if held.stopped(after_s)
    )


def why_slow(
    *, to_client: Held = _NOTHING, to_target: Held = _NOTHING, after_s: float = STALLED_AFTER_S
) -> str:
    """A message about the slow reader; empty if there is none."""
    return " and ".join(
        f"{who} reads slowly{_where(held)}, {_speed(held.rate or 0.0)}; {size(held.bytes)} held"
        for who, held in _sides(to_client, to_target)
        if held.slow(after_s)
    )


def _sides(to_client: Held, to_target: Held) -> Iterator[tuple[str, Held]]:
    yield "client", to_client
    yield "target", to_target


def _where(held: Held) -> str:
    return " (no credit on the link)" if held.no_credit else ""


def _speed(per_second: float) -> str:
    # Two digits: the speed of a reader changes a little from look to look.
    return rate(float(f"{per_second:.2g}"))
