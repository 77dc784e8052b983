"""Names to addresses: aliases first, the system after them, families taking turns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any

import pytest

from isthmus.errors import DialFailure
from isthmus.net.connect import Address, literal
from isthmus.net.resolver import YOUNG_S, Cancel, Resolver, interleaved
from isthmus.values import HostPort


def lookup(host: str, aliases: Mapping[str, tuple[str, ...]] | None = None) -> Sequence[Address]:
    async def main() -> Sequence[Address]:
        resolver = Resolver(asyncio.get_running_loop(), aliases)
        return await resolver.addresses(HostPort(host, 80))

    return asyncio.run(main())


def nobody(*_: object) -> None:
    pytest.fail("told")


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_address_is_itself(host: str) -> None:
    assert lookup(host) == [literal(host, 80)]


@pytest.mark.parametrize("asked", ["demo.internal", "DEMO.internal", "demo.internal."])
def test_an_alias_has_all_its_addresses(asked: str) -> None:
    aliases = {"Demo.Internal": ("192.0.2.1", "2001:db8::1")}
    assert lookup(asked, aliases) == [literal("192.0.2.1", 80), literal("2001:db8::1", 80)]


def test_the_system_knows_localhost() -> None:
    assert {address[1][0] for address in lookup("localhost")} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["no-such-name.invalid", "a" * 60 + "." + "b" * 60 + ".invalid"])
def test_a_name_that_does_not_exist(host: str) -> None:
    with pytest.raises(OSError):
        lookup(host)


def test_lookups_are_bounded() -> None:
    async def main() -> list[DialFailure]:
        resolver = Resolver(asyncio.get_running_loop(), max_pending=4)
        said: list[DialFailure] = []
        for n in range(3):
            resolver.lookup(
                HostPort(f"no-such-name-{n}.invalid", 1), nobody, lambda why, _: said.append(why)
            )
        resolver.close()
        return list(said)

    assert asyncio.run(main()) == [DialFailure.TOO_MANY]


class Never(Resolver):
    """Finds nothing, ever; ``asked`` has the names that are being looked up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_pending: int) -> None:
        super().__init__(loop, max_pending=max_pending)
        self.asked: set[str] = set()
        self.said: list[str] = []

    async def _find(self, name: str, client: Hashable) -> Sequence[str]:
        self.asked.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            self.asked.discard(name)
        return ()

    def ask(self, name: str, client: Hashable) -> Cancel:
        def failed(failure: DialFailure, detail: str) -> None:
            assert failure is DialFailure.TOO_MANY
            self.said.append(name)

        return self.lookup(HostPort(name, 1), nobody, failed, client)


def in_a_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(work())


@in_a_loop
async def test_no_client_has_more_than_half() -> None:
    names = Never(asyncio.get_running_loop(), 8)
    for n in range(6):
        names.ask(f"a{n}.example", "a")
    assert names.pending == 4 and names.said == ["a4.example", "a5.example"]
    names.close()


@in_a_loop
async def test_whoever_has_most_makes_room_for_another() -> None:
    names = Never(asyncio.get_running_loop(), 8)
    for n in range(4):
        names.ask(f"a{n}.example", "a")
    for n in range(3):
        names.ask(f"b{n}.example", "b")
    names.ask("c0.example", "c")
    assert names.said == []
    names.ask("c1.example", "c")
    names.ask("d0.example", "d")
    assert names.said == ["a0.example", "a1.example"]  # the oldest
    await asyncio.sleep(0)
    assert names.pending == 8 and not names.asked & {"a0.example", "a1.example"}
    names.close()


@in_a_loop
async def test_of_its_own_lookups_a_client_gives_up_the_old_ones() -> None:
    names = Never(asyncio.get_running_loop(), 4)
    names.ask("a0.example", "a")
    names.ask("a1.example", "a")
    names.ask("a2.example", "a")
    assert names.said == ["a2.example"]  # the others have hardly begun
    for lookup in names._lookups.values():
        lookup.began_at -= YOUNG_S
    names.ask("a3.example", "a")
    assert names.said == ["a2.example", "a0.example"] and names.pending == 2
    names.close()


@in_a_loop
async def test_a_lookup_that_others_want_goes_on_without_the_client_that_is_sent_away() -> None:
    names = Never(asyncio.get_running_loop(), 4)
    cancel = names.ask("shared.example", "a")
    names.ask("shared.example", "b")
    names.ask("shared.example", "b")
    assert names.pending == 1
    cancel()
    cancel()  # once more changes nothing
    assert names.pending == 1 and set(names._by_client) == {"b"}
    names.ask("a0.example", "a")
    names.close()
    assert names.pending == 0 and not names._by_client and names.said == []


class Compared:
    """A client that counts how often one is held against another."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


@in_a_loop
async def test_leaving_a_shared_lookup_does_not_look_at_all_who_wait() -> None:
    names = Never(asyncio.get_running_loop(), 4)
    one, other = Compared(), Compared()
    first = names.ask("shared.example", one)
    cancels = [names.ask("shared.example", other) for _ in range(500)]
    names.ask("shared.example", one)
    first()
    Compared.times = 0
    for cancel in cancels:
        cancel()
    assert Compared.times <= 2 * len(cancels)
    assert set(names._by_client) == {one}
    names.close()


@in_a_loop
async def test_cancelled_by_everybody_it_is_over() -> None:
    names = Never(asyncio.get_running_loop(), 4)
    cancels = [names.ask("slow.example", client) for client in ("a", "b", "a")]
    await asyncio.sleep(0)
    assert names.asked == {"slow.example"}
    for cancel in cancels:
        cancel()
    await asyncio.sleep(0)
    assert not names.asked and names.pending == 0 and not names._by_client


def test_closed_it_tells_nobody() -> None:
    async def main() -> None:
        resolver = Resolver(asyncio.get_running_loop())
        resolver.lookup(HostPort("no-such-name.invalid", 1), nobody, nobody)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        resolver.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks) and tasks

    asyncio.run(main())


def test_families_take_turns_and_nothing_comes_twice() -> None:
    four: list[Address] = [(socket.AF_INET, (f"192.0.2.{n}", 1)) for n in (1, 2, 3)]
    six: list[Address] = [(socket.AF_INET6, ("2001:db8::1", 1))]
    assert interleaved([*six, *four]) == [six[0], *four]
    assert interleaved([*four, *six, *four]) == [four[0], six[0], four[1], four[2]]
    assert interleaved([]) == []
