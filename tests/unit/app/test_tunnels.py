"""The table of tunnels: what is swept, and why one does not move."""

from __future__ import annotations

import asyncio
from typing import cast

from isthmus.app.tunnels import LEFTOVERS_S, TunnelTable
from isthmus.observe.metrics import ServerMetrics
from isthmus.testing import ManualClock, MemoryEnd
from isthmus.tunnel.end import Ending
from isthmus.values import AgentId, HostPort, Identity


class Loop:
    def __init__(self) -> None:
        self.time = ManualClock()


class SlowEnd(MemoryEnd):
    """An end over a socket whose client does not read: it has unsent bytes."""

    out_bytes = 70_000


def opened() -> tuple[TunnelTable, Loop, SlowEnd, MemoryEnd, ServerMetrics]:
    loop, metrics = Loop(), ServerMetrics()
    table = TunnelTable(cast(asyncio.AbstractEventLoop, loop), metrics)
    client, far = SlowEnd(), MemoryEnd()
    table.open(
        client=client,
        far=far,
        target=HostPort("10.0.0.1", 443),
        requester=Identity("someone"),
        agent_id=AgentId("a"),
        link_id=1,
        frontend="test",
    )
    return table, loop, client, far, metrics


def test_last_bytes_that_nobody_reads_are_swept_away_in_time() -> None:
    table, loop, client, far, metrics = opened()
    far.finish(Ending.CLEAN)
    table.sweep(loop.time())
    loop.time.advance(LEFTOVERS_S - 1)
    table.sweep(loop.time())
    (view,) = table.views(10)
    assert view.frontend == "test"
    assert view.stalled == "client stopped reading; 70000 bytes held for 299 s"
    loop.time.advance(2)
    table.sweep(loop.time())
    assert client.aborted is Ending.TIMED_OUT
    assert (len(table), metrics.endings[Ending.TIMED_OUT]) == (0, 1)


def test_last_bytes_that_move_are_left_alone() -> None:
    table, loop, client, far, _ = opened()
    far.finish(Ending.CLEAN)
    for left in (60_000, 50_000, 40_000):
        client.out_bytes = left
        table.sweep(loop.time())
        loop.time.advance(LEFTOVERS_S + 1)
    client.out_bytes = 10
    table.sweep(loop.time())
    assert (client.aborted, len(table)) == (None, 1)


def test_a_tunnel_with_both_ends_is_not_swept() -> None:
    table, loop, client, _, _ = opened()
    for _ in range(3):
        table.sweep(loop.time())
        loop.time.advance(LEFTOVERS_S + 1)
    assert (client.aborted, len(table)) == (None, 1)
