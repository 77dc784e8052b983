"""A worker as its parent knows it: started or not, and what it is taken for until it speaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from isthmus.frame.workers.channel import Drain
from isthmus.frame.workers.parent import Parent
from isthmus.frame.workers.process import Birth, Worker, WorkerLost, WorkerState
from isthmus.net.poller import Poller
from isthmus.text.pacing import Backoff


def made(loop: asyncio.AbstractEventLoop, *command: str) -> Worker:
    pipes: list[int] = []
    birth = Birth(count=1, program_id="x", command=command, audited=pipes.append)
    return Worker(0, birth, Poller(loop), died=lambda _: None, changed=lambda: None)


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_one_for_which_there_is_no_process_is_tried_again() -> None:
    # Out of processes or of memory, for a moment: nobody else is to be ended for that.
    async def run() -> None:
        worker = made(asyncio.get_running_loop(), "/nonexistent")
        before = len(descriptors())
        with pytest.raises(WorkerLost, match="cannot be started: No such file"):
            await worker.start()
        assert len(descriptors()) == before
        watching = asyncio.create_task(worker.watch())
        async with asyncio.timeout(20):
            while worker.restarts < 2:
                await asyncio.sleep(0.01)
        assert not watching.done()
        assert worker.state is WorkerState.RESTING
        assert "No such file" in worker.trouble()
        watching.cancel()
        assert len(descriptors()) == before

    uvloop.run(run())


#: A worker as far as it says that it has started, and then only what it is told to.
STARTS = """
import json, os, socket, sys
from isthmus.frame.workers.channel import _encode
from isthmus.frame.workers.channel import WorkerReport, Started
found = json.loads(os.environ["_ISTHMUS_WORKER"])
sock = socket.socket(fileno=found["channel"])
def send(message):
    body = _encode(message)
    sock.sendall(len(body).to_bytes(4, "big") + body)
sock.recv(1 << 20)  # Begin
send(Started())
told = sock.recv(1 << 20)  # Drain, or Stop; for these tests, to report
send(WorkerReport(ready=[("agents", "")]))
if b"Stop" not in told:
    sock.recv(1)
"""


def test_one_that_has_not_reported_yet_is_not_ready() -> None:
    # It has the least to do, and as a server no agents: clients would all be refused there.
    async def run() -> None:
        worker = made(asyncio.get_running_loop(), sys.executable, "-c", STARTS)
        async with asyncio.timeout(30):
            await worker.start()
            ready_at_first = worker.ready
            watching = asyncio.create_task(worker.watch())
            worker.tell(Drain(timeout_s=0))
            while not worker.report.ready:
                await asyncio.sleep(0.01)
            ready_then = worker.ready
            os.kill(worker.pid, signal.SIGKILL)
            while worker.state is not WorkerState.RESTING or worker.pid:
                await asyncio.sleep(0.01)
            watching.cancel()
            await worker.finish(10)
        assert (ready_at_first, ready_then, worker.ready) == (False, True, False)

    uvloop.run(run())


def test_a_drain_waits_for_none_that_rests() -> None:
    # It has nothing open, and would only end when the time comes at which it was to start again.
    async def run() -> None:
        worker = made(asyncio.get_running_loop(), "/nonexistent")
        worker._backoff = Backoff(first_s=60.0, cap_s=60.0, factor=1.0, chance=lambda: 0.5)
        watching = asyncio.create_task(worker.watch())
        async with asyncio.timeout(20):
            while worker.state is not WorkerState.RESTING:
                await asyncio.sleep(0)
            parent = SimpleNamespace(
                draining=False, doorman=SimpleNamespace(drain=lambda **_: None), workers=[worker]
            )
            await Parent.drain(cast(Parent, parent), 60.0)
        watching.cancel()

    uvloop.run(run())


def test_one_that_was_told_to_leave_before_it_could_hear_is_told_again() -> None:
    async def run() -> None:
        worker = made(asyncio.get_running_loop(), sys.executable, "-c", STARTS)
        worker.leaving = True  # and nobody was there to be told
        try:
            async with asyncio.timeout(10):
                await worker.start()
                await worker.watch()
            assert worker.state is WorkerState.ENDED
        finally:
            worker.kill()
            await worker.finish(10)

    uvloop.run(run())
