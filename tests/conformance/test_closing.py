"""Endings through every pair of ends: half-closes, resets, and both while paused."""

from __future__ import annotations

import asyncio
import socket

import pytest
from bed import PAIRS, Bed, Certificates, Side, able, is_quiet, pairs, run, sees_reset
from users import read_all, read_exactly, until

from isthmus.tunnel.end import Ending, join

BLOCK = bytes(range(256)) * 800  # 200 KiB


async def closed(sock: socket.socket) -> None:
    await until(lambda: sock.fileno() == -1)


async def exchange(one: Side, two: Side) -> None:
    """Prove that both directions work."""
    await one.user.send(b"ping")
    assert await read_exactly(two.user, 4) == b"ping"
    await two.user.send(b"pong")
    assert await read_exactly(one.user, 4) == b"pong"


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [(*pair, "a") for pair in pairs(b="half-close")]
    + [(*pair, "b") for pair in pairs(a="half-close")],
)
def test_half_close_then_reply_then_close(
    certificates: Certificates, a: str, b: str, first: str
) -> None:
    async def test(bed: Bed) -> None:
        sides = one, two = await bed.pair(a, b)
        asks, answers = sides if first == "a" else sides[::-1]
        sending = bed.spawn(asks.user.send(BLOCK))
        received = await read_exactly(answers.user, len(BLOCK))
        await sending
        await asks.user.send_eof()
        received += await read_all(answers.user)
        assert received == BLOCK
        assert asks.done == answers.done == []
        sending = bed.spawn(answers.user.send(BLOCK))
        reply = await read_exactly(asks.user, len(BLOCK))
        await sending
        await answers.user.send_eof()
        assert reply + await read_all(asks.user) == BLOCK
        await until(lambda: one.done and two.done)
        assert one.done == two.done == [Ending.CLEAN]
        assert one.end.ending is two.end.ending is Ending.CLEAN
        assert one.end.bytes_written == two.end.bytes_written == len(BLOCK)
        for side in sides:
            if hasattr(side.end, "sock"):
                await closed(side.end.sock)
            if hasattr(side.end, "session"):
                assert not side.end.session.streams and not side.end.session.held

    run(certificates, test)


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_reset_travels_as_a_reset(certificates: Certificates, a: str, b: str, first: str) -> None:
    async def test(bed: Bed) -> None:
        sides = one, two = await bed.pair(a, b)
        await exchange(one, two)
        resets, sees = sides if first == "a" else sides[::-1]
        await sees.user.send(b"never read")  # which makes a UNIX socket's close a reset
        await resets.user.waiting()
        resets.user.reset()
        await sees_reset(sees)
        await until(lambda: one.done and two.done)
        assert resets.done == [Ending.RESET]
        assert sees.done == [Ending.RESET]

    run(certificates, test)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_an_owner_ends_both(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.pair(a, b)
        await exchange(one, two)
        for side in (one, two):
            side.end.abort(Ending.ADMIN)
            side.end.abort(Ending.TIMED_OUT)
        await sees_reset(one)
        await sees_reset(two)
        assert one.done == two.done == [Ending.ADMIN]
        assert one.end.ending is two.end.ending is Ending.ADMIN

    run(certificates, test)


@pytest.mark.parametrize("who", ["the writer", "the reader"])
@pytest.mark.parametrize(("a", "b"), pairs(a="stop its writer", b="stop its writer"))
def test_reset_while_paused_is_noticed(
    certificates: Certificates, a: str, b: str, who: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.small = True
        one, two = await bed.pair(a, b)
        await exchange(one, two)
        await two.user.send(b"never read")
        await one.user.waiting()
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await one.user.send(BLOCK[:4096])
                sent += 4096

        flooding = bed.spawn(flood())
        await is_quiet(lambda: sent)
        resets, sees = (one, two) if who == "the writer" else (two, one)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        resets.user.reset()
        await until(lambda: one.done and two.done)  # though nobody reads or writes any more
        assert one.done == two.done == [Ending.RESET]
        await sees_reset(sees)

    run(certificates, test)


# Where a writer cannot be stopped its end may come first, and at some it ends both directions.
ONE_STAYS_OPEN = pairs(a="half-close", b="half-close") + pairs(a="stop its writer")


@pytest.mark.parametrize(
    ("a", "b"), [pair for pair in pairs(a="half-close") if pair in ONE_STAYS_OPEN]
)
def test_half_close_while_paused_comes_after_the_bytes(
    certificates: Certificates, a: str, b: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.small = True
        one, two = await bed.pair(a, b)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(10):
                for at in range(0, len(BLOCK), 4096):
                    await one.user.send(BLOCK[at : at + 4096])
                    sent += 4096
            await one.user.send_eof()

        sending = bed.spawn(send())
        await is_quiet(lambda: sent)
        await two.user.send(b"done")
        await two.user.send_eof()
        assert await read_all(one.user) == b"done"
        assert await read_all(two.user) == BLOCK * 10
        await sending
        await until(lambda: one.done and two.done)
        assert one.done == two.done == [Ending.CLEAN]

    run(certificates, test)


@pytest.mark.parametrize("kind", [kind for kind in able("half-close") if kind != "mux"])
def test_a_drained_sink_releases_what_a_stream_held(certificates: Certificates, kind: str) -> None:
    """Also when the half-close came before the sink had drained: the other direction lives on."""

    async def test(bed: Bed) -> None:
        bed.small = True
        one, two = await bed.pair("mux", kind)
        await one.user.send(BLOCK)
        await one.user.send_eof()
        await until(lambda: two.end.bytes_written == len(BLOCK))
        assert await read_all(two.user) == BLOCK
        session = one.end.session
        await until(lambda: not session.held and not session._holders)
        assert one.done == two.done == []

    run(certificates, test)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_far_side_speaks_first_and_leaves(certificates: Certificates, a: str, b: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.side(a), await bed.side(b)
        await two.user.send(b"220 hello")
        await two.user.send_eof()
        join(one.end, two.end)
        assert await read_all(one.user) == b"220 hello"
        await one.user.send_eof()
        assert await read_all(two.user) == b""
        await until(lambda: one.done and two.done)
        assert one.done == two.done == [Ending.CLEAN]

    run(certificates, test)


@pytest.mark.parametrize("when", ["before join", "after join"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_gone_at_once(certificates: Certificates, a: str, b: str, when: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = await bed.side(a), await bed.side(b)
        if when == "after join":
            join(one.end, two.end)
        two.user.close()
        if when == "before join":
            join(one.end, two.end)
        try:
            assert await read_all(one.user) == b""
        except OSError:
            # Memory and streams close by a reset, and TLS without close_notify is one.
            assert b not in ("tcp", "unix")
        else:
            assert b in ("tcp", "unix") or a == "unix"
        one.user.close()
        await until(lambda: one.done and two.done)
        assert len(one.done) == len(two.done) == 1

    run(certificates, test)
