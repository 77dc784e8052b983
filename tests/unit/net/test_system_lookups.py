"""getaddrinfo in threads: few of them, never all for one client, and turns for those who wait."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from isthmus.net.name_service import SystemLookups

LIMIT_S = 20.0


class Library:
    """The C library: names that begin with ``hang`` wait until the test lets them go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = threading.Event()

    def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        if host.startswith("hang") and not self.go_on.wait(LIMIT_S):
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.go_on.set()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.002)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def test_one_client_cannot_take_every_thread(library: Library) -> None:
    async def work() -> None:
        lookups = SystemLookups(asyncio.get_running_loop(), most=8, most_per_client=4)
        hanging = [asyncio.create_task(lookups.find(f"hang{n}", "a")) for n in range(50)]
        await until(lambda: len(library.asked) == 4)
        assert await lookups.find("quick", "b") == ["192.0.2.1"]
        more = [asyncio.create_task(lookups.find(f"hang-b{n}", "b")) for n in range(50)]
        await until(lambda: len(library.asked) >= 7)
        assert await lookups.find("quick", "c") == ["192.0.2.1"]
        library.go_on.set()
        assert all(found == ["192.0.2.1"] for found in await asyncio.gather(*hanging, *more))
        assert not lookups._running and not lookups._queues and lookups._busy == 0

    run(work())


def test_whoever_gives_up_leaves_the_queue_and_its_thread_counts_until_it_ends(
    library: Library,
) -> None:
    async def work() -> None:
        lookups = SystemLookups(asyncio.get_running_loop(), most=4, most_per_client=1)
        hanging = [asyncio.create_task(lookups.find(f"hang{n}", "a")) for n in range(10)]
        await until(lambda: library.asked)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        assert not lookups._queues and lookups._busy == 1
        waits = asyncio.create_task(lookups.find("quick", "a"))
        await asyncio.sleep(0)
        assert library.asked == ["hang0"] and not waits.done()
        library.go_on.set()
        assert await waits == ["192.0.2.1"]
        await until(lambda: lookups._busy == 0)

    run(work())


def test_a_name_that_is_not_known(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    async def work() -> None:
        lookups = SystemLookups(asyncio.get_running_loop())
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(OSError, match="not known"):
            await lookups.find("none", "a")
        assert lookups._busy == 0

    run(work())
