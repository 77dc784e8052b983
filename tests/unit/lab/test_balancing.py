"""The choice of a backend: at random, by source, by load; and skipped backends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.lab.balancer import BalanceBy, Outages, pick
from isthmus.values import HostPort

BACKENDS = [HostPort(f"server-{number}", 8091) for number in range(3)]
SOURCES = [f"10.{a}.{b}.{c}" for a in range(5) for b in range(20) for c in range(1, 31)]
# By coreutils: printf '10.0.0.1 server-0:8091' | b2sum -l 64; the smallest of the three is first.
KNOWN = {
    "10.0.0.1": "server-2",
    "10.0.0.2": "server-1",
    "10.0.0.3": "server-2",
    "10.0.0.4": "server-1",
    "10.0.0.5": "server-0",
    "10.0.0.6": "server-2",
}

sources = st.ip_addresses().map(str)
backend_lists = st.lists(
    st.builds(
        HostPort, st.sampled_from(["a", "b", "c.local", "10.0.0.9", "::1"]), st.integers(1, 9)
    ),
    max_size=8,
)
# The largest number below 1 is the one that would reach past the end.
chances = st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2**-53))


def order(
    backends: Sequence[HostPort],
    by: BalanceBy,
    *,
    source: str = "10.0.0.1",
    chance: Callable[[], float] = lambda: 0.0,
    down: Sequence[HostPort] = (),
    load: dict[HostPort, int] | None = None,
) -> list[HostPort]:
    return pick(backends, by, source_address=source, chance=chance, down=down, load=load)


@given(backends=backend_lists, by=st.sampled_from(BalanceBy), source=sources, data=st.data())
def test_everyone_who_is_up_is_tried_exactly_once(
    backends: list[HostPort], by: BalanceBy, source: str, data: st.DataObject
) -> None:
    down = data.draw(st.lists(st.sampled_from(backends))) if backends else []
    tried = order(
        backends, by, source=source, chance=lambda: data.draw(chances), down=down, load={}
    )
    assert Counter(tried) == dict.fromkeys(set(backends) - set(down), 1)


@given(backends=backend_lists, source=sources, data=st.data())
def test_a_source_keeps_its_order_whatever_chance_and_the_list_say(
    backends: list[HostPort], source: str, data: st.DataObject
) -> None:
    mixed = data.draw(st.permutations(backends))
    seen = order(mixed, BalanceBy.SOURCE, source=source, chance=lambda: data.draw(chances))
    assert seen == order(backends, BalanceBy.SOURCE, source=source)


@given(backends=backend_lists.filter(bool), source=sources, data=st.data())
def test_a_backend_that_goes_moves_only_its_own_clients(
    backends: list[HostPort], source: str, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(backends))
    before = order(backends, BalanceBy.SOURCE, source=source)
    without = [one for one in before if one != gone]
    assert order(backends, BalanceBy.SOURCE, source=source, down=[gone]) == without
    assert order([b for b in backends if b != gone], BalanceBy.SOURCE, source=source) == without


def test_a_source_goes_to_the_same_backend_in_every_process() -> None:
    chosen = {source: order(BACKENDS, BalanceBy.SOURCE, source=source)[0].host for source in KNOWN}
    assert chosen == KNOWN


@pytest.mark.parametrize("by", [BalanceBy.SOURCE, BalanceBy.RANDOM])
def test_many_clients_are_spread_over_all(by: BalanceBy) -> None:
    chance = random.Random(5).random
    first = Counter(order(BACKENDS, by, source=one, chance=chance)[0] for one in SOURCES)
    share = len(SOURCES) / len(BACKENDS)
    assert all(0.8 * share < first[backend] < 1.2 * share for backend in BACKENDS), first


def test_those_of_a_backend_that_goes_are_spread_over_the_others() -> None:
    orders = [order(BACKENDS, BalanceBy.SOURCE, source=one) for one in SOURCES]
    second = Counter(one[1] for one in orders if one[0] == BACKENDS[0])
    share = sum(second.values()) / 2
    assert all(0.75 * share < second[backend] < 1.25 * share for backend in BACKENDS[1:]), second


def test_chance_decides_the_whole_order() -> None:
    chance = random.Random(6).random
    seen = {tuple(order(BACKENDS, BalanceBy.RANDOM, chance=chance)) for _ in range(200)}
    assert len(seen) == 6


@given(loads=st.lists(st.integers(0, 5), min_size=3, max_size=3), number=chances)
def test_the_least_loaded_comes_first(loads: list[int], number: float) -> None:
    load = dict(zip(BACKENDS, loads, strict=True))
    tried = order(BACKENDS, BalanceBy.LEAST, load=load, chance=lambda: number)
    assert [load[one] for one in tried] == sorted(loads)


def test_between_equally_loaded_ones_chance_decides() -> None:
    chance = random.Random(7).random
    load = {BACKENDS[0]: 4}  # who is not named has none
    first = {order(BACKENDS, BalanceBy.LEAST, load=load, chance=chance)[0] for _ in range(100)}
    assert first == set(BACKENDS[1:])


def test_a_backend_that_failed_is_left_out_for_its_time() -> None:
    outages = Outages(down_s=1.0)
    assert outages.down(now=5.0) == frozenset()
    outages.failed(BACKENDS[0], now=5.0)
    outages.failed(BACKENDS[1], now=5.5)
    assert outages.down(now=5.9) == {BACKENDS[0], BACKENDS[1]}
    assert outages.down(now=6.0) == {BACKENDS[1]}
    outages.failed(BACKENDS[1], now=6.4)
    assert outages.down(now=7.3) == {BACKENDS[1]}
    assert outages.down(now=7.4) == frozenset()
