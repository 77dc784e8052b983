"""Liveness: each way in which a program stops doing its job, made to happen."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from isthmus.frame import health
from isthmus.frame.admin.answers import Check
from isthmus.frame.health import Health, Heartbeat, WatchedTasks
from isthmus.frame.model.history import Tally
from isthmus.net.listen import UNDRAINED_S, Listener, bind_tcp, bind_uds, not_listening
from isthmus.net.poller import Poller
from isthmus.programs.server.metrics import ServerMetrics

LIMIT_S = 20.0


class Said(logging.Handler):
    """Notes what the watchdog logs, and lets the loop go as soon as it has."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = threading.Event()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if record.getMessage() == "the event loop is stuck":
            self.stuck.set()


@pytest.fixture
def said() -> Iterator[Said]:
    handler = Said()
    logger = logging.getLogger("isthmus.app")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def hold_the_loop(until: threading.Event) -> None:
    assert until.wait(LIMIT_S)


def test_a_stuck_loop_is_said_while_it_is_stuck_and_counted_afterwards(said: Said) -> None:
    metrics = ServerMetrics()
    beats: list[float] = []

    async def main() -> None:
        beating = Heartbeat(metrics, beats.append, beat_s=0.01, stall_s=0.1)
        beating.start()
        assert beating.trouble() == ""
        hold_the_loop(said.stuck)
        assert beating.trouble().startswith("its timers are ")
        async with asyncio.timeout(LIMIT_S):
            while not metrics.loop_stalls:
                await asyncio.sleep(0.01)
        assert beating.trouble().startswith("it was stuck for ")
        beating.stop()
        assert beating.trouble() == ""

    uvloop.run(main())
    assert metrics.loop_stalls == 1
    assert metrics.loop_lag.count >= 1 and metrics.loop_lag.total > 0.1
    assert beats
    (stuck,) = [it for it in said.records if it.getMessage() == "the event loop is stuck"]
    fields = getattr(stuck, "fields", {})
    assert "hold_the_loop (frame/test_health.py:" in fields["stuck_in"]
    assert any(it.getMessage() == "the event loop was stuck" for it in said.records)


def test_a_stall_is_forgotten_after_a_while(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = ServerMetrics()

    async def main() -> None:
        beating = Heartbeat(metrics, lambda _: None, beat_s=0.01, stall_s=0.1)
        beating.start()
        hold_the_loop(said.stuck)
        async with asyncio.timeout(LIMIT_S):
            while not metrics.loop_stalls:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(health, "RECENT_S", 0.0)
        assert beating.trouble() == ""
        beating.stop()

    uvloop.run(main())


def test_the_watchdog_ends_with_the_heartbeat() -> None:
    async def main() -> None:
        before = set(threading.enumerate())  # another's may just be ending
        beating = Heartbeat(ServerMetrics(), lambda _: None, beat_s=0.01)
        beating.start()
        (thread,) = set(threading.enumerate()) - before
        assert thread.name == "loop-watchdog"
        beating.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()

    asyncio.run(main())


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def ends() -> None:
    return


async def fails() -> None:
    raise RuntimeError("inner detail")


def test_a_task_that_ends_or_is_cancelled_is_noticed() -> None:
    async def main() -> None:
        async with WatchedTasks() as tasks:
            staying = tasks.create_task(for_ever(), name="staying")
            killed = tasks.create_task(for_ever(), name="killed")
            tasks.create_task(ends(), name="ending")
            await asyncio.sleep(0)
            killed.cancel()
            await asyncio.wait({killed})
            assert tasks.checks() == [
                Check("task:staying"),
                Check("task:killed", "was cancelled"),
                Check("task:ending", "ended"),
            ]
            staying.cancel()

    asyncio.run(main())


def test_a_task_that_fails_ends_the_group_and_its_text_is_not_shown() -> None:
    async def main() -> WatchedTasks:
        group = WatchedTasks()
        with pytest.raises(ExceptionGroup):
            async with group as tasks:
                tasks.create_task(fails(), name="failing")
        return group

    (check,) = asyncio.run(main()).checks()
    assert check == Check("task:failing", "failed: RuntimeError")


Break = Callable[[Listener, Poller], None]


def close_it(listener: Listener, poller: Poller) -> None:
    listener._sock.close()


def close_its_descriptor(listener: Listener, poller: Poller) -> None:
    os.close(listener._sock.fileno())


def take_its_descriptor(listener: Listener, poller: Poller) -> None:
    with socket.socket() as other:
        os.dup2(other.fileno(), listener._sock.fileno())


def shut_it_down(listener: Listener, poller: Poller) -> None:
    listener._sock.shutdown(socket.SHUT_RDWR)


def forget_its_handler(listener: Listener, poller: Poller) -> None:
    del poller._handlers[listener._sock.fileno()]


def take_it_out_of_the_kernels_set(listener: Listener, poller: Poller) -> None:
    poller._epoll.unregister(listener._sock.fileno())


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (close_it, "its socket was closed"),
        (close_its_descriptor, "its socket was closed"),
        (take_its_descriptor, "its socket does not listen"),
        (shut_it_down, "its socket does not listen"),
        (forget_its_handler, "its events are not watched"),
        (take_it_out_of_the_kernels_set, "its events are not watched"),
    ],
)
def test_a_listener_that_is_gone(harm: Break, why: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--p")
        listener = Listener(loop, poller, sock, lambda _: None)
        health = Health(ServerMetrics(), leaving=lambda: False, listeners=lambda: [listener])
        name = f"listener:127.0.0.1:{listener.port}"
        assert Check(name) in health.live()
        harm(listener, poller)
        assert Check(name, why) in health.live()
        if harm is close_its_descriptor:
            sock.detach()
        sock.close()
        poller.shut_down()

    uvloop.run(main())


def test_a_listener_that_was_stopped_is_not_gone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--p")
        listener = Listener(loop, poller, sock, lambda _: None)
        listener.stop()
        await asyncio.sleep(0)
        assert not_listening(sock) == "its socket was closed"
        assert listener.trouble(loop.time()) == ""
        poller.shut_down()

    asyncio.run(main())


def test_a_unix_socket_without_its_file_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        path = tmp_path / "s.sock"
        sock = bind_uds(str(path), delete_existing=True, flag="--u")
        listener = Listener(loop, poller, sock, lambda _: None)
        assert listener.name == str(path)
        assert listener.trouble(0.0) == ""
        path.unlink()
        assert listener.trouble(0.0) == "its file was removed or replaced"
        path.touch()
        assert listener.trouble(0.0) == "its file was removed or replaced"
        listener.stop()
        await asyncio.sleep(0)
        assert path.exists()  # it is not ours
        poller.shut_down()

    asyncio.run(main())


def test_connections_that_wait_while_none_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--p")
        came: list[socket.socket] = []
        listener = Listener(loop, poller, sock, came.append)
        accept = listener._accept
        monkeypatch.setattr(listener, "_accept", lambda: None)  # it is deaf
        with socket.create_connection(("127.0.0.1", listener.port)):
            assert listener.trouble(100.0) == ""
            assert listener.trouble(100.0 + UNDRAINED_S - 1) == ""
            assert listener.trouble(100.0 + UNDRAINED_S) == "nothing was accepted for 10 s"
            monkeypatch.setattr(listener, "_accept", accept)
            # Asking it made the edge again that it had missed.
            async with asyncio.timeout(LIMIT_S):
                while not came:
                    await asyncio.sleep(0.01)
            assert (listener.accepted, listener.trouble(200.0)) == (1, "")
        came[0].close()
        listener.stop()
        poller.shut_down()

    uvloop.run(main())


def test_new_connections_keep_a_busy_listener_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--p")
        listener = Listener(loop, poller, sock, lambda _: None)
        monkeypatch.setattr(listener, "_accept", lambda: None)
        with socket.create_connection(("127.0.0.1", listener.port)):
            assert listener.trouble(100.0) == ""
            listener.accepted += 1  # another one came meanwhile, this one waits still
            assert listener.trouble(100.0 + UNDRAINED_S) == ""
        listener.stop()
        poller.shut_down()

    asyncio.run(main())


def test_tasks_may_end_while_the_program_leaves() -> None:
    async def main() -> None:
        leaving = False
        health = Health(ServerMetrics(), leaving=lambda: leaving)
        async with health.tasks() as tasks:
            done = tasks.create_task(ends(), name="x")
        assert done.done()
        assert health.live()[-1] == Check("task:x", "ended")
        leaving = True
        assert [check.name for check in health.live()] == ["ping", "event-loop"]

    asyncio.run(main())


def test_the_heartbeat_keeps_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STEP_S", 0.02)
    monkeypatch.setattr(health, "Heartbeat", partial(Heartbeat, beat_s=0.005))
    asked = itertools.count(1)

    async def main() -> None:
        watching = Health(
            ServerMetrics(), leaving=lambda: False, counted=lambda: Tally(dials=3 * next(asked))
        )
        assert watching.history.steps() == ()
        watching.start({})
        async with asyncio.timeout(LIMIT_S):
            while watching.history.taken < 3:
                await asyncio.sleep(0.001)
        watching.stop()
        assert [step.dials for step in watching.history.steps()][:3] == [3, 3, 3]

    asyncio.run(main())
