"""Places for connections, and strangers that crowd each other out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.net.rules_slots import (
    CONNECTION_BYTES,
    HERE,
    STRANGER_S,
    AdmissionRefusal,
    Allowance,
    ConnectionSlots,
    Strangers,
    stranger_refusal,
)
from isthmus.testing import ManualClock
from isthmus.tunnel.budget import Budget

SOURCES = st.sampled_from(["a", "b", "c", "d"])


def test_one_source_has_three_quarters_at_most() -> None:
    places = ConnectionSlots(8)
    for _ in range(6):
        assert places.refusal("a") is None
        places.enter("a")
    assert places.refusal("a") is AdmissionRefusal.TOO_MANY_OF_SOURCE
    for _ in range(2):
        assert places.refusal("b") is None
        places.enter("b")
    assert places.refusal("c") is AdmissionRefusal.TOO_MANY
    places.leave("a")
    assert places.refusal("a") is None and places.refusal("c") is None


def test_this_machine_is_bounded_with_all_others_and_not_by_itself() -> None:
    places = ConnectionSlots(4, 1)
    for _ in range(4):
        assert places.refusal(HERE) is None
        places.enter(HERE)
    assert places.refusal(HERE) is AdmissionRefusal.TOO_MANY


def test_other_bounds_from_now_on() -> None:
    places = ConnectionSlots(2)
    places.enter("a")
    assert places.refusal("a") is AdmissionRefusal.TOO_MANY_OF_SOURCE
    places.resize(8)
    assert (places.most, places.most_per_source) == (8, 6) and places.refusal("a") is None
    places.resize(1, 1)
    assert places.refusal("b") is AdmissionRefusal.TOO_MANY
    places.leave("a")
    assert places.refusal("b") is None


def test_a_source_that_has_left_is_forgotten() -> None:
    places = ConnectionSlots(3, 1)
    places.enter("a")
    assert len(places) == 1
    places.leave("a")
    assert (len(places), dict(places.taken)) == (0, {})


@pytest.mark.parametrize(("most", "own"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_few_places(most: int, own: int) -> None:
    assert ConnectionSlots(most).most_per_source == own


def test_the_greedy_one_makes_way() -> None:
    strangers: Strangers[int] = Strangers(4)
    for number in range(4):
        assert not strangers.is_full_for("greedy") and strangers.must_leave() is None
        strangers.add(number, "greedy")
    assert strangers.is_full_for("greedy")
    assert not strangers.is_full_for("other")
    assert strangers.must_leave() == 3, "the newest has lost the least"
    strangers.remove(3)
    strangers.add(10, "other")
    strangers.remove(2)
    strangers.add(11, "other")
    # Two each: nobody has to give any more.
    assert strangers.is_full_for("other") and strangers.is_full_for("greedy")
    assert not strangers.is_full_for("third")


def test_who_is_no_stranger_is_let_be() -> None:
    strangers: Strangers[int] = Strangers(1)
    strangers.remove(7)
    assert not len(strangers)


@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), SOURCES), max_size=60))
def test_never_too_many_and_always_fair(most: int, events: list[tuple[bool, str]]) -> None:
    strangers: Strangers[int] = Strangers(most)
    inside: dict[int, str] = {}
    for number, (comes, source) in enumerate(events):
        if not comes:
            gone = next((item for item, of in inside.items() if of == source), None)
            if gone is not None:
                strangers.remove(gone)
                del inside[gone]
            continue
        counts = Counter(inside.values())
        full = strangers.is_full_for(source)
        if full:
            # Refused only if nobody has so many more than it that it could be helped fairly.
            assert len(inside) == most and max(counts.values()) <= counts[source] + 1
            continue
        leaves = strangers.must_leave()
        if leaves is not None:
            assert counts[inside[leaves]] == max(counts.values()) > counts[source] + 1
            strangers.remove(leaves)
            del inside[leaves]
        strangers.add(number, source)
        inside[number] = source
        assert len(strangers) == len(inside) <= most


def test_where_the_oldest_makes_way() -> None:
    strangers: Strangers[str] = Strangers(3)
    for item, source in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        strangers.add(item, source)
    assert strangers.must_leave(oldest=True) == "a1"
    assert strangers.must_leave() == "a2"
    assert strangers.remove("a1") == "a"
    assert strangers.remove("a1") == ""
    assert sorted(strangers) == ["a2", "b1"]
    assert strangers.must_leave(oldest=True) is None


def test_in_a_budget_each_connection_costs_its_source() -> None:
    budget = Budget(100 * CONNECTION_BYTES)
    places = ConnectionSlots(1000)
    places.budget = budget
    for _ in range(50):
        assert places.refusal("10.0.0.1") is None
        places.enter("10.0.0.1")
    assert places.refusal("10.0.0.1") is AdmissionRefusal.MEMORY
    assert places.refusal("10.0.0.2") is places.refusal(HERE) is None
    for _ in range(50):
        places.leave("10.0.0.1")
    assert (budget.used_bytes, budget.peers) == (0, 0)


def test_a_source_that_proves_nothing_has_so_much_and_no_more() -> None:
    clock = ManualClock()
    allowance = Allowance(clock, burst_s=1.0, per_second_s=0.1)
    assert [allowance.spend("a", 0.4) for _ in range(3)] == [True, True, False]
    assert allowance.spend("b", 1.0), "another one pays nothing for it"
    assert allowance.spend("", 99.0), "what came by no gate is not counted"
    clock.advance(2.0)
    assert allowance.spend("a", 0.39) and not allowance.spend("a", 0.1)
    clock.advance(1000.0)
    assert not allowance.spend("a", 1.1), "never more than at first"


def test_whoever_shows_who_it_is_gets_back_what_it_cost() -> None:
    allowance = Allowance(ManualClock(), burst_s=1.0, per_second_s=0.0)
    for _ in range(100):
        assert allowance.spend("a", 0.9)
        allowance.give_back("a", 0.9)
    allowance.give_back("a", 50.0)
    allowance.give_back("never seen", 1.0)
    assert allowance.spend("a", 1.0) and not allowance.spend("a", 0.1)


def test_the_sources_that_are_remembered_are_bounded() -> None:
    allowance = Allowance(ManualClock())
    for number in range(10_000):
        allowance.spend(str(number), 1.0)
    assert len(allowance) == 4096


def test_why_a_stranger_is_refused() -> None:
    strangers: Strangers[int] = Strangers(2)
    allowance = Allowance(lambda: 0.0, burst_s=2 * STRANGER_S, per_second_s=0.0)
    budget = Budget(1 << 20)

    def refusal(source: str) -> AdmissionRefusal | None:
        return stranger_refusal(source, strangers, allowance, budget)

    assert refusal("a") is None and refusal("a") is None
    assert refusal("a") is AdmissionRefusal.TOO_FAST
    account = budget.account("b")
    account.hold(1 << 20)
    assert refusal("b") is AdmissionRefusal.MEMORY
    strangers.add(1, "a")
    strangers.add(2, "c")
    assert refusal("c") is AdmissionRefusal.CROWD, "first, for it costs the least"


def test_this_machine_is_refused_when_it_has_used_up_the_budget() -> None:
    places = ConnectionSlots(1000)
    budget = places.budget = Budget(1 << 20)
    account = places.account(HERE)
    assert account is not None
    account.hold(3 << 18)
    assert places.refusal(HERE) is None, "more than a share, but something is left"
    account.hold(1 << 18)
    assert places.refusal(HERE) is AdmissionRefusal.MEMORY
    assert places.refusal("10.0.0.1") is None
    account.give_back(1 << 20)
    account.close()
    assert (places.refusal(HERE), budget.peers) == (None, 0)
    budget.account("10.0.0.1").hold(2 << 20)
    assert places.refusal(HERE) is None, "others did"
