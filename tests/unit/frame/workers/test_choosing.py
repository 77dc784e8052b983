"""Which worker gets a connection."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from isthmus.frame.workers.doorman import MOST_SOURCES, InTurn, least_loaded


@dataclass
class Some:
    index: int
    load: int = 0
    ready: bool = True


def test_the_least_loaded_of_the_ready_ones() -> None:
    workers = [Some(0, 5), Some(1, 3), Some(2, 0, ready=False)]
    assert least_loaded(workers) is workers[1]


def test_without_a_ready_one_any_that_runs() -> None:
    workers = [Some(0, 5, ready=False), Some(1, 3, ready=False)]
    assert least_loaded(workers) is workers[1]
    assert least_loaded([]) is None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_worker_comes_once_before_any_comes_twice(count: int) -> None:
    turns = InTurn(random.Random(1).shuffle)
    workers = [Some(index) for index in range(count)]
    for _ in range(4):
        chosen = [turns.choose("10.0.0.1", workers) for _ in range(count)]
        assert {it.index for it in chosen if it is not None} == set(range(count))


def test_the_order_changes_so_that_agents_of_one_address_do_not_stay_in_step() -> None:
    turns = InTurn(random.Random(1).shuffle)
    workers = [Some(0), Some(1)]
    orders = set()
    for _ in range(20):
        one, other = turns.choose("a", workers), turns.choose("a", workers)
        assert one is not None and other is not None
        orders.add((one.index, other.index))
    assert orders == {(0, 1), (1, 0)}


def test_a_worker_that_does_not_run_is_passed_over() -> None:
    turns = InTurn(lambda order: None)
    workers = [Some(0), Some(1)]
    assert turns.choose("a", workers) is workers[1]
    assert turns.choose("a", workers[1:]) is workers[1]
    assert turns.choose("a", []) is None


def test_addresses_are_forgotten_when_there_are_too_many() -> None:
    turns = InTurn(lambda order: None)
    workers = [Some(0), Some(1)]
    assert turns.choose("first", workers) is workers[1]
    for number in range(MOST_SOURCES):
        turns.choose(f"other {number}", workers)
    assert len(turns._left) == MOST_SOURCES
    assert turns.choose("first", workers) is workers[1]  # its turn begins anew
