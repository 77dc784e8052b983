"""What comes before an end has a peer: kept within a bound, and delivered first."""

from __future__ import annotations

import asyncio

import pytest
from bed import KINDS, PAIRS, WINDOWED, Bed, Certificates, is_quiet, pairs, run, sees_reset
from users import read_all, read_exactly, until

from isthmus.net.raw import READ_BYTES
from isthmus.tunnel.end import EARLY_BYTES, Early, End, Ending, join

BLOCK = bytes(range(256)) * 4096  # 1 MiB
# The read that reaches the bound is kept whole. A stream cannot take back the window that
# it gave at once, so its bound is that.
MOST_EARLY = dict.fromkeys(KINDS, EARLY_BYTES + READ_BYTES)
MOST_EARLY |= dict.fromkeys(WINDOWED, 256 * 1024)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_early_bytes_are_delivered_first(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.side(a), await bed.side(b)
        await one.user.send(b"early, ")
        await two.user.send(b"EARLY, ")
        await until(lambda: one.end.peer.buffer == b"early, ")
        await until(lambda: two.end.peer.buffer == b"EARLY, ")
        join(one.end, two.end)
        await one.user.send(b"late")
        await two.user.send(b"LATE")
        assert await read_exactly(two.user, 11) == b"early, late"
        assert await read_exactly(one.user, 11) == b"EARLY, LATE"

    run(certificates, test)


@pytest.mark.parametrize(("a", "b"), pairs(a="stop its writer"))
def test_early_bytes_are_bounded(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        bed.small = True
        one, two = await bed.side(a), await bed.side(b)
        early = one.end.peer
        sending = bed.spawn(one.user.send(BLOCK))
        await until(lambda: len(early.buffer) >= EARLY_BYTES)
        await is_quiet(lambda: len(early.buffer))
        assert EARLY_BYTES <= len(early.buffer) <= MOST_EARLY[a]
        join(one.end, two.end)
        assert not early.buffer
        assert await read_exactly(two.user, len(BLOCK)) == BLOCK
        await sending
        await one.user.send_eof()
        assert await read_all(two.user) == b""

    run(certificates, test)


@pytest.mark.parametrize(("a", "b"), pairs(b="half-close"))
def test_an_early_end_of_file_is_remembered(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.side(a), await bed.side(b)
        await one.user.send(b"all I have")
        await one.user.send_eof()
        await until(lambda: one.end.peer.eof)
        join(one.end, two.end)
        assert await read_all(two.user) == b"all I have"
        await two.user.send(b"the answer")
        await two.user.send_eof()
        assert await read_all(one.user) == b"the answer"
        await until(lambda: one.done and two.done)
        assert one.done == two.done == [Ending.CLEAN]

    run(certificates, test)


@pytest.mark.parametrize("order", ["the lost end first", "the lost end second"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_an_early_reset_is_remembered(
    certificates: Certificates, a: str, b: str, order: str
) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.side(a), await bed.side(b)
        one.end.write(b"never read")
        await one.user.send(b"lost")
        await one.user.waiting()
        early = one.end.peer
        await until(lambda: early.buffer)
        one.user.reset()
        await until(lambda: one.done)
        assert early.aborted is Ending.RESET
        join(*((one.end, two.end) if order == "the lost end first" else (two.end, one.end)))
        await sees_reset(two)
        assert one.done == two.done == [Ending.RESET]

    run(certificates, test)


@pytest.mark.parametrize("kind", KINDS)
def test_an_early_reset_while_full_is_noticed(certificates: Certificates, kind: str) -> None:
    async def test(bed: Bed) -> None:
        bed.small = True
        side = await bed.side(kind)
        side.end.write(b"never read")
        await side.user.waiting()
        sending = bed.spawn(side.user.send(BLOCK))
        early = side.end.peer
        await is_quiet(lambda: len(early.buffer))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        side.user.reset()
        await until(lambda: side.done)
        assert side.done == [Ending.RESET]

    run(certificates, test)


class JoinAfterHead(Early):
    """A handshake reader: joins from inside write, once the head is whole."""

    __slots__ = ("head", "other")

    def __init__(self, other: End) -> None:
        super().__init__()
        self.head = b""
        self.other = other

    def write(self, data: bytes) -> bool:
        super().write(data)
        if len(self.buffer) >= 4:
            self.head = bytes(self.buffer[:4])
            del self.buffer[:4]
            join(self.peer, self.other)
        return True


@pytest.mark.parametrize("cut", [3, 4, 5])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_join_from_inside_a_handshake(certificates: Certificates, a: str, b: str, cut: int) -> None:
    async def test(bed: Bed) -> None:
        two = await bed.side(b)
        early = JoinAfterHead(two.end)
        one = await bed.side(a, early)
        await one.user.send((b"HEAD" + BLOCK)[:cut])
        await until(lambda: early.buffer or early.head)
        sending = bed.spawn(one.user.send((b"HEAD" + BLOCK)[cut:]))
        assert await read_exactly(two.user, len(BLOCK)) == BLOCK
        await sending
        assert early.head == b"HEAD"
        assert early.peer is not one.end

    run(certificates, test)
