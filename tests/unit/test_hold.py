"""What ``make hold`` makes of what it saw: silence is no success, and a scenario has a limit."""

from __future__ import annotations

import asyncio
import signal
from types import ModuleType

import pytest

from hold import traffic
from hold.ground import Ground
from hold.outcome import Outcome
from hold.playing import Late, play
from hold.traffic import Steady


def test_a_scenario_that_looked_at_nothing_has_not_held() -> None:
    outcome = Outcome("X", "nothing")
    outcome.notes.append("left out: no root")
    outcome.tell("something without a goal", 3)
    assert outcome.verdict == "left out"


def test_one_goal_that_is_missed_is_enough() -> None:
    outcome = Outcome("X", "three goals")
    outcome.count("failed", 0, 0)
    assert outcome.verdict == "held"
    outcome.load("requests each second", 449.0, 450, "/s")
    outcome.time("recovered", float("inf"), "s", at_most=10.0)
    assert outcome.verdict == "NOT held"
    assert [text.partition(":")[0] for text in outcome.missed()] == [
        "requests each second",
        "recovered",
    ]


class Mute:
    """A dialer and its tunnel to a target that answers no more after so many times."""

    def __init__(self, answers: int) -> None:
        self._left = answers
        self._asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def dial(self, network: str, address: str, *, timeout_s: float) -> Mute:
        return self

    def write(self, data: bytes) -> None:
        if data.startswith(b"echo"):
            return
        self._left -= 1
        if self._left >= 0:
            self._asked.put_nowait(data)

    async def read(self, size: int, *, timeout_s: float) -> bytes:
        return await self._asked.get()

    def abort(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize(("answers", "stuck"), [(0, 1), (1, 1), (10**9, 0)])
def test_who_gets_no_answer_is_stuck(
    answers: int, stuck: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "STUCK_S", 0.05 if stuck else 60.0)

    async def measure() -> traffic.Sample:
        steady = await Steady([Mute(answers)], "x:1", pause_s=0.001).open(1)  # type: ignore[list-item]
        sample = await steady.measure(0.02)
        await steady.close()
        return sample

    sample = asyncio.run(measure())
    assert sample.stuck == stuck
    assert len(sample.answers) >= 1  # who is stuck counts, with the time that it has waited
    if stuck:
        assert max(sample.answers) >= 0.05


def test_a_scenario_that_does_not_end_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGALRM)
    module = ModuleType("endless")

    def scenario(ground: Ground, numbers: object) -> Outcome:
        asyncio.run(asyncio.Event().wait())  # type: ignore[arg-type]
        raise AssertionError("it came to an end")

    module.__dict__.update(LETTER="X", TITLE="endless", scenario=scenario)
    said: list[str] = []
    try:
        outcome = play(module, None, said.append, alone=False, limit_s=0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert outcome.verdict == "NOT held"
    assert "not done after" in outcome.missed()[0]
    assert said == ["X: endless"]


def test_an_interrupt_in_time_is_one() -> None:
    before = signal.getsignal(signal.SIGALRM)
    late = Late(60.0)
    try:
        with pytest.raises(KeyboardInterrupt), late:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not late.passed
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
