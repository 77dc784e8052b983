"""What systemd is told of a program while it runs: ready, its state in a line, alive, leaving.

How it is told is net/systemd.py. Liveness is that of the health port (health.py): a program that a
kubelet would start again is one that systemd's watchdog starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from isthmus.frame.admin.answers import Check
from isthmus.frame.health import Health
from isthmus.net.systemd import Notifier

#: How often the line is looked at; it is sent when it has changed.
STATUS_EVERY_S = 10.0
#: How soon we look again when something is wrong.
TROUBLE_EVERY_S = 1.0
#: How long systemd is asked to wait for us from each look while we drain, however long it would.
_EXTEND_USEC = 30_000_000


class Supervisable(Protocol):
    """A program that can say how it is doing."""

    @property
    def health(self) -> Health:
        """Its liveness."""

    def status(self) -> str:
        """Its state in one line."""


class Supervised:
    """Tells a notifier about a program; without a notifier, nobody."""

    def __init__(self, notifier: Notifier | None, program: Supervisable) -> None:
        self._notifier = notifier
        self._program = program
        self._said = ""
        self._leaving = False

    async def watch(self) -> None:
        """Say that it serves, and then how it is doing, until cancelled."""
        if self._notifier is None:
            return
        self._said = self._program.status()
        self._notifier.tell(READY=1, STATUS=self._said)
        while True:
            await asyncio.sleep(self._look(self._notifier))

    def leave(self) -> None:
        """It drains from now on."""
        self._leaving = True
        if self._notifier is not None:
            self._notifier.tell(STOPPING=1, STATUS="draining", EXTEND_TIMEOUT_USEC=_EXTEND_USEC)

    def _look(self, notifier: Notifier) -> float:
        """Tell what there is to tell now; how long until the next look, in seconds."""
        failed = [check for check in self._program.health.live() if check.failure]
        if notifier.watchdog_s and not failed:
            notifier.tell(WATCHDOG=1)
        if self._leaving:
            notifier.tell(EXTEND_TIMEOUT_USEC=_EXTEND_USEC)
        status = self._status(failed)
        if status != self._said:
            self._said = status
            notifier.tell(STATUS=status)
        pause_s = TROUBLE_EVERY_S if failed else STATUS_EVERY_S
        # Half of it, as sd_watchdog_enabled(3) recommends.
        return min(pause_s, notifier.watchdog_s / 2) if notifier.watchdog_s else pause_s

    def _status(self, failed: Sequence[Check]) -> str:
        if failed:
            return f"not well: {failed[0].name}: {failed[0].failure}"
        return f"draining: {self._program.status()}" if self._leaving else self._program.status()


def counted(number: int, noun: str) -> str:
    """Say how many there are: ``1 agent``, ``2 agents``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
