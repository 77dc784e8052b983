"""Bytes that both sides can make: a seed and a length say what every byte of a stream must be."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

PIECE_BYTES = 64 * 1024
# What begins at another place is another stream.
_BASE = random.Random(20).randbytes(PIECE_BYTES + 65_521)
#: Eight bytes of length and a checksum: what a target says of what it got.
TRAILER_BYTES = 8 + 32


def pieces(seed: int, total: int) -> Iterator[bytes]:
    """The stream of a seed, ``total`` bytes of it."""
    at, left = seed % 65_521, total
    while left:
        size = min(PIECE_BYTES, left)
        yield _BASE[at : at + size]
        at, left = (at + 4_099) % 65_521, left - size


class Tally:
    """Counts and sums what goes by."""

    __slots__ = ("_sum", "size")

    def __init__(self) -> None:
        self.size = 0
        self._sum = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Take some more."""
        self.size += len(data)
        self._sum.update(data)

    def trailer(self) -> bytes:
        """Say what it was, in TRAILER_BYTES."""
        return self.size.to_bytes(8, "big") + self._sum.digest()


def trailer_of(seed: int, total: int) -> bytes:
    """What a whole stream's trailer must be."""
    tally = Tally()
    for piece in pieces(seed, total):
        tally.add(piece)
    return tally.trailer()
