"""The table of tunnels: what is swept, and why one does not move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from isthmus.frame.audit.log import AuditLog
from isthmus.frame.audit.model import Record, Stage
from isthmus.frame.audit.recording import Auditor
from isthmus.frame.tunnels import LEFTOVERS_S, TunnelTable
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.testing import ManualClock, MemoryEnd, MemoryLink
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import AgentId, DialOutcome, DialRequest, HostPort, Identity, TunnelId


class Loop:
    def __init__(self) -> None:
        self.time = ManualClock()


class SlowEnd(MemoryEnd):
    """An end over a socket whose client does not read: it has unsent bytes."""

    out_bytes = 70_000


def opened(
    on_ended: Callable[[Tunnel, float], None] | None = None,
) -> tuple[TunnelTable, Loop, SlowEnd, MemoryEnd, ServerMetrics]:
    loop, metrics = Loop(), ServerMetrics()
    table = TunnelTable(cast(asyncio.AbstractEventLoop, loop), metrics)
    client, far = SlowEnd(), MemoryEnd()
    table.open(
        DialRequest(HostPort("10.0.0.1", 443), Identity("someone"), "test"),
        DialOutcome(AgentId("a"), 1),
        client=client,
        far=far,
        on_ended=on_ended,
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
    assert view.stalled == "client stopped reading; 68KiB held for 4m59s"
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


def test_a_reader_that_empties_its_sink_between_two_looks_is_still_slow() -> None:
    loop = Loop()
    table = TunnelTable(cast(asyncio.AbstractEventLoop, loop), ServerMetrics())
    link, source, client = MemoryLink(clock=loop.time), MemoryEnd(), MemoryEnd()
    sender = link.client.open()
    assert sender is not None
    join(sender, source)
    link.run()
    request = DialRequest(HostPort("10.0.0.1", 443), Identity("someone"), "test")
    table.open(request, DialOutcome(AgentId("a"), 1), client=client, far=link.accepted.pop())
    for _ in range(8):
        client.make_room()
        client.fill()
        source.feed(bytes(50_000))
        link.run()
        loop.time.advance(1.0)
        (view,) = table.views(10)
        assert view.stalled == ""
    assert view.slow == "client reads slowly, 49KiB/s; 49KiB held"


def test_an_operator_ends_a_tunnel() -> None:
    table, loop, client, far, metrics = opened()
    (view,) = table.views(1)
    assert table.end(TunnelId(view.id + 1), "operator root") is None
    assert table.end(view.id, "operator root") == ""
    assert (client.aborted, far.aborted) == (Ending.ADMIN, Ending.ADMIN)
    assert (len(table), metrics.endings[Ending.ADMIN]) == (0, 1)
    (ended,) = table.endings.views(now=loop.time())
    assert (ended.ending, ended.by) == ("ended by an administrator", "operator root")
    assert table.end(view.id, "operator root") is None


@pytest.mark.parametrize("name", ['CN="x","stage":"Begin', "CN=a\nb", "CN=\udcff", "CN=\u00fc\\"])
def test_the_name_of_an_operator_breaks_no_record(tmp_path: Path, name: str) -> None:
    log = AuditLog(str(tmp_path / "audit.log"), max_bytes=0)
    auditor = Auditor(log, server_id="s", believes=lambda identity: False)
    record = Record(time="2026-01-02T15:04:05.000000Z", stage=Stage.BEGIN, connection_id="c-1")
    table, _, _, _, _ = opened(auditor.begin(record))
    table.end(table.views(1)[0].id, f"operator {name}")
    log.close()
    lines = (tmp_path / "audit.log").read_bytes().splitlines()
    begin, end = map(json.loads, lines)
    assert (begin["stage"], end["stage"]) == ("Begin", "End")
    assert (end["endedBy"], end["connectionId"]) == (f"operator {name}", "c-1")
