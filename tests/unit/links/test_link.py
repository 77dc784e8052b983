"""Two ends of a link over a real connection: greeting, drain, reasons, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from isthmus.app import pki
from isthmus.errors import LinkError, LinkStage
from isthmus.links import link as link_module
from isthmus.links.agent_side import Greeting, ServerLink, connect
from isthmus.links.dials import IncomingDial
from isthmus.links.link import ENDINGS, REASONS, Link
from isthmus.links.server_side import AgentLink, Membership
from isthmus.net.connect import Address, literal
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.values import AgentId, DialId, HostPort, Identity, ServerId
from isthmus.wire.link import ALPN
from isthmus.wire.link_pb2 import Control, DialResult, Ended
from isthmus.wire.link_pb2 import Membership as Members


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


def test_every_ending_has_its_own_reason_on_the_wire() -> None:
    assert set(REASONS) == set(Ending)
    assert len(set(REASONS.values())) == len(REASONS)
    assert {REASONS[ending] for ending in ENDINGS.values()} == set(ENDINGS)
    assert Ended.UNKNOWN not in ENDINGS  # an unknown reason is a reset


class Bench:
    """A listener of server sides, and what happened to them."""

    def __init__(self, files: pki.PkiFiles) -> None:
        self.files = files
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.membership = Membership(server_id=ServerId("server"), server_count=3)
        self.accepted: list[AgentLink] = []
        self.ready: list[AgentLink] = []
        self.gone: list[Link] = []
        self.dials: list[IncomingDial] = []
        self.links: list[ServerLink] = []
        tls = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        self._context = server_context(tls, alpn=(ALPN,))
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self._listener = Listener(self.loop, sock, self._accept)
        self.address: Address = literal("127.0.0.1", self._listener.port)

    def _accept(self, sock: socket.socket) -> None:
        self.accepted.append(
            AgentLink(
                self.loop,
                self.poller,
                sock,
                self._context,
                membership=lambda: self.membership,
                on_ready=self.ready.append,
                on_dial=self.dials.append,
                on_closed=self.gone.append,
            )
        )

    async def connect(
        self, *, agent_id: str = "agent", alpn: str = ALPN, address: Address | None = None
    ) -> ServerLink:
        files = self.files
        tls = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
        link = await connect(
            self.loop,
            self.poller,
            address or self.address,
            client_context(tls, alpn=(alpn,)),
            server_hostname="localhost",
            greeting=Greeting(agent_id=AgentId(agent_id), identifiers="host=n1"),
            on_dial=self.dials.append,
        )
        self.links.append(link)
        return link

    async def linked(self) -> tuple[AgentLink, ServerLink]:
        agent_side = await self.connect()
        return self.ready[-1], agent_side

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self._listener.stop()
        for link in (*self.links, *self.accepted):
            link.close("test over")
        await self.until(lambda: len(self.gone) == len(self.accepted))
        await self.until(lambda: len(self.poller) == 0)
        self.poller.shut_down()


@contextlib.asynccontextmanager
async def bench(files: pki.PkiFiles) -> AsyncIterator[Bench]:
    made = Bench(files)
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        await made.close()


def run(files: pki.PkiFiles, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench(files) as made:
            await test(made)

    asyncio.run(main())


def ask(link: Link, answers: list[DialResult | None]) -> object:
    return link.open_dial(
        HostPort("demo.internal", 80),
        dial_id=DialId(9),
        timeout_s=1.5,
        requester=Identity("who", ("group",)),
        told=answers.append,
    )


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
        assert server_side.session is not None
        stream = next(s for s in server_side.session.streams.values() if s.id % 2 == 0)
        stream.abort(reason)
        await bench.until(lambda: far.aborted)
        assert far.aborted is reason

    run(files, test)


def test_a_draining_side_is_not_asked_any_more(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        agent_side.drain()
        await bench.until(lambda: not server_side.takes_dials)
        assert server_side.ready and not server_side.full
        assert ask(server_side, []) is None

    run(files, test)


def is_full(link: Link) -> bool:
    return link.full  # a property that mypy takes for one that cannot change


def test_a_full_link_says_so(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, _ = await bench.linked()
        assert server_side.session is not None and not is_full(server_side)
        server_side.session.limits = type(server_side.session.limits)(max_streams=2)
        assert ask(server_side, []) is not None
        assert (server_side.can_open, server_side.load) == (False, 2)
        assert is_full(server_side)

    run(files, test)


def test_a_change_of_membership_is_heard(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        server_side, agent_side = await bench.linked()
        server_side.tell(Control(membership=Members(server_count=5)))
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
        assert failed.value.stage in (LinkStage.REFUSED, LinkStage.PROTOCOL)
        await bench.until(lambda: bench.gone)
        assert bench.gone[0].stage is LinkStage.PROTOCOL and not bench.ready

    run(files, test)


def test_another_protocol_is_refused(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LinkError) as failed:
            await bench.connect(alpn="h2")
        assert failed.value.stage is LinkStage.TLS

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
        await bench.until(lambda: len(bench.gone) == len(bench.accepted) and not bench.poller)
        await bench.until(lambda: len(os.listdir("/proc/self/fd")) == before)

    run(files, test)


def test_a_stream_that_never_says_what_for_is_reset(files: pki.PkiFiles) -> None:
    async def test(made: Bench) -> None:
        server_side, agent_side = await made.linked()
        server_side._undialed._timeout_s = server_side._undialed._grain_s = 0.01
        assert agent_side.session is not None
        stream = agent_side.session.open()
        assert stream is not None
        await made.until(lambda: stream.ending)
        assert stream.ending is Ending.TIMED_OUT
        assert not made.dials

    run(files, test)


def test_a_peer_that_does_not_read_the_control_stream_is_dropped(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MOST_CONTROL_BYTES", 1000)

    async def test(made: Bench) -> None:
        server_side, _ = await made.linked()
        assert server_side._control is not None
        server_side._control.credit = 0  # the peer gave none
        server_side._control.reserve = 0
        for _ in range(1000):
            server_side.tell(Control(drain={}))
        assert server_side.closed_because == "peer does not read the control stream"
        assert server_side.stage is LinkStage.PROTOCOL

    run(files, test)


def test_a_link_whose_ids_are_used_up_makes_way_for_another(files: pki.PkiFiles) -> None:
    async def test(made: Bench) -> None:
        server_side, agent_side = await made.linked()
        assert server_side.session is not None
        server_side.session._next_id = 2**31 - 2
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
            HostPort("10.0.0.1", 1),
            dial_id=DialId(1),
            timeout_s=5,
            requester=Identity("me"),
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
