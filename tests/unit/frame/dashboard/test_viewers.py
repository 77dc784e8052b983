"""Viewers: what they are sent and in which order, and when they are given up."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.frame.dashboard import viewers
from isthmus.frame.dashboard.viewers import Viewer, Viewers


class Connection(asyncio.Transport):
    """A connection that takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_events_come_in_order_and_none_at_the_end() -> None:
    async def check() -> None:
        viewer = Viewer()
        viewer.push(b"1")
        viewer.push(b"2")
        assert [await viewer.wait(), await viewer.wait()] == [b"1", b"2"]
        waiting = asyncio.ensure_future(viewer.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        viewer.push(b"3")
        assert await waiting == b"3"
        viewer.push(b"4")
        viewer.end()
        viewer.push(b"5")
        assert await viewer.wait() is None

    asyncio.run(check())


def test_one_too_far_behind_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_BEHIND_BYTES", 100)

    async def check() -> None:
        viewer = Viewer()
        viewer.push(b"x" * 1000)  # the first may be as large as it is
        assert await viewer.wait() == b"x" * 1000
        viewer.writing = connection = Connection()
        viewer.push(b"x" * 60)
        viewer.push(b"x" * 40)
        assert (viewer.over, connection.aborted) == (False, False)
        viewer.push(b"x")
        assert (viewer.over, connection.aborted) == (True, True)
        assert await viewer.wait() is None

    asyncio.run(check())


def test_only_who_has_had_a_full_is_told() -> None:
    async def check() -> None:
        everybody = Viewers()
        old, new = everybody.add(), everybody.add()
        assert old is not None and new is not None
        old.settled = True
        everybody.tell(b"delta")
        new.push(b"full")
        assert (await old.wait(), await new.wait()) == (b"delta", b"full")

    asyncio.run(check())


def test_there_is_room_for_so_many_until_closing_time() -> None:
    async def check() -> None:
        everybody = Viewers()
        inside = [everybody.add() for _ in range(viewers.MOST_VIEWERS)]
        assert all(inside) and everybody.add() is None
        assert inside[0] is not None
        everybody.remove(inside[0])
        everybody.remove(inside[0])
        assert everybody.add() is not None
        everybody.close()
        assert all(viewer.over for viewer in everybody)
        for viewer in everybody:
            everybody.remove(viewer)
        assert everybody.add() is None

    asyncio.run(check())
