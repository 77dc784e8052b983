"""Signals are noted wherever they arrive."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import pytest

from isthmus.frame.signals import Told, noting_signals

LOOP = """
from isthmus.frame.signals import noting_signals
with noting_signals() as told:
    print("ready", flush=True)
    while not told.wait(0.001):
        told.wait(0)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_wherever_it_arrives(number: signal.Signals) -> None:
    """Also inside wait(), and inside the handler of the signal before."""
    chance = random.Random(7)
    for _ in range(15):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            for _ in range(chance.randint(1, 30)):
                process.send_signal(number)
            try:
                # It ends: by itself, or by a signal that came when they were no longer noted.
                assert process.wait(30) in (0, 1, -number)
            finally:
                process.kill()


def test_told_stays_told() -> None:
    told = Told()
    assert not told.wait(0) and not told.wait(0.001)
    told.set()
    assert told.wait(0) and told.wait(60) and told.wait(60)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with noting_signals() as told:
        signal.raise_signal(signal.SIGTERM)
        assert told.wait(0)
    assert signal.getsignal(signal.SIGTERM) is before
