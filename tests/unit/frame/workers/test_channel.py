"""What goes between a parent and a worker: messages, and descriptors."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import ParamSpec

import msgspec
import pytest
import uvloop

from isthmus.errors import ProtocolError
from isthmus.frame.model.history import Tally
from isthmus.frame.workers.channel import (
    MOST_BYTES,
    Begin,
    Channel,
    Started,
    WorkerAnswer,
    WorkerQuestion,
    WorkerReport,
)
from isthmus.frame.workers.passing import Giver, Taker, make_pair
from isthmus.net.poller import Poller

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test in a loop of the kind that programs run in."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.setblocking(False)
    with one, other:
        yield one, other


@in_loop
async def test_messages_arrive_as_they_were_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    parent, worker = await Channel.of_parent(pair[0]), await Channel.of_worker(pair[1])
    parent.send(Begin(index=1, count=2, program_id="x"))
    parent.send(WorkerQuestion(number=7, what="snapshot", given={"limit": "10"}))
    assert await worker.receive() == Begin(index=1, count=2, program_id="x")
    assert await worker.receive() == WorkerQuestion(
        number=7, what="snapshot", given={"limit": "10"}
    )
    report = WorkerReport(
        taken=3,
        ready=[("agents", "none")],
        tally=Tally(failures={"x": 1}, dial_times={math.inf: 1}),
    )
    worker.send(Started())
    worker.send(report)
    worker.send(WorkerAnswer(number=7, body=os.urandom(3_000_000)))
    assert await parent.receive() == Started()
    assert await parent.receive() == report
    answer = await parent.receive()
    assert isinstance(answer, WorkerAnswer) and len(answer.body) == 3_000_000
    worker.close()
    assert await parent.receive() is None
    parent.close()


@pytest.mark.parametrize(
    "sent", [(MOST_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\x02no", b"\0\0\0\x01\x80"]
)
@in_loop
async def test_nonsense_is_told_apart(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    parent = await Channel.of_parent(pair[0])
    pair[1].send(sent)
    with pytest.raises(ProtocolError):
        await parent.receive()
    parent.close()


@in_loop
async def test_who_was_cancelled_in_the_middle_of_a_message_hears_it_the_next_time(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    # As a parent does that was told to stop while a worker reports.
    parent, worker = await Channel.of_parent(pair[0]), await Channel.of_worker(pair[1])
    hearing = asyncio.create_task(parent.receive())
    said = WorkerReport(taken=3, status="x" * 1000)
    body = msgspec.msgpack.encode(said)
    pair[1].send(len(body).to_bytes(4, "big") + body[:500])
    try:
        async with asyncio.timeout(10):
            while not parent._reader._buffer:  # type: ignore[attr-defined]  # the half is there
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            hearing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hearing
            pair[1].send(body[500:])
            worker.send(Started())
            assert await parent.receive() == said
            assert await parent.receive() == Started()
    finally:
        worker.close()
        parent.close()


@in_loop
async def test_half_a_message_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    parent = await Channel.of_parent(pair[0])
    pair[1].send(b"\0\0\0\x05ab")
    pair[1].close()
    assert await parent.receive() is None
    parent.close()


@in_loop
async def test_a_connection_goes_over_with_what_its_peer_has_sent() -> None:
    poller = Poller(asyncio.get_running_loop())
    taken: asyncio.Queue[tuple[str, socket.socket]] = asyncio.Queue()
    ours, theirs = make_pair()
    giver = Giver(ours, poller, lambda: None)
    taker = Taker(theirs, poller, lambda flag, sock: taken.put_nowait((flag, sock)))
    near, far = socket.socketpair()
    far.send(b"early")
    assert giver.give("--uds-name", near)
    near.close()
    async with asyncio.timeout(10):
        flag, sock = await taken.get()
    assert flag == "--uds-name"
    assert sock.recv(10) == b"early"
    assert not os.get_inheritable(sock.fileno())
    assert (giver.given, taker.taken) == (1, 1)
    for each in (sock, far):
        each.close()
    giver.close()
    taker.close()
    await asyncio.sleep(0)
    poller.shut_down()


@in_loop
async def test_a_full_queue_says_so_and_goes_on_when_there_is_room() -> None:
    poller = Poller(asyncio.get_running_loop())
    room = asyncio.Event()
    ours, theirs = make_pair()
    giver = Giver(ours, poller, room.set)
    near, far = socket.socketpair()
    while giver.give("x", near):
        assert giver.given < 100_000
    full = giver.given
    room.clear()
    socks: list[socket.socket] = []
    taker = Taker(theirs, poller, lambda _, sock: socks.append(sock))
    async with asyncio.timeout(10):
        await room.wait()
        while taker.taken < full:
            await asyncio.sleep(0)
    assert giver.give("x", near)
    taker.take_all()
    assert len(socks) == full + 1
    theirs.close()
    assert not giver.give("x", near)  # nobody takes any more, which is no error either
    for each in (near, far, *socks):
        each.close()
    giver.close()
    await asyncio.sleep(0)
    poller.shut_down()
