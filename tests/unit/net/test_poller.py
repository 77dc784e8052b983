"""The poller on real sockets: edges, batches, fairness, failures and the end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import uvloop

from isthmus.net.poller import IN, OUT, RDHUP, Poller

Pair = tuple[socket.socket, socket.socket]
MakePair = Callable[[], Pair]
DEADLINE_S = 20.0


@pytest.fixture
def pair() -> Iterator[MakePair]:
    made: list[socket.socket] = []

    def make() -> Pair:
        near, far = socket.socketpair()
        made.extend((near, far))
        near.setblocking(False)
        far.setblocking(False)
        return near, far

    yield make
    for sock in made:
        sock.close()


async def reached(count: Callable[[], int], wanted: int) -> None:
    await until(lambda: count() == wanted)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)


def run(test: Callable[[Poller], Awaitable[None]]) -> None:
    """Run on uvloop with a poller that is shut down afterwards."""

    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        try:
            await test(poller)
        finally:
            poller.shut_down()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_an_edge_comes_once(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        near, far = pair()
        other_near, other_far = pair()
        seen: list[int] = []
        others: list[int] = []
        poller.register(near.fileno(), IN | RDHUP, seen.append)
        poller.register(other_near.fileno(), IN, others.append)
        assert len(poller) == 2
        far.send(b"x")
        await until(lambda: seen)
        for count in range(1, 20):  # rounds in which a level would be told again
            other_far.send(b"x")
            await reached(others.__len__, count)
        assert seen == [IN]
        far.send(b"y")
        await until(lambda: len(seen) == 2)
        far.close()
        await until(lambda: len(seen) == 3)
        assert seen[2] & RDHUP

    run(test)


def test_registering_again_changes_the_handler(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        near, far = pair()
        old: list[int] = []
        new: list[int] = []
        poller.register(near.fileno(), IN, old.append)
        poller.register(near.fileno(), IN, new.append)
        assert len(poller) == 1
        far.send(b"x")
        await until(lambda: new)
        assert not old

    run(test)


def test_modify_gives_an_edge_for_what_holds_already(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        near, _ = pair()
        seen: list[int] = []
        poller.register(near.fileno(), IN, seen.append)
        poller.modify(near.fileno(), IN | OUT)
        await until(lambda: seen)
        assert seen == [OUT]

    run(test)


def test_a_number_is_not_reused_within_a_batch(pair: MakePair) -> None:
    """Both sockets are ready; whichever comes first closes the other and makes new ones."""

    async def test(poller: Poller) -> None:
        sockets = [pair() for _ in range(2)]
        seen: list[int] = []
        fresh: list[Pair] = []
        strangers: list[int] = []

        def handle(which: int, mask: int) -> None:
            seen.append(which)
            doomed = sockets[1 - which][0]
            number = doomed.fileno()
            poller.close(doomed)
            for _ in range(4):
                fresh.append(pair())
                new = fresh[-1][0].fileno()
                assert new != number
                poller.register(new, IN, strangers.append)

        for which in (0, 1):
            poller.register(sockets[which][0].fileno(), IN, partial(handle, which))
            sockets[which][1].send(b"x")
        await until(lambda: seen)
        await until(lambda: sockets[1 - seen[0]][0].fileno() == -1)
        assert len(seen) == 1  # the closed one was not told
        assert not strangers  # nor was anybody told its event
        fresh[0][1].send(b"x")
        await until(lambda: strangers)

    run(test)


def test_a_number_can_be_reused_after_the_batch(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        old, _ = pair()
        number = old.fileno()
        poller.register(number, IN, lambda mask: None)
        poller.close(old)
        poller.close(old)
        assert len(poller) == 0
        await until(lambda: old.fileno() == -1)
        kept = []
        while True:
            near, far = pair()
            kept.append((near, far))
            if number in (near.fileno(), far.fileno()):
                break
            assert len(kept) < 50
        if far.fileno() == number:
            near, far = far, near
        seen: list[int] = []
        poller.register(near.fileno(), IN, seen.append)
        far.send(b"x")
        await until(lambda: seen)

    run(test)


def test_a_failing_handler_stops_nobody(pair: MakePair, caplog: pytest.LogCaptureFixture) -> None:
    async def test(poller: Poller) -> None:
        seen: list[str] = []

        def fail(*_: object) -> None:
            seen.append("failed")
            raise RuntimeError("handler")

        for handler in (fail, lambda *_: seen.append("called"), fail):
            near, far = pair()
            poller.register(near.fileno(), IN, handler)
            far.send(b"x")
            poller.again(handler)
            poller.flush_later(handler)
        await until(lambda: len(seen) == 9)
        assert seen.count("called") == 3

    with caplog.at_level(logging.ERROR, "isthmus.net"):
        run(test)
    assert len(caplog.records) == 6
    assert all(record.exc_info for record in caplog.records)


def test_a_firehose_does_not_starve_others(pair: MakePair) -> None:
    """A second look waits for the next round, in which everybody else is asked first."""

    async def test(poller: Poller) -> None:
        near, far = pair()
        rounds = answers = 0

        def firehose() -> None:
            nonlocal rounds
            rounds += 1
            poller.again(firehose)

        def answer(_: int) -> None:
            nonlocal answers
            answers += len(near.recv(100))

        poller.register(near.fileno(), IN, answer)
        poller.again(firehose)
        for count in range(1, 201):
            before = rounds
            far.send(b"x")
            await reached(lambda: answers, count)
            assert rounds - before <= 10
        assert rounds

    run(test)


def test_flushes_come_after_the_whole_batch(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        order: list[str] = []

        def nested() -> None:
            order.append("flush")
            if order.count("flush") == 3:
                poller.flush_later(lambda: order.append("nested flush"))

        def handle(_: int) -> None:
            order.append("event")
            poller.again(lambda: order.append("again"))
            poller.flush_later(nested)

        for _ in range(3):
            near, far = pair()
            far.send(b"x")
            poller.register(near.fileno(), IN, handle)
        await until(lambda: "nested flush" in order)
        assert order == ["event"] * 3 + ["again"] * 3 + ["flush"] * 3 + ["nested flush"]

    run(test)


def test_more_events_than_one_batch(pair: MakePair) -> None:
    async def test(poller: Poller) -> None:
        seen: set[int] = set()

        def note(number: int, mask: int) -> None:
            seen.add(number)

        for number in range(300):
            near, far = pair()
            poller.register(near.fileno(), IN, partial(note, number))
            far.send(b"x")
        await until(lambda: len(seen) == 300)

    run(test)


def test_shut_down(pair: MakePair) -> None:
    """What was doomed is closed, owners can still close the rest, and nothing raises."""

    async def test(poller: Poller) -> None:
        (doomed, _), (kept, far) = pair(), pair()
        seen: list[int] = []
        for sock in (doomed, kept):
            poller.register(sock.fileno(), IN, seen.append)
        poller.close(doomed)
        far.send(b"x")
        poller.shut_down()
        poller.shut_down()
        assert doomed.fileno() == -1
        assert len(poller) == 0
        poller.modify(kept.fileno(), IN | OUT)
        poller.close(kept)
        assert kept.fileno() == -1
        ran: list[int] = []
        asyncio.get_running_loop().call_soon(ran.append, 1)
        await until(lambda: ran)
        assert not seen

    run(test)
