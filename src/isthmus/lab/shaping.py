"""One direction of a bad line, purely: which frames get through, and when they leave it.

A frame waits in a bounded queue, takes its time at the rate, and then travels for the delay.
Time and chance come in as arguments; whoever carries the frames is relay.py.
"""

from __future__ import annotations

import math

from isthmus.lab.topology import Shape

LEAST_QUEUE_BYTES = 64 * 1024
#: What the queue holds above a round trip, so that a sender's bursts fit.
QUEUE_MARGIN_S = 0.05


class Line:
    """One direction of a line; frames leave it in the order they came.

    ``lost`` counts the frames that chance took, ``dropped`` those that found the queue full.

    Raises:
        ValueError: there is no such line; the message is one sentence.
    """

    __slots__ = ("_bytes_per_s", "_delay_s", "_free_at", "_loss", "dropped", "lost", "queue_bytes")

    def __init__(self, shape: Shape) -> None:
        _check(shape)
        self._delay_s = shape.delay_ms / 1e3
        self._loss = shape.loss
        self._bytes_per_s = shape.rate_mbit * 1e6 / 8
        self.queue_bytes = queue_bytes(shape)
        self._free_at = 0.0
        self.lost = 0
        self.dropped = 0

    def take(self, size: int, now: float, chance: float) -> float | None:
        """Take a frame that came ``now``; say when it leaves, or None if it never does.

        ``now`` never goes back; ``chance`` is a number from 0 up to 1, below the loss it is bad.
        """
        rate = self._bytes_per_s
        leaves = now
        if rate:
            begins = self._free_at if self._free_at > now else now
            if (begins - now) * rate + size > self.queue_bytes:
                self.dropped += 1
                return None
            # The line is busy with what gets lost on it, too.
            leaves = self._free_at = begins + size / rate
        if chance < self._loss:
            self.lost += 1
            return None
        return leaves + self._delay_s

    def waiting_bytes(self, now: float) -> float:
        """How much of what it took is not sent yet at the rate; 0 without a rate."""
        return max(0.0, self._free_at - now) * self._bytes_per_s


def queue_bytes(shape: Shape) -> int:
    """How much may wait for the rate: what is on the way in a round trip, and some.

    With less, a single connection could not fill the line; 0 where there is no rate to wait for.
    """
    if not shape.rate_mbit:
        return 0
    round_trip_s = 2 * shape.delay_ms / 1e3
    product = shape.rate_mbit * 1e6 / 8 * (round_trip_s + QUEUE_MARGIN_S)
    return max(LEAST_QUEUE_BYTES, round(product))


def _check(shape: Shape) -> None:
    for name, value in (("delay", shape.delay_ms), ("rate", shape.rate_mbit)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a line's {name} is a number from 0 on, not {value}")
    if not 0 <= shape.loss <= 1:
        raise ValueError(f"a line's loss is a share between 0 and 1, not {shape.loss}")
