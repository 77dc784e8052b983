"""Two ends of a link over a real connection: greeting, drain, reasons, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import replace

import pytest
from linkbench import GRPC, MUX, Bench, run

from isthmus.errors import LinkError, LinkStage
from isthmus.links import link as link_module
from isthmus.links import mux as mux_module
from isthmus.links.link import Link
from isthmus.links.mux import ENDINGS, REASONS, MuxTalk
from isthmus.links.server_side import Membership
from isthmus.net.connect import literal
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join
from isthmus.values import DialId, DialRequest, HostPort, Identity, ServerId
from isthmus.wire.link_pb2 import Control, DialResult, Ended


def test_every_ending_has_its_own_reason_on_the_wire() -> None:
    assert set(REASONS) == set(Ending)
    assert len(set(REASONS.values())) == len(REASONS)
    assert {REASONS[ending] for ending in ENDINGS.values()} == set(ENDINGS)
    assert Ended.UNKNOWN not in ENDINGS  # an unknown reason is a reset


def ask(link: Link, answers: list[DialResult | None]) -> object:
    return link.open_dial(
        DialRequest(HostPort("demo.internal", 80), Identity("who", ("group",))),
        dial_id=DialId(9),
        timeout_s=1.5,
        told=answers.append,
    )


def mux(link: Link) -> MuxTalk:
    assert isinstance(link.talk, MuxTalk)
    return link.talk


def test_hello_and_welcome_say_who_is_there(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        assert (agent_side.server_id, agent_side.server_count) == ("server", 3)
        assert server_side.agent_id == "agent"
        assert server_side.identifiers.host == ("n1",)
        assert server_side.identity.name == "isthmus-agent"
        assert agent_side.identity.name == "isthmus-server"
        assert server_side.takes_dials and agent_side.ready
        assert server_side.peer_address.startswith("127.0.0.1:")
        assert "ready" in repr(server_side)

    run(files, test)


def test_a_dial_carries_all_it_needs(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked()
        answers: list[DialResult | None] = []
        ask(server_side, answers)
        await bench.until(lambda: bench.dials)
        dial = bench.dials[0].dial
        assert (dial.host, dial.port, dial.dial_id) == ("demo.internal", 80, 9)
        assert (dial.timeout_ms, dial.requester) == (1500, "who")
        assert list(dial.requester_groups) == ["group"]
        bench.dials[0].accept("192.0.2.1:80")
        await bench.until(lambda: answers)
        assert answers[0] is not None and answers[0].address == "192.0.2.1:80"

    run(files, test)


@pytest.mark.parametrize("reason", ENDINGS.values())
def test_the_reason_of_a_reset_comes_before_it(files: pki.PkiFiles, reason: Ending) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked()
        answers: list[DialResult | None] = []
        ask(server_side, answers)
        await bench.until(lambda: bench.dials)
        far = MemoryEnd()
        join(bench.dials[0].stream, far)
        stream = next(s for s in mux(server_side).session.streams.values() if s.id % 2 == 0)
        stream.abort(reason)
        await bench.until(lambda: far.aborted)
        assert far.aborted is reason

    run(files, test)


def test_a_draining_side_is_asked_only_where_there_is_no_other(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        agent_side.drain()
        await bench.until(lambda: not server_side.takes_dials)
        assert server_side.ready and not server_side.full
        assert server_side.can_open
        assert ask(server_side, []) is not None
        await bench.until(lambda: bench.dials)

    run(files, test)


def test_a_spare_link_turns_dials_away(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        agent_side.drain(turn_away=True)
        await bench.until(lambda: not server_side.takes_dials)
        assert not server_side.can_open
        assert ask(server_side, []) is None

    run(files, test)


def is_full(link: Link) -> bool:
    return link.full  # a property that mypy takes for one that cannot change


def test_a_full_link_says_so(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked()
        assert not is_full(server_side)
        session = mux(server_side).session
        session.limits = replace(session.limits, max_streams=2)
        assert ask(server_side, []) is not None  # the control stream is the other
        assert (server_side.can_open, server_side.load) == (False, 1)
        assert is_full(server_side)

    run(files, test)


def test_a_change_of_membership_is_heard(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        bench.membership = Membership(server_id=ServerId("server"), server_count=5)
        server_side.tell_membership()
        await bench.until(lambda: agent_side.server_count == 5)

    run(files, test)


def test_closed_by_one_side_it_is_over_for_both_once(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        server_side.close("enough")
        server_side.close("twice")
        assert (server_side.closed_because, bench.gone) == ("enough", [server_side])
        assert await agent_side.over
        assert not agent_side.ready and agent_side.load == 0

    run(files, test)


def test_an_agent_without_a_name_is_refused(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LinkError) as failed:
            await bench.connect(agent_id="")
        assert failed.value.stage is LinkStage.REFUSED
        assert str(failed.value) == "refused by the server: agent id is empty"
        await bench.until(lambda: bench.gone)
        (gone,) = bench.gone
        assert gone.stage is LinkStage.REFUSED and not gone.orderly and not bench.ready

    run(files, test)


@pytest.mark.parametrize(("ours", "theirs"), [("mux", "grpc"), ("grpc", "mux")])
def test_another_protocol_than_the_one_asked_for_is_refused(
    files: pki.PkiFiles, ours: str, theirs: str
) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LinkError, match=f"--link={theirs}") as failed:
            await bench.connect(alpn=MUX if ours == "mux" else GRPC, only=theirs)
        assert failed.value.stage is LinkStage.TLS
        await bench.until(lambda: len(bench.gone) == 1)
        bench.settings["only"] = theirs
        with pytest.raises(LinkError):
            await bench.connect(alpn=MUX if ours == "mux" else GRPC)
        await bench.until(lambda: len(bench.gone) == 2)
        assert bench.gone[1].stage is LinkStage.TLS
        assert bench.gone[1].closed_because.startswith(
            "peer does not support the protocol of --link="
        )

    run(files, test)


@pytest.mark.parametrize("only", ["mux", "auto"])
def test_what_is_asked_for_and_negotiated_is_spoken(files: pki.PkiFiles, only: str) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["only"] = only
        link = await bench.connect(alpn=(*MUX, *GRPC), only=only)
        assert link.talk is not None and link.talk.name == "mux"

    run(files, test)


def test_nobody_listens(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            free = literal(*sock.getsockname())
        with pytest.raises(LinkError, match="ECONNREFUSED") as failed:
            await bench.connect(address=free)
        assert failed.value.stage is LinkStage.CONNECT

    run(files, test)


def test_a_server_that_says_nothing(files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_S", 0.05)

    async def test(bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(LinkError) as failed:
                await bench.connect(address=literal(*silent.getsockname()))
            assert failed.value.stage is LinkStage.TIMED_OUT

    run(files, test)


@pytest.mark.parametrize("turns", range(0, 12, 2))
def test_cancelled_at_any_moment_it_leaves_nothing(files: pki.PkiFiles, turns: int) -> None:
    async def test(bench: Bench) -> None:
        before = len(os.listdir("/proc/self/fd"))
        connecting = asyncio.create_task(bench.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await connecting).close("too late")
        await bench.until(lambda: len(bench.gone) == len(bench.accepted))
        await bench.until(lambda: len(bench.poller) == 1)  # the listener
        await bench.until(lambda: len(os.listdir("/proc/self/fd")) == before)

    run(files, test)


def test_a_stream_that_never_says_what_for_is_reset(files: pki.PkiFiles) -> None:
    async def test(made: Bench) -> None:
        server_side, agent_side = await made.linked()
        undialed = mux(server_side)._undialed
        undialed._timeout_s = undialed._grain_s = 0.01
        stream = mux(agent_side).session.open()
        assert stream is not None
        await made.until(lambda: stream.ending)
        assert stream.ending is Ending.TIMED_OUT
        assert not made.dials

    run(files, test)


def test_a_peer_that_does_not_read_the_control_stream_is_dropped(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux_module, "MOST_CONTROL_BYTES", 1000)

    async def test(made: Bench) -> None:
        server_side, _ = await made.linked()
        talk = mux(server_side)
        assert talk.control is not None
        talk.control.credit = 0  # the peer gave none
        talk.control.reserve = 0
        for _ in range(1000):
            talk.tell(Control(drain={}))
        assert server_side.closed_because == "peer does not read the control stream"
        assert server_side.stage is LinkStage.PROTOCOL

    run(files, test)


def test_a_link_whose_ids_are_used_up_makes_way_for_another(files: pki.PkiFiles) -> None:
    async def test(made: Bench) -> None:
        server_side, agent_side = await made.linked()
        mux(server_side).session._next_id = 2**31 - 2
        server_side._tick()
        await made.until(lambda: server_side.closed_because and agent_side.closed_because)
        assert server_side.closed_because == "stream ids are used up"

    run(files, test)


def test_closing_a_link_loses_nothing_that_was_said(files: pki.PkiFiles) -> None:
    async def test(made: Bench) -> None:
        server_side, agent_side = await made.linked()
        got = MemoryEnd()
        told: list[DialResult | None] = []
        stream = server_side.open_dial(
            DialRequest(HostPort("10.0.0.1", 1), Identity("me")),
            dial_id=DialId(1),
            timeout_s=5,
            told=told.append,
        )
        assert stream is not None
        await made.until(lambda: made.dials)
        made.dials[0].accept("10.0.0.1:1")
        await made.until(lambda: told)
        join(stream, got)
        far = MemoryEnd()
        join(made.dials[0].stream, far)
        far.feed(b"x" * 60_000)
        far.feed_eof()
        agent_side.close("done")  # with everything still in this batch
        await made.until(lambda: server_side.closed_because)
        assert (len(got.received), got.eofs) == (60_000, 1)

    run(files, test)
