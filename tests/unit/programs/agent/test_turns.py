"""Whom an agent asks for next: the living at once, the dead each on its own and spread."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from isthmus.programs.agent.rules_servers import AskingTurns
from isthmus.testing.clock import ManualClock
from isthmus.text.pacing import Backoff
from isthmus.values import ServerId

CAP_S = 10.0


class Agent:
    """Asks on a clock that is moved by hand; who is asked for answers at once, or is dead."""

    def __init__(self, *named: str, most: int = 128, chance: Callable[[], float] = lambda: 0.5):
        def backoff() -> Backoff:
            return Backoff(first_s=1.0, cap_s=CAP_S, chance=chance)

        self.clock = ManualClock(0.0)
        self.asking = AskingTurns(backoff, most=most)
        self.named = [ServerId(each) for each in named]
        self.living: set[str] = set()
        self.linked: dict[str, float] = {}
        self.asked: list[tuple[float, str]] = []
        self.want()

    def want(self) -> None:
        missing = [each for each in self.named if each not in self.linked]
        self.asking.want(missing, now=self.clock())

    def lose(self, server: str) -> None:
        del self.linked[server]
        self.asking.lost(ServerId(server), now=self.clock())
        self.want()

    def go_on(self, for_s: float) -> None:
        """Ask for everybody whose turn comes within so long."""
        until = self.clock() + for_s
        while True:
            while (server := self.asking.take(now=self.clock())) is not None:
                self._ask(server)
            wait_s = self.asking.next_in_s(now=self.clock())
            if wait_s is None or self.clock() + wait_s > until:
                self.clock.advance(until - self.clock())
                return
            self.clock.advance(wait_s)

    def _ask(self, server: ServerId) -> None:
        self.asked.append((self.clock(), server))
        if server in self.living:
            self.linked[server] = self.clock()
            self.asking.came(server, now=self.clock())
            self.want()
        else:
            self.asking.failed(server, now=self.clock())

    def times(self, server: str) -> list[float]:
        return [at for at, each in self.asked if each == server]


def test_all_that_are_named_are_asked_for_at_once_dead_ones_or_not() -> None:
    agent = Agent("a", "b", "c", "d")
    agent.living = {"b", "d"}
    agent.go_on(0.0)
    assert [server for _, server in agent.asked] == ["a", "b", "c", "d"]
    assert set(agent.linked) == {"b", "d"}


def test_one_that_is_dead_is_asked_for_later_and_later() -> None:
    agent = Agent("dead")
    agent.go_on(30.0)
    assert agent.times("dead") == pytest.approx(
        [0, 1, 2.5, 4.75, 8.125, 13.1875, 20.78125], abs=0.001
    )


def test_one_that_is_dead_keeps_nobody_who_comes() -> None:
    agent = Agent(*(f"dead{number}" for number in range(20)))
    agent.go_on(100.0)
    agent.named.append(ServerId("new"))
    agent.living = {"new"}
    agent.want()
    agent.go_on(0.0)
    assert agent.linked == {"new": 100.0}


def test_those_that_failed_are_spread_over_their_delay() -> None:
    agent = Agent(*"abcd", chance=random.Random(1).random)
    agent.go_on(100.0)
    late = [at for at, _ in agent.asked if at > 60.0]
    gaps = [after - before for before, after in pairwise(late)]
    # Four within 10 s: one every 2.5 s, give or take the jitter, and never all at a time.
    assert min(gaps) >= 2.0 and max(gaps) < 5.0
    assert all(len([at for at in agent.times(each) if at > 60.0]) >= 3 for each in "abcd")


@pytest.mark.parametrize("count", [6, 128])
def test_however_many_are_dead_an_agent_asks_only_so_often(count: int) -> None:
    agent = Agent(*(f"dead{number:03}" for number in range(count)))
    agent.go_on(0.0)
    assert len(agent.asked) == count
    agent.go_on(1000.0)
    later = agent.asked[count:]
    gaps = [after - before for (before, _), (after, _) in pairwise(later)]
    assert min(gaps) >= 0.5 - 1e-9  # of a second, which is the first delay
    late = [server for at, server in agent.asked if at > 900.0]
    assert len(late) <= 5 * 10 + 1  # five within the longest delay
    assert {server for _, server in later} == set(agent.named)  # and all have their turn


def test_when_one_is_back_all_others_are_tried_again() -> None:
    agent = Agent("a", "b", "c", "dead")
    agent.go_on(100.0)
    agent.living = {"a", "b", "c"}
    agent.go_on(CAP_S)
    first = min(agent.linked.values())
    assert first <= 100.0 + 2 * CAP_S / 4  # the dead one and one of the others at the latest
    assert set(agent.linked) == {"a", "b", "c"}
    # Whoever was asked for just before waits for a second since then; the others do not.
    assert max(agent.linked.values()) <= first + 1.0
    assert agent.times("dead")[-1] >= first
    assert min(
        after - before
        for each in ("a", "b", "c", "dead")
        for before, after in pairwise(agent.times(each))
    ) >= 1.0  # fmt: skip


def test_one_that_was_lost_is_asked_for_after_a_moment_with_jitter() -> None:
    linked_again = set()
    for chance in (0.0, 0.5, 1.0):
        agent = Agent("a", chance=lambda chance=chance: chance)  # type: ignore[misc]
        agent.living = {"a"}
        agent.go_on(5.0)
        agent.lose("a")
        agent.go_on(2.0)
        linked_again.add(round(agent.linked["a"] - 5.0, 3))
    assert linked_again == {0.8, 1.0, 1.2}


def test_one_that_comes_and_goes_wakes_nobody() -> None:
    agent = Agent("flaps", "dead")
    agent.living = {"flaps"}
    agent.go_on(0.0)
    for _ in range(30):
        agent.lose("flaps")
        agent.go_on(1.0)
    assert len(agent.times("flaps")) == 31
    assert len(agent.times("dead")) == 7  # as if it were alone


def test_who_is_not_named_any_more_is_forgotten() -> None:
    agent = Agent("a", "b")
    agent.go_on(20.0)
    agent.named.remove(ServerId("b"))
    agent.want()
    assert len(agent.asking) == 1
    agent.asked.clear()
    agent.named.append(ServerId("b"))
    agent.want()
    agent.go_on(0.0)
    assert agent.times("b") == [20.0]  # as one that is new


def test_an_answer_about_one_that_is_forgotten_is_ignored() -> None:
    agent = Agent("a")
    taken = agent.asking.take(now=0.0)
    assert taken == "a"
    agent.asking.want([], now=0.0)
    agent.asking.failed(taken, now=0.0)
    agent.asking.came(taken, now=0.0)
    assert len(agent.asking) == 0 and agent.asking.next_in_s(now=0.0) is None


def test_nobody_is_asked_for_twice_at_a_time() -> None:
    agent = Agent("a", "b")
    assert [agent.asking.take(now=0.0) for _ in range(3)] == ["a", "b", None]
    assert agent.asking.next_in_s(now=0.0) is None
    agent.asking.failed(ServerId("a"), now=0.0)
    assert agent.asking.next_in_s(now=0.0) == 1.0
    assert repr(agent.asking) == "<AskingTurns for 2, 1 failed>"


def test_only_so_many_are_kept_in_mind() -> None:
    agent = Agent("a", "b", "c", most=2)
    agent.asking.lost(ServerId("d"), now=0.0)
    assert len(agent.asking) == 2
    agent.living = {"a"}
    agent.go_on(0.0)
    assert agent.times("c") == [0.0]  # there was a place for it


def test_a_thousand_agents_that_lost_one_server_do_not_come_back_in_step() -> None:
    chance = random.Random(2).random
    came = []
    for _ in range(1000):
        agent = Agent("a", chance=chance)
        agent.living = {"a"}
        agent.go_on(0.0)
        agent.living = set()
        agent.lose("a")
        agent.go_on(5.0)  # it is being started
        agent.living = {"a"}
        agent.go_on(2 * CAP_S)
        came.append(agent.linked["a"])
    tenths = [round(at, 1) for at in came]
    assert max(tenths.count(each) for each in set(tenths)) < 100
