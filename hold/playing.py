"""Plays one scenario within its time limit, whatever happens in it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from traceback import format_exception
from types import FrameType, ModuleType
from typing import Self

from processes import Workspace

from hold.ground import Ground
from hold.outcome import Figure, Outcome
from hold.traffic import FAULTS


class Late:
    """A time limit that interrupts like Ctrl-C; ``passed`` tells it from a real interrupt."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = max(0.1, limit_s)
        self.passed = False

    def __enter__(self) -> Self:
        signal.signal(signal.SIGALRM, self._ring)
        # Repeatedly: the first interrupt cancels, later ones end what cannot be cancelled.
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, 20.0)
        return self

    def __exit__(self, *failure: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.passed = True
        signal.raise_signal(signal.SIGINT)


def play(
    module: ModuleType,
    numbers: object,
    say: Callable[[str], None],
    *,
    alone: bool,
    limit_s: float,
) -> Outcome:
    """Play a scenario with its own ground; one that breaks off has not held."""
    say(f"{module.LETTER}: {module.TITLE}")
    began = time.monotonic()
    late = Late(limit_s)
    try:
        with Workspace() as space, late:
            outcome: Outcome = module.scenario(Ground(space, alone=alone, say=say), numbers)
    except FAULTS as exc:  # a background activity failed unexpectedly
        outcome = broken_off(module, str(exc) or repr(exc))
    except KeyboardInterrupt:
        if not late.passed:
            raise
        outcome = broken_off(module, f"not done after {limit_s:.0f} s")
    except Exception as exc:  # any error: the other scenarios still run
        outcome = broken_off(module, "".join(format_exception(exc)))
    outcome.seconds = time.monotonic() - began
    return outcome


def broken_off(module: ModuleType, why: str) -> Outcome:
    """The outcome of a scenario that did not finish."""
    outcome = Outcome(module.LETTER, module.TITLE)
    outcome.figures.append(
        Figure(name="broke off", value=why[-2000:], goal="to its end", held=False)
    )
    return outcome
