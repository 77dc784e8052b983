"""What the targets share: knobs in front of an input, and inputs cut into reads.

The first bytes of an input choose how it is cut and how sinks behave; the rest is what a peer
sends. So a mutation of the one keeps the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from isthmus.errors import ProtocolError

KNOBS = 4
T = TypeVar("T")


def knobs(data: bytes) -> tuple[bytes, bytes]:
    """The knobs, always four, and the rest."""
    return data[:KNOBS].ljust(KNOBS, b"\0"), data[KNOBS:]


def cut(data: bytes, sizes: bytes) -> Iterator[bytes]:
    """The data in reads whose sizes go round; 0 is one byte, 255 is 4 KiB."""
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)] + 1
        if size == 256:
            size = 4096
        yield data[at : at + size]
        at += size
        turn += 1


def whole_and_cut(data: bytes, sizes: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The same bytes as one read, as several, and one by one."""
    return [data], list(cut(data, sizes)), [data[at : at + 1] for at in range(len(data))]


def same(outcomes: list[T]) -> T:
    """All of them, which have to be equal."""
    for other in outcomes[1:]:
        assert other == outcomes[0], f"depends on how it was cut: {outcomes[0]!r} and {other!r}"
    return outcomes[0]


def prefixes(deliveries: list[bytes]) -> bytes:
    """The longest of them; the others have to be its beginnings.

    What came last may still wait for its next byte, or be lost in a reset: TCP is no different.
    """
    longest = max(deliveries, key=len)
    assert all(longest.startswith(each) for each in deliveries), "other bytes when cut otherwise"
    return longest


def taken(take: Callable[[bytearray], T | None], pieces: list[bytes]) -> tuple[object, ...]:
    """Feed pieces to a ``take_`` function until it fails or all are in.

    What it gave, its error, and what is left when it is done. A taker that says None must not have
    consumed anything, and one that raises must leave the buffer as it was.
    """
    buffer = bytearray()
    found: list[T] = []
    for piece in pieces:
        buffer += piece
        while buffer:
            before = bytes(buffer)
            try:
                message = take(buffer)
            except ProtocolError as error:
                assert buffer == before, "an error that consumed something"
                return tuple(found), str(error), b""
            if message is None:
                assert buffer == before, "None, but something is gone"
                break
            assert len(buffer) < len(before), "a message of no bytes"
            found.append(message)
    return tuple(found), "", bytes(buffer)
