"""Custom dialers: how they are found, what is wrong with them, and how they fail."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from isthmus.client import ConnectivityService
from isthmus.dial.dialers import custom
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.errors import ConfigError, DialError, DialFailure
from isthmus.values import HostPort

DEADLINE_S = 20.0
Open = Callable[[HostPort, float, Mapping[str, str]], Awaitable[object]]

MODULE = """
class Good:
    async def open(self, target, *, timeout_s, options): ...

ready = Good()

def made(): return Good()

class Empty: pass

class Broken:
    def __init__(self): raise ValueError("needs a licence")
"""


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offer what is in MODULE under its own names, and a module that cannot be imported."""
    (tmp_path / "offered_dialers.py").write_text(MODULE)
    (tmp_path / "offered_wreck.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("Good", "ready", "made", "Empty", "Broken", "absent")
    points = [EntryPoint(n.lower(), f"offered_dialers:{n}", custom.GROUP) for n in names]
    points.append(EntryPoint("wreck", "offered_wreck:Dialer", custom.GROUP))
    monkeypatch.setattr(custom, "entry_points", lambda group: EntryPoints(points))
    for name in ("offered_dialers", "offered_wreck"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("offer")
@pytest.mark.parametrize("name", ["good", "ready", "made"])
def test_a_class_an_object_or_a_function(name: str) -> None:
    assert type(custom.load(name)).__name__ == "Good"


@pytest.mark.usefixtures("offer")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "gud",
            "unknown dialer 'gud': installed are absent, broken, empty, good, made, ready, wreck",
        ),
        ("empty", "the dialer 'empty' (offered_dialers:Empty) has no method open"),
        (
            "broken",
            "the dialer 'broken' (offered_dialers:Broken) cannot be loaded:"
            " ValueError: needs a licence",
        ),
        (
            "wreck",
            "the dialer 'wreck' (offered_wreck:Dialer) cannot be loaded:"
            " ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        (
            "absent",
            "the dialer 'absent' (offered_dialers:absent) cannot be loaded: AttributeError:"
            " module 'offered_dialers' has no attribute 'absent'",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        custom.load(name)
    assert str(wrong.value) == sentence


def test_nothing_is_installed_here_by_another_name() -> None:
    with pytest.raises(ConfigError, match="unknown dialer 'no-such-dialer': installed are "):
        custom.load("no-such-dialer")


class Scripted:
    """A dialer that does what a test says."""

    def __init__(self, opens: Open) -> None:
        self._opens = opens

    async def open(
        self, target: HostPort, *, timeout_s: float, options: Mapping[str, str]
    ) -> socket.socket:
        return await self._opens(target, timeout_s, options)  # type: ignore[return-value]


def run(
    monkeypatch: pytest.MonkeyPatch,
    opens: Open,
    test: Callable[[ConnectivityService], Awaitable[None]],
) -> None:
    monkeypatch.setattr(custom, "load", lambda name: Scripted(opens))
    connection = NetworkConnection(
        protocol=NetworkProtocol.CUSTOM, dialer="mine", options={"a": "b"}
    )
    network = NetworkConfig(name="far", connection=connection)

    async def main() -> None:
        config = ConnectivityConfig(networks={"far": network})
        async with ConnectivityService.from_config(config) as service:
            async with asyncio.timeout(DEADLINE_S):
                await test(service)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_socket_becomes_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    asked: list[object] = []

    async def opens(*what: object) -> socket.socket:
        asked.append(what)
        return near

    async def test(service: ConnectivityService) -> None:
        async with await service.dialer("far").dial("tcp", "x.example:7", timeout_s=3) as it:
            far.sendall(b"hello")
            assert await it.read() == b"hello"
            it.write(b"bye")
            it.write_eof()
            assert far.recv(10) == b"bye"
            assert far.recv(10) == b""
            far.close()
            assert await it.read() == b""

    run(monkeypatch, opens, test)
    assert asked == [(HostPort("x.example", 7), 3, {"a": "b"})]


@pytest.mark.parametrize(
    ("raised", "reason", "detail"),
    [
        (
            DialError(DialFailure.DENIED, HostPort("x", 1), "not on Sundays"),
            DialFailure.DENIED,
            "not on Sundays",
        ),
        (ConnectionRefusedError(111, "Connection refused"), DialFailure.REFUSED, "refused"),
        (OSError(113, "No route to host"), DialFailure.UNREACHABLE, "No route"),
        (socket.gaierror(-2, "Name or service not known"), DialFailure.UNRESOLVED, "not known"),
        (TimeoutError(), DialFailure.TIMED_OUT, "no connection in time"),
        (KeyError("host"), DialFailure.INTERNAL, "by the dialer 'mine': KeyError: 'host'"),
    ],
)
def test_every_failure_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, reason: DialFailure, detail: str
) -> None:
    async def opens(*_: object) -> socket.socket:
        raise raised

    async def test(service: ConnectivityService) -> None:
        with pytest.raises(DialError) as failed:
            await service.dialer("far").dial("tcp", "x.example:7")
        assert failed.value.reason is reason
        assert detail in failed.value.detail

    run(monkeypatch, opens, test)


def test_what_is_not_a_stream_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    closed = socket.socket()
    closed.close()
    gives: list[object] = [None, datagram, closed]

    async def opens(*_: object) -> object:
        return gives.pop(0)

    async def test(service: ConnectivityService) -> None:
        for what in ("a NoneType", "a socket of another type", "a closed socket"):
            with pytest.raises(DialError, match=f"it returned {what}") as failed:
                await service.dialer("far").dial("tcp", "x.example:7")
            assert failed.value.reason is DialFailure.INTERNAL

    run(monkeypatch, opens, test)
    assert datagram.fileno() == -1  # not left open


def test_its_deadline_and_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def opens(*_: object) -> object:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        raise AssertionError

    async def test(service: ConnectivityService) -> None:
        dialer = service.dialer("far")
        with pytest.raises(DialError) as failed:
            await dialer.dial("tcp", "x.example:7", timeout_s=0.01)
        assert failed.value.reason is DialFailure.TIMED_OUT
        task = asyncio.create_task(dialer.dial("tcp", "x.example:7"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert ended == ["cancelled", "cancelled"]

    run(monkeypatch, opens, test)


def test_one_that_ignores_its_cancellation_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = socket.socketpair()
    started = asyncio.Event()

    async def opens(*_: object) -> socket.socket:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return near
        raise AssertionError

    async def test(service: ConnectivityService) -> None:
        task = asyncio.create_task(service.dialer("far").dial("tcp", "x.example:7"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while near.fileno() != -1:
            await asyncio.sleep(0)

    run(monkeypatch, opens, test)
    with far:
        assert far.recv(1) == b""
