"""A worker as its parent knows it: what becomes of one that cannot be started."""

from __future__ import annotations

import asyncio
import os

import pytest
import uvloop

from isthmus.net.poller import Poller
from isthmus.workers.process import Birth, State, Worker, WorkerLost


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
        assert worker.state is State.RESTING
        assert "No such file" in worker.trouble()
        watching.cancel()
        assert len(descriptors()) == before

    uvloop.run(run())
