"""Names that nodes ask for: what is found of them, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import pytest

from isthmus.dial.dialers.direct import DirectDialer, PermittedOnly
from isthmus.dial.settings_destinations import parse_destinations
from isthmus.errors import DialFailure
from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.values import HostPort

LISTED = parse_destinations(["localhost:6443", "10.0.0.0/28:6443", "[fd00::/64]:6443"])
Answer = list[str] | DialFailure
P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def look_up(resolver: PermittedOnly, host: str, port: int = 6443) -> asyncio.Future[Answer]:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def found(addresses: Sequence[Address]) -> None:
        answer.set_result([address[0] for _, address in addresses])

    def failed(failure: DialFailure, detail: str) -> None:
        answer.set_result(failure)

    resolver.lookup(HostPort(host, port), found, failed)
    return answer


@in_a_loop
async def test_every_address_of_a_listed_name_is_found() -> None:
    resolver = PermittedOnly(
        asyncio.get_running_loop(), LISTED, {"localhost": ["127.0.0.1", "192.0.2.1"]}
    )
    assert await look_up(resolver, "localhost") == ["127.0.0.1", "192.0.2.1"]


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (["10.0.0.1"], ["10.0.0.1"]),
        (["192.0.2.1", "10.0.0.1", "fd00::1", "fd00:0:0:1::"], ["10.0.0.1", "fd00::1"]),
        (["::ffff:10.0.0.1", "::ffff:192.0.2.1"], ["::ffff:10.0.0.1"]),
        (["192.0.2.1"], DialFailure.DENIED),
        (["127.0.0.1"], DialFailure.DENIED),
    ],
)
@in_a_loop
async def test_of_any_other_name_those_that_are_listed(addresses: list[str], found: Answer) -> None:
    resolver = PermittedOnly(asyncio.get_running_loop(), LISTED, {"other.example": addresses})
    assert await look_up(resolver, "other.example") == found


@in_a_loop
async def test_whether_there_is_such_a_name_is_not_told() -> None:
    resolver = PermittedOnly(asyncio.get_running_loop(), LISTED)
    assert await look_up(resolver, "no.such.name.invalid") is DialFailure.DENIED


class Slow(PermittedOnly):
    """The system's resolver answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), LISTED)
        self.asked: dict[str, asyncio.Future[list[str]]] = {}

    async def _find(self, name: str, client: Hashable) -> Sequence[str]:
        answer = self.asked[name] = asyncio.get_running_loop().create_future()
        return await answer

    async def says(self, host: str, *addresses: str) -> None:
        while host not in self.asked:
            await asyncio.sleep(0)
        self.asked[host].set_result(list(addresses))


@in_a_loop
async def test_no_name_waits_for_another() -> None:
    slow = Slow()
    first, second = look_up(slow, "a.example"), look_up(slow, "b.example")
    named = look_up(slow, "named.example")
    await slow.says("named.example", "192.0.2.7")
    assert await named is DialFailure.DENIED
    await slow.says("b.example", "10.0.0.1")
    assert await second == ["10.0.0.1"] and not first.done()
    await slow.says("a.example", "192.0.2.1")
    assert await first is DialFailure.DENIED


@in_a_loop
async def test_a_name_is_looked_up_once_for_all_that_ask_meanwhile() -> None:
    slow = Slow()
    answers = [look_up(slow, "kube.example") for _ in range(3000)]
    await slow.says("kube.example", "10.0.0.1")
    assert [await answer for answer in answers] == [["10.0.0.1"]] * 3000
    del slow.asked["kube.example"]
    later = look_up(slow, "kube.example")  # not an answer of the past
    await slow.says("kube.example", "10.0.0.2")
    assert await later == ["10.0.0.2"]


@in_a_loop
async def test_whoever_gives_up_leaves_no_lookup() -> None:
    loop, slow = asyncio.get_running_loop(), Slow()
    dialer = DirectDialer(loop, Poller(loop), slow)
    told: list[str] = []
    for name in ("slow.example", "other.example"):
        for n in range(3000):
            dialer.dial(
                HostPort(f"{n}.{name}", 6443),
                timeout_s=60.0,
                reached=lambda _: told.append("reached"),
                failed=lambda failure, detail: told.append(detail),
            ).cancel()
    assert slow.pending == 0
    second = look_up(slow, "b.example")  # there is room for it
    await slow.says("b.example", "10.0.0.2")
    assert await second == ["10.0.0.2"]
    assert told == []
    dialer.poller.shut_down()
