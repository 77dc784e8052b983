"""A kube-proxy that comes and goes beside the node proxy, as far as signs tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy import kube_proxy as node_proxy_beside
from isthmus.programs.node_proxy.kube_proxy import KubeProxyWatch

SIGN = "process 7 is in this network namespace"
LIMIT_S = 20.0


class Bed:
    """Signs that are told, and what is done about them."""

    def __init__(self, *signs: str) -> None:
        self.signs = list(signs)
        self.asked: list[Collection[int]] = []
        self.renewed = 0
        self.in_force = asyncio.Event()
        self.beside = KubeProxyWatch(lambda: {10249}, signs=self._look)

    async def _look(self, ports: Collection[int]) -> list[str]:
        self.asked.append(ports)
        return list(self.signs)

    def renew(self) -> None:
        self.renewed += 1

    async def run(self) -> None:
        await self.beside.run(in_force=self.in_force, renew=self.renew, period_s=0.01)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_proxy_beside, "LOOK_S", 0.01)
    monkeypatch.setattr(node_proxy_beside, "LAST_WORD_S", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.005)


def test_it_refuses_in_one_sentence_that_names_the_sign() -> None:
    async def run() -> None:
        with pytest.raises(ConfigError) as error:
            await Bed(SIGN, "another").beside.check(take_over=False)
        assert f"({SIGN})" in str(error.value) and "--take-over" in str(error.value)

    asyncio.run(run())


def test_alone_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        bed = Bed()
        await bed.beside.check(take_over=False)
        assert bed.beside.alone.is_set()
        assert bed.asked == [{10249}]

    asyncio.run(run())
    assert caplog.text == ""


def test_taking_over_says_when_to_stop_it_and_when_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        caplog.set_level("INFO")
        bed = Bed(SIGN)
        await bed.beside.check(take_over=True)
        assert not bed.beside.alone.is_set()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(bed.run())
            await asyncio.sleep(0)
            assert "stop kube-proxy now" not in caplog.text
            bed.in_force.set()
            await until(lambda: "stop kube-proxy now" in caplog.text)
            assert bed.renewed == 0
            bed.signs = []
            await asyncio.wait_for(bed.beside.alone.wait(), LIMIT_S)
            assert "kube-proxy ended" in caplog.text
            # What it had begun may end after it: everything is written twice.
            await until(lambda: bed.renewed == 2)
            running.cancel()

    asyncio.run(run())


def test_one_that_comes_later_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        bed = Bed()
        await bed.beside.check(take_over=False)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(bed.run())
            bed.signs = [SIGN]
            await until(lambda: "was started beside this node proxy" in caplog.text)
            assert not bed.beside.alone.is_set()
            bed.signs = []
            await until(lambda: bed.renewed == 2)
            assert bed.beside.alone.is_set()
            running.cancel()

    asyncio.run(run())
