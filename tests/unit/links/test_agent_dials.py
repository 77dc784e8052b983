"""Dials that an agent opens, over real connections and by both protocols: from asking to loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linkbench import GRPC, MUX, Bench, run

from isthmus.errors import DialFailure
from isthmus.links.agent_side import ServerLink
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink, Decided
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.tunnel.limits import Limits
from isthmus.values import NOTHING, DialId, DialRequest, HostPort, Identity
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

Answers = list[DialResult | None]
TARGET = HostPort("apiserver.internal", 6443)
GATE = "EnableClusterToMasterTraffic"

pytestmark = pytest.mark.parametrize("alpn", [MUX, GRPC], ids=["mux", "grpc"])


def ask(
    link: Link, answers: Answers, *, dial_id: int = 9, connection_id: str = ""
) -> BaseEnd | None:
    return link.open_dial(
        DialRequest(TARGET, Identity("10.1.2.3:4567", kind="none"), connection_id=connection_id),
        dial_id=DialId(dial_id),
        timeout_s=5.0,
        told=answers.append,
    )


def lasting(link: Link) -> bool:
    """Nothing of a dial or tunnel is left on the link, and it goes on."""
    return link.ready and link.load == 0


class Tunnel:
    """One over the link: ``client`` … ``near`` ⇄ ``far`` … ``target``, whoever opened it."""

    def __init__(self) -> None:
        self.client, self.target = MemoryEnd(), MemoryEnd()
        self.near: BaseEnd
        self.far: BaseEnd

    @classmethod
    async def open(cls, bench: Bench, by: Link, dial_id: int = 9) -> Tunnel:
        made = cls()
        answers: Answers = []
        before = len(bench.dials)
        near = ask(by, answers, dial_id=dial_id)
        assert near is not None
        made.near = near
        await bench.until(lambda: len(bench.dials) > before)
        made.far = bench.dials[-1].accept("10.0.0.1:6443")
        join(made.far, made.target)
        await bench.until(lambda: answers)
        assert answers[0] is not None and failure_of(answers[0]) is None
        assert answers[0].address == "10.0.0.1:6443"
        join(made.near, made.client)
        return made


def test_features_are_said_both_ways(files: pki.PkiFiles, alpn: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        bench.membership = replace(bench.membership, features=(GATE, "Other"))
        seen: list[object] = []

        def admit(link: AgentLink, token: str, decided: Decided) -> None:
            seen.append(link.features)
            decided("")

        def claim(link: ServerLink) -> bool:
            seen.append(link.features)
            return True

        bench.admit = admit
        agent_side = await bench.connect(alpn=alpn, features=(GATE,), claim=claim)
        assert agent_side.features == {GATE, "Other"} and bench.ready[0].features == {GATE}
        assert seen == [{GATE}, {GATE, "Other"}]  # known to whoever decides

    run(files, test)


def test_no_feature_is_said_too_and_nonsense_is_not_heard(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        assert server_side.features == agent_side.features == frozenset()
        bench.membership = replace(bench.membership, features=("", "a\x7fb", "x" * 65, "Fine"))
        many = tuple(f"F{number}" for number in range(1000))
        agent_side = await bench.connect(alpn=alpn, features=many)
        assert agent_side.features == {"Fine"}
        heard = bench.ready[-1].features
        assert heard is not None and heard < set(many) and len(heard) == 64

    run(files, test)


def test_a_dial_becomes_a_tunnel(files: pki.PkiFiles, alpn: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        answers: Answers = []
        near = ask(agent_side, answers)
        assert near is not None and agent_side.load == 1
        await bench.until(lambda: bench.dials)
        (incoming,) = bench.dials
        assert (incoming.host, incoming.port) == (TARGET.host, TARGET.port)
        assert incoming.link_id == server_side.id and server_side.load == 1
        assert incoming.requester == Identity("10.1.2.3:4567", kind="none")
        assert incoming.asking == NOTHING
        far = incoming.accept("10.0.0.1:6443")
        target, client = MemoryEnd(), MemoryEnd()
        join(far, target)
        target.feed(b"first")  # before the client is there
        await bench.until(lambda: answers)
        join(near, client)
        client.feed(b"question")
        await bench.until(lambda: target.received == b"question" and client.received == b"first")
        client.feed(b"u" * 600_000)
        target.feed(b"d" * 700_000)
        await bench.until(lambda: len(target.received) == 600_008)
        await bench.until(lambda: len(client.received) == 700_005)
        client.feed_eof()
        target.feed_eof()
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))
        assert (client.eofs, target.eofs, client.aborted, target.aborted) == (1, 1, None, None)

    run(files, test)


@pytest.mark.parametrize("first", ["client", "target"])
def test_a_half_close_travels(files: pki.PkiFiles, alpn: tuple[str, ...], first: str) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        tunnel = await Tunnel.open(bench, agent_side)
        one, two = (tunnel.client, tunnel.target)[:: 1 if first == "client" else -1]
        one.feed(b"all I have")
        one.feed_eof()
        await bench.until(lambda: two.eofs)
        assert two.received == b"all I have" and server_side.load == agent_side.load == 1
        two.feed(b"the answer")
        two.feed_eof()
        await bench.until(lambda: one.eofs)
        assert one.received == b"the answer" and (one.ending, two.ending) == (Ending.CLEAN,) * 2
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))

    run(files, test)


@pytest.mark.parametrize("by", ["client", "target"])
def test_a_reset_travels(files: pki.PkiFiles, alpn: tuple[str, ...], by: str) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        tunnel = await Tunnel.open(bench, agent_side)
        one, two = (tunnel.client, tunnel.target)[:: 1 if by == "client" else -1]
        one.feed(b"half a sent")
        one.reset()
        await bench.until(lambda: two.aborted)
        assert two.aborted is Ending.RESET and not two.eofs
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))

    run(files, test)


@pytest.mark.parametrize("failure", DialFailure)
def test_a_refusal_says_why(
    files: pki.PkiFiles, alpn: tuple[str, ...], failure: DialFailure
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        answers: Answers = []
        near = ask(agent_side, answers)
        assert near is not None
        await bench.until(lambda: bench.dials)
        bench.dials[0].refuse(failure, "timeout of a connection refused")  # words of others
        await bench.until(lambda: answers)
        assert answers[0] is not None and failure_of(answers[0]) is failure
        near.write_eof()  # as the dialer does
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))

    run(files, test)


def test_a_dial_taken_back_before_its_answer(files: pki.PkiFiles, alpn: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        answers: Answers = []
        cancelled: list[bool] = []
        near = ask(agent_side, answers)
        assert near is not None
        await bench.until(lambda: bench.dials)
        bench.dials[0].on_cancelled = lambda: cancelled.append(True)
        near.abort(Ending.CANCELLED)
        await bench.until(lambda: cancelled)
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))
        assert (answers, cancelled) == ([], [True])

    run(files, test)


def test_a_dial_taken_back_while_its_answer_is_on_the_way(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        answers: Answers = []
        near = ask(agent_side, answers)
        assert near is not None
        await bench.until(lambda: bench.dials)
        target = MemoryEnd()
        join(bench.dials[0].accept("10.0.0.1:6443"), target)
        target.feed(b"hello")
        near.abort(Ending.CANCELLED)
        await bench.until(lambda: target.aborted)
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))
        assert answers == []

    run(files, test)


@pytest.mark.parametrize("by", ["server", "agent"])
def test_a_lost_link_tells_none_and_resets_tunnels(
    files: pki.PkiFiles, alpn: tuple[str, ...], by: str
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        tunnel = await Tunnel.open(bench, agent_side)
        answers: Answers = []
        cancelled: list[bool] = []
        assert ask(agent_side, answers, dial_id=10) is not None
        await bench.until(lambda: len(bench.dials) == 2)
        bench.dials[1].on_cancelled = lambda: cancelled.append(True)
        (server_side if by == "server" else agent_side).lost("pulled out")
        await bench.until(lambda: answers and cancelled)
        assert (answers, cancelled) == ([None], [True])
        await bench.until(lambda: tunnel.client.aborted and tunnel.target.aborted)
        assert tunnel.client.aborted is tunnel.target.aborted is Ending.LINK_LOST
        assert (server_side.load, agent_side.load) == (0, 0)
        bench.dials[1].refuse(DialFailure.DENIED, "too late")  # nobody hears it

    run(files, test)


def test_both_open_at_once_with_the_same_numbers(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        tunnels = [
            await Tunnel.open(bench, side, dial_id)
            for dial_id in (1, 2, 3)
            for side in (server_side, agent_side)
        ]
        for number, tunnel in enumerate(tunnels):
            tunnel.client.feed(b"up%d" % number * 20_000)
            tunnel.target.feed(b"down%d" % number * 20_000)
        for number, tunnel in enumerate(tunnels):
            await bench.until(lambda it=tunnel: len(it.target.received) == 60_000)
            await bench.until(lambda it=tunnel: len(it.client.received) == 100_000)
            assert tunnel.target.received == b"up%d" % number * 20_000
            assert tunnel.client.received == b"down%d" % number * 20_000
        tunnels[0].client.reset()
        tunnels[1].client.reset()
        await bench.until(lambda: tunnels[0].target.aborted and tunnels[1].target.aborted)
        for tunnel in tunnels[2:]:
            tunnel.client.feed_eof()
            tunnel.target.feed_eof()
        await bench.until(lambda: lasting(server_side) and lasting(agent_side))
        assert all(tunnel.target.ending is Ending.CLEAN for tunnel in tunnels[2:])

    run(files, test)


def test_a_connection_is_called_the_same_on_both_sides(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        bench.settings["process"] = "0a0a0a0a"
        agent_side = await bench.connect(alpn=alpn, process="0b0b0b0b")
        assert ask(agent_side, [], connection_id="0b0b0b0b-1f") is not None
        assert ask(bench.ready[0], [], connection_id="0a0a0a0a-1f") is not None
        await bench.until(lambda: len(bench.dials) == 2)
        called = {incoming.connection_id for incoming in bench.dials}
        assert called == {"0b0b0b0b-1f", "0a0a0a0a-1f"}

    run(files, test)


@pytest.mark.parametrize("where", ["server", "agent"])
def test_a_full_link_takes_no_more(files: pki.PkiFiles, alpn: tuple[str, ...], where: str) -> None:
    async def test(bench: Bench) -> None:
        few = Limits(max_streams=3)
        if where == "server":
            bench.settings["limits"] = few
        agent_side = await bench.connect(alpn=alpn, **({"limits": few} if where == "agent" else {}))
        fits = 3 if alpn == GRPC else 2  # the control stream is the third
        answers: Answers = []
        for number in range(fits):
            assert ask(agent_side, answers, dial_id=number + 1) is not None
        more = ask(agent_side, answers, dial_id=99)
        if where == "agent":
            assert more is None and agent_side.full and not agent_side.can_open
            return
        await bench.until(lambda: answers and len(bench.dials) == fits)
        (answer,) = answers
        if alpn == GRPC:
            assert answer is not None and failure_of(answer) is DialFailure.TOO_MANY
        else:
            assert answer is None  # reset: not done
        assert bench.ready[0].load == fits and bench.ready[0].ready

    run(files, test)


def test_a_server_that_drains_is_not_asked_and_its_tunnels_go_on(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        tunnel = await Tunnel.open(bench, agent_side)
        assert takes_dials(agent_side)
        server_side.drain()
        await bench.until(lambda: not takes_dials(agent_side))
        tunnel.client.feed(b"still here")
        await bench.until(lambda: tunnel.target.received == b"still here")
        assert agent_side.ready and server_side.ready

    run(files, test)


def takes_dials(link: AgentLink | ServerLink) -> bool:
    return link.takes_dials  # a property that mypy takes for one that cannot change


def test_a_server_that_leaves_answers_nothing_more(
    files: pki.PkiFiles, alpn: tuple[str, ...]
) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked(alpn)
        answers: Answers = []
        near = ask(agent_side, answers)  # on its way
        server_side.close("enough")
        await bench.until(lambda: answers)
        assert near is not None and answers == [None] and not bench.dials

    run(files, test)
