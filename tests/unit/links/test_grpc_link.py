"""Both ends of a link by konnectivity's gRPC, over real connections: from greeting to loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from linkbench import GRPC, MUX, Bench, run

from isthmus import __version__
from isthmus.errors import DialFailure, LinkError, LinkStage
from isthmus.links.agent_side import PING_EVERY_S, GrpcAgentTalk
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink, Decided, GrpcServerTalk
from isthmus.links.talk import Unwelcome
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.packet_link import PacketLink
from isthmus.values import DialId, DialRequest, HostPort, Identity, RequestMetadata
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult
from isthmus.wire.packet import CLOSE_REQ, DATA, DIAL_REQ, DIAL_RSP, DRAIN, dial_request

Answers = list[DialResult | None]


def talk_of(link: Link) -> GrpcServerTalk | GrpcAgentTalk:
    assert isinstance(link.talk, GrpcServerTalk | GrpcAgentTalk)
    return link.talk


def packets_of(link: Link) -> PacketLink:
    packets = talk_of(link).packets
    assert packets is not None
    return packets


def ask(link: Link, answers: Answers, dial_id: int = 9) -> BaseEnd | None:
    return link.open_dial(
        DialRequest(
            HostPort("10.0.0.1", 80),
            Identity("who", ("group",), "uid"),
            asking=RequestMetadata(groups=("g",), traceparent="00-x", tracestate="a=1"),
        ),
        dial_id=DialId(dial_id),
        timeout_s=5.0,
        told=answers.append,
    )


async def tunnel(bench: Bench, link: AgentLink) -> tuple[BaseEnd, MemoryEnd, BaseEnd, MemoryEnd]:
    """A tunnel over the link: its end and its peer on the server, and the same on the agent."""
    answers: Answers = []
    dials = len(bench.dials)
    end = ask(link, answers, dial_id=100 + dials)
    assert end is not None
    await bench.until(lambda: len(bench.dials) > dials)
    agent_end = bench.dials[-1].accept("10.0.0.1:80")
    far = MemoryEnd()
    join(agent_end, far)
    await bench.until(lambda: answers)
    client = MemoryEnd()
    join(end, client)
    return end, client, agent_end, far


# Greeting.


def test_who_is_there_is_said_in_metadata(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        assert (talk_of(server_side).name, talk_of(agent_side).name) == ("grpc", "grpc")
        for side in (server_side, agent_side):
            assert (side.window_growth_bytes, side.window_growth_peak_bytes) == (0, 0)
        assert (agent_side.server_id, agent_side.server_count) == ("server", 3)
        assert server_side.agent_id == "agent"
        assert server_side.identifiers.host == ("n1",)
        assert server_side.version == f"isthmus/{__version__}"
        assert server_side.identity.name == "isthmus-agent"
        assert agent_side.identity.name == "isthmus-server"
        assert server_side.takes_dials and (server_side.load, agent_side.load) == (0, 0)

    run(files, test)


def test_a_peer_that_negotiated_nothing_is_taken_for_konnectivitys(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(("http/1.1",))
        assert (talk_of(server_side).name, talk_of(agent_side).name) == ("grpc", "grpc")

    run(files, test)


def test_the_token_reaches_whoever_admits_and_the_verdict_may_come_later(
    files: pki.PkiFiles,
) -> None:
    async def test(bench: Bench) -> None:
        asked: list[tuple[str, str, Callable[[str], None]]] = []

        def admit(link: AgentLink, token: str, decided: Callable[[str], None]) -> None:
            asked.append((link.agent_id, token, decided))

        bench.admit = admit
        connecting = asyncio.create_task(bench.connect(alpn=GRPC, token="s3cret"))
        await bench.until(lambda: asked)
        assert asked[0][:2] == ("agent", "s3cret")
        assert not bench.ready and not connecting.done()
        asked[0][2]("")
        link = await connecting
        assert link.ready and bench.ready

    run(files, test)


def test_why_an_agent_is_refused_reaches_it(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        bench.admit = lambda link, token, decided: decided("naïve: 100% wrong token")
        with pytest.raises(LinkError) as failed:
            await bench.connect(alpn=GRPC, token="x")
        assert failed.value.stage is LinkStage.REFUSED
        assert str(failed.value) == (
            "the server ended the call: Unauthenticated naïve: 100% wrong token"
        )
        await bench.until(lambda: bench.gone)
        (gone,) = bench.gone
        assert (gone.stage, gone.closed_because) == (LinkStage.REFUSED, "naïve: 100% wrong token")
        assert not gone.orderly and not bench.ready

    run(files, test)


@pytest.mark.parametrize("alpn", [MUX, GRPC])
def test_the_network_reaches_whoever_admits(files: pki.PkiFiles, alpn: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        networks: list[str] = []

        def admit(link: AgentLink, token: str, decided: Decided) -> None:
            networks.append(link.network)
            decided("")

        bench.admit = admit
        await bench.connect(alpn=alpn, network="sites")
        await bench.connect(alpn=alpn)
        assert networks == ["sites", ""]
        with pytest.raises(LinkError, match="network has 254 characters, at most 253 are allowed"):
            await bench.connect(alpn=alpn, network="n" * 254)

    run(files, test)


@pytest.mark.parametrize("kind", Unwelcome)
def test_the_status_of_a_refusal_tells_its_kind(files: pki.PkiFiles, kind: Unwelcome) -> None:
    said = {
        Unwelcome.BAD_HELLO: "InvalidArgument",
        Unwelcome.NO_PROOF: "Unauthenticated",
        Unwelcome.NOT_ENTITLED: "PermissionDenied",
        Unwelcome.TRY_LATER: "Unavailable",
    }

    async def test(bench: Bench) -> None:
        bench.admit = lambda link, token, decided: decided("not you", kind)
        with pytest.raises(LinkError) as failed:
            await bench.connect(alpn=GRPC)
        assert failed.value.stage is LinkStage.REFUSED
        assert str(failed.value) == f"the server ended the call: {said[kind]} not you"

    run(files, test)


def test_an_id_that_is_too_long_is_a_bad_hello(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LinkError, match="InvalidArgument agent id has 254 characters, at most"):
            await bench.connect(alpn=GRPC, agent_id="x" * 254)

    run(files, test)


def test_a_verdict_after_the_agent_has_left_changes_nothing(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        asked: list[Callable[[str], None]] = []
        bench.admit = lambda link, token, decided: asked.append(decided)
        for verdict in ("", "no"):
            connecting = asyncio.create_task(bench.connect(alpn=GRPC))
            await bench.until(lambda: asked)
            connecting.cancel()
            await bench.until(lambda: len(bench.gone) == len(bench.accepted))
            asked.pop()(verdict)
            assert not bench.ready

    run(files, test)


@pytest.mark.parametrize("agent_id", ["", "x" * 254])
def test_an_agent_without_a_usable_name_is_refused(files: pki.PkiFiles, agent_id: str) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LinkError, match=r"expected one agentID|agent id has 254") as failed:
            await bench.connect(alpn=GRPC, agent_id=agent_id)
        assert failed.value.stage is LinkStage.REFUSED
        assert not bench.ready

    run(files, test)


# Dials.


def test_a_dial_that_succeeds_becomes_a_tunnel(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        answers: Answers = []
        end = ask(server_side, answers)
        assert end is not None and server_side.load == 1
        await bench.until(lambda: bench.dials)
        incoming = bench.dials[0]
        assert (incoming.host, incoming.port) == ("10.0.0.1", 80)
        assert (incoming.timeout_s, incoming.link_id) == (0.0, agent_side.id)
        assert incoming.requester == Identity("who", ("group",), "uid")
        assert incoming.asking == RequestMetadata(
            groups=("g",), traceparent="00-x", tracestate="a=1"
        )
        assert agent_side.load == 1
        agent_end = incoming.accept("10.0.0.1:80")
        await bench.until(lambda: answers)
        assert answers[0] is not None and failure_of(answers[0]) is None
        assert answers[0].address == "10.0.0.1:80"
        client, far = MemoryEnd(), MemoryEnd()
        join(agent_end, far)
        join(end, client)
        client.feed(b"question")
        await bench.until(lambda: far.received == b"question")
        far.feed(b"x" * 300_000)
        await bench.until(lambda: len(client.received) == 300_000)
        client.feed_eof()
        await bench.until(lambda: far.eofs)
        far.feed(b"last")
        far.feed_eof()
        await bench.until(lambda: client.eofs)
        assert bytes(client.received[-4:]) == b"last"
        assert (client.aborted, far.aborted) == (None, None)
        assert (server_side.load, agent_side.load) == (0, 0)

    run(files, test)


@pytest.mark.parametrize("failure", DialFailure)
def test_a_dial_that_fails_says_why(files: pki.PkiFiles, failure: DialFailure) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        answers: Answers = []
        end = ask(server_side, answers)
        assert end is not None
        await bench.until(lambda: bench.dials)
        bench.dials[0].refuse(failure, "because")
        await bench.until(lambda: answers)
        assert answers[0] is not None
        assert failure_of(answers[0]) is failure
        # Go's words, or what was said, which Go has no words for.
        assert answers[0].detail.startswith(("dial tcp", "because"))
        end.write_eof()  # as the dialer does
        assert (server_side.load, agent_side.load) == (0, 0)

    run(files, test)


def test_what_cannot_be_dialed_is_refused_without_asking(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        said: list[str | None] = []
        packets = packets_of(server_side)
        for number, address in enumerate(("nonsense", "10.0.0.1:0", "2130706433:80", "")):
            packets.dial(address, 50 + number, said.append)
        await bench.until(lambda: len(said) == 4)
        assert all(text and text.startswith("dial tcp: address ") for text in said)
        packets.say(DIAL_REQ, dial_request("udp", "10.0.0.1:53", 60))
        await bench.until(lambda: agent_side.terms.packets.sent[DIAL_RSP] == 5)
        assert not bench.dials and agent_side.load == 0

    run(files, test)


def test_a_cancelled_dial_is_taken_back_at_the_agent(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        answers: Answers = []
        cancelled: list[bool] = []
        end = ask(server_side, answers)
        assert end is not None
        await bench.until(lambda: bench.dials)
        bench.dials[0].on_cancelled = lambda: cancelled.append(True)
        end.abort(Ending.CANCELLED)
        assert server_side.load == 0
        await bench.until(lambda: cancelled)
        assert (answers, agent_side.load) == ([], 0)

    run(files, test)


def test_a_dial_cancelled_while_its_answer_is_on_the_way_leaves_nothing(
    files: pki.PkiFiles,
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        answers: Answers = []
        end = ask(server_side, answers)
        assert end is not None
        await bench.until(lambda: bench.dials)
        far = MemoryEnd()
        join(bench.dials[0].accept("10.0.0.1:80"), far)  # said, and not heard yet
        end.abort(Ending.CANCELLED)
        await bench.until(lambda: far.aborted)
        assert server_side.terms.packets.sent[CLOSE_REQ] == 1
        assert (answers, server_side.load, agent_side.load) == ([], 0, 0)

    run(files, test)


@pytest.mark.parametrize("by", ["client", "target"])
def test_a_reset_travels_as_a_reset(files: pki.PkiFiles, by: str) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        end, client, agent_end, far = await tunnel(bench, server_side)
        if by == "client":
            end.abort(Ending.RESET)
            await bench.until(lambda: far.aborted)
        else:
            agent_end.abort(Ending.RESET)
            await bench.until(lambda: client.aborted)
        assert not client.eofs and not far.eofs
        await bench.until(lambda: not server_side.load and not agent_side.load)

    run(files, test)


def test_a_full_link_says_so(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["limits"] = Limits(max_streams=2)
        server_side, _ = await bench.linked(GRPC)
        assert not server_side.full
        for number in range(2):
            assert ask(server_side, [], dial_id=number + 1) is not None
        assert (server_side.can_open, server_side.load) == (False, 2)
        assert bool(server_side.full)
        assert ask(server_side, [], dial_id=3) is None

    run(files, test)


def test_packets_are_counted_each_way(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        mine = PacketCounts()
        bench.settings["packets"] = mine
        server_side, _ = await bench.linked(GRPC)
        _, client, _, far = await tunnel(bench, server_side)
        client.feed(b"up")
        far.feed(b"down")
        await bench.until(lambda: client.received and far.received)
        assert (mine.sent[DIAL_REQ], mine.received[DIAL_RSP]) == (1, 1)
        assert (mine.sent[DATA], mine.received[DATA]) == (1, 1)

    run(files, test)


# Drain, spare links, loss.


def test_a_draining_agent_is_not_chosen_and_its_tunnels_go_on(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        _, client, _, far = await tunnel(bench, server_side)
        agent_side.drain()
        await bench.until(lambda: server_side.draining)
        assert not server_side.takes_dials and server_side.ready
        assert server_side.terms.packets.received[DRAIN] == 1
        client.feed(b"still here")
        await bench.until(lambda: far.received == b"still here")
        agent_side.close("done")
        await bench.until(lambda: bench.gone)
        assert server_side.orderly

    run(files, test)


def test_a_draining_server_tells_an_agent_nothing(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        _, client, _, far = await tunnel(bench, server_side)
        server_side.drain()
        client.feed(b"still here")
        await bench.until(lambda: far.received == b"still here")
        # GOAWAY would make Go's agent drop its tunnels.
        assert not talk_of(agent_side).session.remote_draining and agent_side.ready

    run(files, test)


def test_a_spare_link_drains_from_the_beginning_and_serves_what_was_asked(
    files: pki.PkiFiles,
) -> None:
    async def test(bench: Bench) -> None:
        answers: Answers = []
        # At once, before the agent said DRAIN: as far as the server knows, it is to be used.
        bench.on_ready = lambda link: ask(link, answers)
        agent_side = await bench.connect(alpn=GRPC, claim=lambda link: False)
        (server_side,) = bench.ready
        await bench.until(lambda: bench.dials and server_side.draining)
        assert not server_side.takes_dials and server_side.ready
        await bench.until(lambda: talk_of(agent_side).round_trip_s)
        assert agent_side.spare and not agent_side.unused
        bench.dials[0].refuse(DialFailure.REFUSED, "")
        await bench.until(lambda: answers)
        await bench.until(lambda: agent_side.unused)

    run(files, test)


def test_a_lost_link_resets_tunnels_and_lets_dials_be_tried_elsewhere(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        _, client, _, far = await tunnel(bench, server_side)
        answers: Answers = []
        cancelled: list[bool] = []
        assert ask(server_side, answers) is not None
        await bench.until(lambda: len(bench.dials) == 2)
        bench.dials[1].on_cancelled = lambda: cancelled.append(True)
        agent_side.lost("pulled out")
        assert far.aborted is Ending.LINK_LOST and cancelled == [True]
        await bench.until(lambda: client.aborted)
        assert client.aborted is Ending.LINK_LOST
        assert answers == [None]
        assert (server_side.load, agent_side.load) == (0, 0)
        assert bench.gone == [server_side] and not server_side.orderly

    run(files, test)


def test_a_refusal_after_the_link_is_lost_goes_nowhere(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        assert ask(server_side, []) is not None
        await bench.until(lambda: bench.dials)
        agent_side.lost("pulled out")
        bench.dials[0].refuse(DialFailure.REFUSED, "too late")  # nobody hears it
        await bench.until(lambda: bench.gone)

    run(files, test)


def test_closed_by_one_side_it_is_over_for_both_once(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        server_side.close("enough")
        server_side.close("twice")
        assert await agent_side.over
        await bench.until(lambda: bench.gone)
        assert (server_side.closed_because, bench.gone) == ("enough", [server_side])
        assert server_side.orderly and agent_side.orderly

    run(files, test)


def test_closing_a_link_loses_nothing_that_was_said(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        _, client, _, far = await tunnel(bench, server_side)
        far.feed(b"x" * 60_000)
        far.feed_eof()
        agent_side.close("done")  # with everything still in this batch
        await bench.until(lambda: server_side.closed_because)
        assert (len(client.received), client.eofs) == (60_000, 1)

    run(files, test)


# Liveness.


def test_the_agent_never_pings_faster_than_gos_server_allows(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        eager = Limits(ping_every_s=0.1, dead_after_s=1.0)
        await bench.connect(alpn=GRPC, limits=eager)
        limits = talk_of(bench.links[0]).session.limits
        assert limits.ping_every_s == PING_EVERY_S > 30.0
        assert limits.dead_after_s > limits.ping_every_s

    run(files, test)


def test_the_server_pings_as_often_as_it_is_told(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["limits"] = Limits(ping_every_s=3.0, dead_after_s=7.0)
        server_side, _ = await bench.linked(GRPC)
        limits = talk_of(server_side).session.limits
        assert (limits.ping_every_s, limits.dead_after_s) == (3.0, 7.0)

    run(files, test)


def test_a_silent_agent_is_dropped(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(GRPC)
        session = talk_of(server_side).session
        session.limits = replace(session.limits, dead_after_s=0.0)
        await bench.until(lambda: server_side.closed_because)
        assert server_side.closed_because == "no byte heard for too long"
        assert await agent_side.over

    run(files, test)
