"""Bytes through every pair of ends: order, and a reader that stops stops its own writer."""

from __future__ import annotations

import asyncio
import random

import pytest
from bed import WINDOWED, Bed, Certificates, Side, is_quiet, pairs, run
from users import User, read_all, read_exactly

from isthmus.tunnel.end import Ending

MIB = 1024 * 1024


def pieces(seed: int, total: int) -> list[bytes]:
    """Random bytes in pieces of random sizes, from one byte to some records and frames."""
    source = random.Random(seed)
    made = []
    while total > 0:
        size = min(total, source.choice((1, 2, 17, 1400, 16384, 16385, 65536, 100_000, 262_144)))
        made.append(source.randbytes(size))
        total -= size
    return made


async def talk(user: User, parts: list[bytes]) -> None:
    """Send all parts, then half-close."""
    for part in parts:
        await user.send(part)
    await user.send_eof()


@pytest.mark.parametrize(("a", "b"), pairs(a="half-close", b="half-close"))
def test_order_both_ways_at_once(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.pair(a, b)
        there, back = pieces(1, 2 * MIB), pieces(2, 2 * MIB)
        got_two, got_one, *_ = await asyncio.gather(
            read_all(two.user), read_all(one.user), talk(one.user, there), talk(two.user, back)
        )
        assert got_two == b"".join(there)
        assert got_one == b"".join(back)
        assert (one.end.bytes_written, two.end.bytes_written) == (len(got_one), len(got_two))
        assert one.done == two.done == [Ending.CLEAN]

    run(certificates, test)


# Under way at most: kernel buffers (made small), a full sink, and one more read of its writer. A
# stream may send what its window holds whatever the sink says, and so may its far half.
PIPE_BYTES = 384 * 1024
WINDOW_BYTES = 256 * 1024
SINK_BYTES = 2 * 64 * 1024 + 1024  # full, one read more, and what TLS adds


def bound(one: Side, two: Side) -> int:
    return sum(PIPE_BYTES + (side.kind in WINDOWED) * WINDOW_BYTES for side in (one, two))


@pytest.mark.parametrize(("a", "b"), pairs(a="stop its writer", b="stop its writer"))
def test_a_reader_that_stops_stops_its_writer(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        bed.small = True
        one, two = await bed.pair(a, b)
        parts = pieces(3, 3 * MIB)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for part in parts:
                for at in range(0, len(part), 4096):
                    await one.user.send(part[at : at + 4096])
                    sent += len(part[at : at + 4096])
            await one.user.send_eof()

        sending = bed.spawn(send())
        await is_quiet(lambda: sent)
        assert 0 < sent <= bound(one, two)
        windows = sum(side.kind in WINDOWED for side in (one, two)) * WINDOW_BYTES
        assert one.kept_bytes + two.kept_bytes <= SINK_BYTES + windows
        # The other direction does not care.
        await two.user.send(b"still here")
        assert await read_exactly(one.user, 10) == b"still here"
        assert await read_all(two.user) == b"".join(parts)
        await sending
        assert one.kept_bytes == two.kept_bytes == 0

    run(certificates, test)
