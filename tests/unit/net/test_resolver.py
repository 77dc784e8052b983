"""Names to addresses: aliases first, the system after them, families taking turns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

import pytest

from isthmus.errors import DialFailure
from isthmus.net.connect import Address, literal
from isthmus.net.resolver import Resolver, interleaved
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
        resolver = Resolver(asyncio.get_running_loop(), max_pending=2)
        said: list[DialFailure] = []
        for _ in range(3):
            resolver.lookup(
                HostPort("no-such-name.invalid", 1), nobody, lambda why, _: said.append(why)
            )
        resolver.close()
        return list(said)

    assert asyncio.run(main()) == [DialFailure.TOO_MANY]


def test_closed_it_tells_nobody() -> None:
    async def main() -> None:
        resolver = Resolver(asyncio.get_running_loop())
        resolver.lookup(HostPort("localhost", 1), nobody, nobody)
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
