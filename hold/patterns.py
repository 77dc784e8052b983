"""Bytes that both sides can generate: seed and length determine every byte of a stream."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

PIECE_BYTES = 64 * 1024
# A stream that is shifted is a different stream.
_BASE = random.Random(20).randbytes(PIECE_BYTES + 65_521)
#: Eight bytes of length and a checksum: the target's report of what it received.
TRAILER_BYTES = 8 + 32


def pieces(seed: int, total: int) -> Iterator[bytes]:
    """The stream of a seed, ``total`` bytes in pieces."""
    at, left = seed % 65_521, total
    while left:
        size = min(PIECE_BYTES, left)
        yield _BASE[at : at + size]
        at, left = (at + 4_099) % 65_521, left - size


class Tally:
    """Counts bytes and computes their checksum."""

    __slots__ = ("_sum", "size")

    def __init__(self) -> None:
        self.size = 0
        self._sum = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Add data."""
        self.size += len(data)
        self._sum.update(data)

    def trailer(self) -> bytes:
        """The report, in TRAILER_BYTES."""
        return self.size.to_bytes(8, "big") + self._sum.digest()


def trailer_of(seed: int, total: int) -> bytes:
    """The trailer of a complete stream."""
    tally = Tally()
    for piece in pieces(seed, total):
        tally.add(piece)
    return tally.trailer()
