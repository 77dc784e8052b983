"""Turns are fair by source, bounded, and given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.net.rules_slots import FairTurns


def turns(
    most: int = 4, of_one: int = 2, waiting: int = 100, waiting_of_one: int = 10
) -> FairTurns[str]:
    return FairTurns(
        most=most, most_of_one=of_one, waiting=waiting, waiting_of_one=waiting_of_one
    )  # fmt: skip


def begun(those: FairTurns[str]) -> list[str]:
    found = []
    while (job := those.begin()) is not None:
        found.append(job)
    return found


def test_a_source_has_so_many_turns_and_leaves_the_rest_to_others() -> None:
    those = turns()
    for number in range(6):
        assert those.come("a", f"a{number}") is None
    assert begun(those) == ["a0", "a1"]
    assert those.come("b", "b0") is None
    assert begun(those) == ["b0"]  # at once, though five of the first wait
    those.over("a")
    assert begun(those) == ["a2"]


def test_sources_take_turns() -> None:
    those = turns(most=1, of_one=1)
    for source in "abc":
        for number in range(3):
            assert those.come(source, f"{source}{number}") is None
    order = []
    while (job := those.begin()) is not None:
        order.append(job)
        those.over(job[0])
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_queue_of_a_source_is_bounded() -> None:
    those = turns(most=0, waiting_of_one=2)
    assert [those.come("a", f"a{number}") for number in range(3)] == [None, None, "a2"]
    assert those.come("b", "b0") is None
    assert len(those) == 3


def test_when_all_places_are_taken_the_greediest_gives_one_up() -> None:
    those = turns(most=0, waiting=4)
    for number in range(4):
        assert those.come("a", f"a{number}") is None
    assert those.come("b", "b0") == "a3"
    assert those.come("c", "c0") == "a2"
    assert those.come("a", "a4") == "a4"
    assert those.come("b", "b1") == "b1"  # it would have as many as the greediest
    assert len(those) == 4


def test_whoever_leaves_is_not_called() -> None:
    those = turns()
    those.come("a", "a0")
    those.come("a", "a1")
    those.leave("a", "a0")
    those.leave("a", "never came")
    those.leave("nobody", "a1")
    assert begun(those) == ["a1"]
    those.over("a")
    assert (len(those), those.holding) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["come", "leave", "over"]))))
def test_whatever_happens_the_bounds_hold_and_nobody_waits_for_nothing(
    steps: list[tuple[str, str]],
) -> None:
    those: FairTurns[tuple[str, int]] = FairTurns(
        most=3, most_of_one=2, waiting=8, waiting_of_one=4
    )
    waiting: set[tuple[str, int]] = set()
    holding: list[str] = []
    for number, (source, what) in enumerate(steps):
        if what == "come":
            waiting.add((source, number))
            gone = those.come(source, (source, number))
            waiting -= {gone} if gone is not None else set()
        elif what == "leave" and waiting:
            job = min(waiting)
            waiting.remove(job)
            those.leave(job[0], job)
        elif what == "over" and source in holding:
            holding.remove(source)
            those.over(source)
        while (begins := those.begin()) is not None:
            waiting.remove(begins)
            holding.append(begins[0])
        assert len(those) == len(waiting) <= 8
        assert those.holding == len(holding) <= 3
        assert all(holding.count(it) <= 2 for it in holding)
        # Nobody waits while there is a turn that it may have.
        assert len(holding) == 3 or all(holding.count(it) == 2 for it, _ in waiting)
