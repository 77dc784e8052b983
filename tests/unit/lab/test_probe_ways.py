"""The way to a server whose UNIX socket has no room for one more: patience that grows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.dial.dialers.through_server import _Knocking


class ByHand(asyncio.SelectorEventLoop):
    """A loop that only remembers what is to be done later."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[float, Callable[..., object]]] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> asyncio.TimerHandle:
        self.later.append((delay, callback))
        return asyncio.TimerHandle(self.time() + delay, callback, args, self)


def test_a_full_queue_is_knocked_at_less_and_less_often(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    reached: list[socket.socket] = []
    with (
        contextlib.closing(ByHand()) as loop,
        contextlib.ExitStack() as opened,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(path)
        server.listen(0)
        waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(path)
        _Knocking(
            loop,
            path,
            lambda sock, _: reached.append(opened.enter_context(sock)),
            lambda failure, detail: pytest.fail(f"{failure}: {detail}"),
        )
        pauses = []
        for _ in range(8):
            (pause_s, knock), *_ = loop.later
            loop.later.clear()
            pauses.append(pause_s)
            knock()
        assert pauses == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1])
        opened.enter_context(server.accept()[0])
        ((_, knock),) = loop.later
        knock()
        assert len(reached) == 1
