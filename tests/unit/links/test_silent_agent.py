"""An agent that is asked to dial and does not answer pings: it weighs more, then is not chosen."""

from __future__ import annotations

import pytest
from linkbench import GRPC, MUX, Bench, run

from isthmus.frame.model.snapshot import LinkState
from isthmus.frame.views import link_view
from isthmus.links import link as link_module
from isthmus.links.link import Link
from isthmus.tools.pki import making as pki
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.session import Session
from isthmus.values import DialId, DialRequest, HostPort, Identity

BOTH = pytest.mark.parametrize("alpn", [MUX, GRPC], ids=["mux", "grpc"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is a hundredth of one."""
    monkeypatch.setattr(link_module, "_TICK_S", 0.01)
    monkeypatch.setattr(link_module, "_SILENT_S", 0.02)


def dial(link: Link) -> None:
    link.open_dial(
        DialRequest(HostPort("demo.internal", 80), Identity("who")),
        dial_id=DialId(9),
        timeout_s=1.5,
        told=lambda result: None,
    )


@BOTH
def test_dials_are_what_it_is_pinged_for(files: pki.PkiFiles, alpn: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked(alpn)
        session = server_side.talk.session  # type: ignore[union-attr]
        await bench.until(lambda: session.round_trip_s > 0)  # of the welcome
        session.round_trip_s = 0.0
        dial(server_side)
        await bench.until(lambda: session.round_trip_s > 0)
        assert server_side.takes_dials
        assert session.unanswered_s == 0

    run(files, test)


@BOTH
def test_silence_counts_against_it(
    files: pki.PkiFiles, alpn: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked(alpn)
        assert server_side.talk is not None
        session = server_side.talk.session
        await bench.until(lambda: session.round_trip_s > 0)
        for kind in (Session, Http2Connection):
            monkeypatch.setattr(kind, "_pinged", lambda *anything: None)
        assert server_side.takes_dials
        dial(server_side)
        await bench.until(lambda: not server_side.takes_dials)
        assert server_side.can_open  # where there is nobody else, it is still asked
        assert server_side.weight > 1 + 0.02 * 100
        assert server_side.ready

    run(files, test)


@BOTH
def test_it_is_shown_as_stuck_when_it_is_left_out(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked(alpn)
        for ticks in range(link_module._STUCK_TICKS + 2):
            server_side.stuck_ticks = ticks
            state = link_view(server_side, "agent", now=0.0).state
            assert (state is LinkState.STUCK) == (not server_side.takes_dials), ticks

    run(files, test)


@BOTH
def test_a_slow_answer_is_remembered_for_a_while(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked(alpn)
        session = server_side.talk.session  # type: ignore[union-attr]
        await bench.until(lambda: session.round_trip_s > 0)
        session.round_trip_s = 4.0
        await bench.until(lambda: server_side._way_s == 4.0)
        session.round_trip_s = 0.0
        heavy = server_side.weight
        assert heavy > 100
        await bench.until(lambda: server_side.weight < heavy / 2)

    run(files, test)
