"""One connection from the node: which server is asked, and how it ends when none can serve it.

Over real links and sockets, by both protocols; what the servers answer is the test's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import IPv4Address

import pytest

from isthmus.dial.frontends.backend import PROCESS
from isthmus.dial.settings_targets import Target
from isthmus.errors import DialFailure
from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.frame.part import Ground
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.agent_side import AgentGreeting
from isthmus.links.link import Link, LinkTerms
from isthmus.links.server_side import AgentHooks, AgentLink, Membership
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer
from isthmus.net.connect import Address, literal
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.agent import PROGRAM as AGENT
from isthmus.programs.agent import node_connections
from isthmus.programs.agent.linking import Linking, ServerAddresses
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.node_connections import NodeConnections
from isthmus.programs.agent.node_traffic import NodeListeners
from isthmus.programs.agent.servers import Servers
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.settings.options import compose
from isthmus.testing.ends import MemoryEnd
from isthmus.text.pacing import Backoff
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join
from isthmus.values import AgentId, HostPort, ServerId
from isthmus.wire.alpn import ALPN

DESTINATION = HostPort("apiserver.internal", 6443)
GATE = (CLUSTER_TO_MASTER,)
HOST = "127.0.0.1"
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


@pytest.fixture(params=["mux", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


class Names(Resolver):
    """Knows one name: wherever the servers are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.places: list[Address] = []

    async def addresses(self, target: HostPort) -> list[Address]:
        return list(self.places)


class FarServer:
    """A server that links, and leaves the dials of its agent to the test."""

    def __init__(self, bed: Bed, name: str, features: tuple[str, ...]) -> None:
        self.name = ServerId(name)
        self.dials: list[Incoming] = []
        self.links: set[Link] = set()
        self._bed = bed
        said = Membership(server_id=self.name, server_count=1, features=features)

        def accept(sock: socket.socket) -> None:
            self.links.add(
                AgentLink(
                    LinkTerms(loop=bed.loop, poller=bed.poller),
                    AgentHooks(
                        membership=lambda: said,
                        on_ready=lambda _: None,
                        on_dial=self.dials.append,
                        on_closed=self.links.discard,
                    ),
                    sock,
                    bed.server_context,
                )
            )

        (sock,) = bind_tcp(HOST, 0, flag="--port")
        self.listener = Listener(bed.loop, bed.poller, sock, accept)
        bed.names.places.append(literal(HOST, self.listener.port))

    def die(self) -> None:
        """End at once, as a process that is killed."""
        self._bed.names.places.remove(literal(HOST, self.listener.port))
        self.listener.stop()
        for link in list(self.links):
            link.lost("killed")

    async def asked(self) -> Incoming:
        await self._bed.until(lambda: self.dials)
        return self.dials.pop(0)

    async def serve(self) -> MemoryEnd:
        """Reach what is asked for."""
        end = MemoryEnd()
        join((await self.asked()).accept("192.0.2.1:6443"), end)
        return end


class Bed:
    """An agent's connections from its node, and the servers that a test makes."""

    def __init__(self, files: pki.PkiFiles, protocol: str) -> None:
        self.ground: Ground[AgentSettings, AgentMetrics] = Ground(
            AGENT, compose(AgentSettings, agent_id="agent")
        )
        self.loop, self.poller, self.metrics = (
            self.ground.loop, self.ground.poller, self.ground.metrics,
        )  # fmt: skip
        self.names = Names(self.loop)
        self.far: list[FarServer] = []
        self.tunnels = TunnelTable(self.loop, self.metrics)
        alpn = "h2" if protocol == "grpc" else ALPN
        theirs = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        mine = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
        self.server_context = server_context(theirs, alpn=(alpn,))
        context = client_context(mine, alpn=(alpn,))
        terms = LinkTerms(loop=self.loop, poller=self.poller)
        self.servers = Servers(
            Linking(
                terms,
                context=lambda: context,
                greeting=lambda: AgentGreeting(
                    agent_id=AgentId("agent"), features=GATE, process=PROCESS
                ),
                on_dial=lambda _: pytest.fail("a server dials"),
                metrics=self.metrics,
                once=OncePer(),
            ),
            ServerAddresses(
                terms,
                self.names,
                hosts=["localhost"],
                port=1,
                proxies=ProxyRules.from_environment({}),
                once=OncePer(),
            ),
            backoff=lambda: Backoff(first_s=0.001, cap_s=0.002, chance=lambda: 0.5),
            changed=self._changed,
        )
        self.connections: NodeConnections
        self.listeners: NodeListeners
        self._keeping: asyncio.Task[None] | None = None
        self._clients: list[socket.socket] = []

    def _changed(self) -> None:
        self.loop.call_soon(self.connections.links_changed)

    def listen(self, *, wait_s: float = LIMIT_S, dial_timeout_s: float = LIMIT_S) -> None:
        self.ground.settings = compose(
            AgentSettings, agent_id="agent", target_wait_s=wait_s, dial_timeout_s=dial_timeout_s
        )
        self.connections = NodeConnections(
            self.ground, lambda: list(self.servers.links.values()), self.tunnels
        )
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        self.listeners = NodeListeners(
            self.loop,
            self.poller,
            addresses=[IPv4Address(HOST)],
            targets=[Target(port, DESTINATION)],
            accept=self.connections.accept,
        )
        self.listeners.bind()
        self.listeners.listen()

    async def server(self, name: str = "one", features: tuple[str, ...] = GATE) -> FarServer:
        """Start a server and wait until it is linked."""
        self.far.append(FarServer(self, name, features))
        if self._keeping is not None:
            self.servers._table.tell_change()  # the name has one address more
        else:
            self._keeping = asyncio.create_task(self.servers.keep_connected())
        await self.until(lambda: (up := self.servers.links.get(ServerId(name))) and up.ready)
        return self.far[-1]

    async def client(self) -> socket.socket:
        (listener,) = self.listeners.listeners
        sock = socket.socket()
        self._clients.append(sock)
        sock.connect((HOST, listener.port))  # the kernel takes it at once
        sock.setblocking(False)
        return sock

    async def clients(self, number: int) -> list[socket.socket]:
        return [await self.client() for _ in range(number)]

    async def is_reset(self, sock: socket.socket) -> bool:
        """The next thing that is read is a reset, not an end of file."""
        with sock:
            try:
                async with asyncio.timeout(LIMIT_S):
                    assert not await self.loop.sock_recv(sock, 1), "bytes"
            except ConnectionResetError:
                return True
        return False

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.001)

    def results(self) -> dict[NodeResult, int]:
        return {result: n for result, n in self.metrics.node.results.items() if n}

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        self.listeners.close()
        self.connections.close()
        self.tunnels.abort_all(Ending.DRAINED)
        self.servers.close()
        await self.servers.wait_closed()
        for far in self.far:
            far.listener.stop()
        await self.until(lambda: not any(far.links for far in self.far) and not len(self.poller))
        assert self.connections.waiting == self.connections.open == 0
        self.poller.shut_down()


def run(files: pki.PkiFiles, protocol: str, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed(files, protocol)
        try:
            await test(bed)
        finally:
            await bed.close()

    asyncio.run(main())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[dict[str, object]]]]:
    """Gives the fields of the lines with this beginning."""
    with caplog.at_level(logging.INFO, "isthmus.agent"):
        yield lambda text: [
            vars(record)["fields"]
            for record in caplog.records
            if record.getMessage().startswith(text)
        ]


def test_early_bytes_wait_and_go_first(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        far = await bed.server()
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"client hello")
            incoming = await far.asked()
            assert (incoming.host, incoming.port) == (DESTINATION.host, DESTINATION.port)
            assert incoming.connection_id
            if protocol == "mux":
                name = client.getsockname()
                assert incoming.requester.name == f"{name[0]}:{name[1]}"
            assert bed.connections.waiting == 1
            end = MemoryEnd()
            join(incoming.accept("192.0.2.1:6443"), end)
            await bed.until(lambda: end.received == b"client hello")
            end.feed(b"server hello")
            assert await bed.loop.sock_recv(client, 100) == b"server hello"
            (view,) = bed.tunnels.views(10)
            assert (view.frontend, view.target) == ("node", str(DESTINATION))
            assert view.connection_id == incoming.connection_id
            assert (bed.connections.waiting, bed.connections.open) == (0, 1)
            client.shutdown(socket.SHUT_WR)
            await bed.until(lambda: end.eofs == 1)
            end.feed(b"last words")
            end.feed_eof()
            assert await bed.loop.sock_recv(client, 100) == b"last words"
            assert await bed.loop.sock_recv(client, 100) == b""
        await bed.until(lambda: not len(bed.tunnels))
        assert bed.results() == {NodeResult.JOINED: 1}
        assert bed.connections.open == 0

    run(files, protocol, test)


def test_a_half_close_before_the_answer_is_one_after_it(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        far = await bed.server()
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"all of it")
            client.shutdown(socket.SHUT_WR)
            end = await far.serve()
            await bed.until(lambda: end.eofs == 1)
            assert end.received == b"all of it"
            end.feed(b"the answer")
            end.feed_eof()
            assert await bed.loop.sock_recv(client, 100) == b"the answer"
            assert await bed.loop.sock_recv(client, 100) == b""

    run(files, protocol, test)


def test_what_comes_early_is_bounded_and_lost_is_nothing(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        data = random.Random(1).randbytes(8 * 1024 * 1024)
        with await bed.client() as client:
            sending = asyncio.create_task(bed.loop.sock_sendall(client, data))
            await bed.until(lambda: bed.connections._pending)
            (connection,) = bed.connections._pending
            await bed.until(lambda: connection.end is not None and connection.end.paused)
            assert 64 * 1024 <= len(connection.buffer) <= 128 * 1024
            far = await bed.server()
            end = await far.serve()
            await bed.until(lambda: len(end.received) == len(data))
            await sending
            assert hashlib.sha256(end.received).digest() == hashlib.sha256(data).digest()

    run(files, "mux", test)


def test_a_reset_travels_both_ways(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        far = await bed.server()
        client = await bed.client()
        end = await far.serve()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await bed.until(lambda: end.aborted is not None)
        client = await bed.client()
        end = await far.serve()
        end.reset()
        assert await bed.is_reset(client)

    run(files, protocol, test)


def test_it_waits_and_then_a_server_comes(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"patience")
            await bed.until(lambda: bed.connections.waiting == 1)
            far = await bed.server()
            end = await far.serve()
            await bed.until(lambda: end.received == b"patience")

    run(files, protocol, test)


def test_it_waits_and_none_comes(
    files: pki.PkiFiles, said: Callable[[str], list[dict[str, object]]]
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen(wait_s=0.05)
        off = await bed.server("off", features=())
        assert all([await bed.is_reset(client) for client in await bed.clients(3)])
        assert bed.results() == {NodeResult.NO_SERVER: 3}
        assert not off.dials

    run(files, "mux", test)
    (line,) = said("reset a connection from the node")  # the others were alike
    assert line["reason"] == "no server is connected that carries node traffic"


def test_without_patience_it_is_reset_at_once(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.listen(wait_s=0.0)
        assert await bed.is_reset(await bed.client())
        far = await bed.server()
        with await bed.client():
            await far.serve()  # it is asked all the same
            await bed.until(lambda: bed.connections.open == 1)
        assert bed.results() == {NodeResult.NO_SERVER: 1, NodeResult.JOINED: 1}

    run(files, "mux", test)


def test_denied_is_reset_at_once_and_nobody_else_is_asked(
    files: pki.PkiFiles, protocol: str, said: Callable[[str], list[dict[str, object]]]
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        servers = [await bed.server(name) for name in ("one", "two")]
        client = await bed.client()
        await bed.until(lambda: any(far.dials for far in servers))
        (asked,) = [far for far in servers if far.dials]
        (await asked.asked()).refuse(DialFailure.DENIED, "not listed")
        assert await bed.is_reset(client)
        assert not any(far.dials for far in servers)
        assert bed.results() == {NodeResult.DENIED: 1}
        assert bed.metrics.node.failures[DialFailure.DENIED] == 1

    run(files, protocol, test)
    (line,) = said("reset a connection from the node")
    assert str(line["reason"]).startswith("denied by policy")


@pytest.mark.parametrize(
    "failure",
    [DialFailure.REFUSED, DialFailure.TIMED_OUT, DialFailure.UNREACHABLE, DialFailure.TOO_MANY],
)
def test_what_one_server_cannot_reach_another_may(
    files: pki.PkiFiles, protocol: str, failure: DialFailure
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        one, two = [await bed.server(name) for name in ("one", "two")]
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"try again")
            await bed.until(lambda: one.dials or two.dials)
            first, second = (one, two) if one.dials else (two, one)
            (await first.asked()).refuse(failure, "why")
            end = await second.serve()
            await bed.until(lambda: end.received == b"try again")
        client = await bed.client()
        for _ in range(2):
            await bed.until(lambda: one.dials or two.dials)
            (one if one.dials else two).dials.pop().refuse(failure, "why")
        assert await bed.is_reset(client)
        assert bed.results() == {NodeResult.JOINED: 1, NodeResult.FAILED: 1}
        assert bed.metrics.node.failures[failure] == 3

    run(files, protocol, test)


def test_a_server_that_dies_before_its_answer_is_replaced(
    files: pki.PkiFiles, protocol: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        one, two = [await bed.server(name) for name in ("one", "two")]
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"who is there")
            await bed.until(lambda: one.dials or two.dials)
            first, second = (one, two) if one.dials else (two, one)
            first.die()
            end = await second.serve()
            await bed.until(lambda: end.received == b"who is there")
        assert bed.metrics.node.lost == 1
        assert bed.results() == {NodeResult.JOINED: 1}

    run(files, protocol, test)


def test_when_the_only_server_dies_the_next_that_comes_is_asked(
    files: pki.PkiFiles, protocol: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        one = await bed.server("one")
        with await bed.client() as client:
            await bed.loop.sock_sendall(client, b"who is there")
            await one.asked()
            one.die()
            await bed.until(lambda: not bed.servers.links)
            assert bed.connections.waiting == 1
            end = await (await bed.server("two")).serve()
            await bed.until(lambda: end.received == b"who is there")

    run(files, protocol, test)


def test_a_server_that_says_nothing_is_left_alone_for_a_while(
    files: pki.PkiFiles,
    protocol: str,
    said: Callable[[str], list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        mute = await bed.server("mute")
        link = bed.servers.links[ServerId("mute")]
        link.features = None  # as konnectivity's own server
        await bed.client()
        await mute.asked()
        (connection,) = bed.connections._pending
        connection.unanswered()  # as its deadline does
        assert bed.connections.is_silent(link)
        assert bed.connections.waiting == 1  # until another comes
        other = await bed.server("other")
        await other.serve()
        for _ in range(3):  # it has more to do each time, and is asked all the same
            await bed.client()
            await other.serve()
        assert not mute.dials
        other.die()
        await bed.until(lambda: ServerId("other") not in bed.servers.links)
        await bed.client()
        await mute.serve()  # when there is no other, it is
        await bed.until(lambda: not bed.connections.is_silent(link))

    # Unless somebody is slow here, this is far less than the time in which it is left alone.
    monkeypatch.setattr(node_connections, "SILENT_S", 1000.0)
    run(files, protocol, test)
    (line,) = said("the server did not answer a connection from the node: konnectivity's own")
    assert line["server_id"] == "mute"


@pytest.mark.parametrize("ends", ["unanswered", "expired"])
def test_one_of_ours_that_does_not_answer_is_asked_last(
    files: pki.PkiFiles, protocol: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        frozen = await bed.server("frozen")
        client = await bed.client()
        await frozen.asked()
        (connection,) = bed.connections._pending
        if ends == "unanswered":
            connection.unanswered()  # as its deadline does
            connection.reset(NodeResult.UNANSWERED, "", Ending.TIMED_OUT)
        else:
            bed.connections.dial_timeout_s = 0.0  # as if it had had its time
            connection.expire()
        assert await bed.is_reset(client)
        other = await bed.server("other")
        for _ in range(3):  # it has more to do each time, and is asked all the same
            await bed.client()
            await other.serve()
        assert not frozen.dials
        assert not bed.connections.is_silent(bed.servers.links[ServerId("frozen")])

    monkeypatch.setattr(node_connections, "LATE_S", 1000.0)
    run(files, protocol, test)


def test_servers_without_the_gate_are_not_asked_and_the_sure_ones_come_first(
    files: pki.PkiFiles, protocol: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        off = await bed.server("off", features=("SomethingElse",))
        unsure = await bed.server("unsure")
        on = await bed.server("on")
        bed.servers.links[ServerId("unsure")].features = None
        await bed.clients(6)
        for _ in range(6):
            await on.serve()
        assert not off.dials and not unsure.dials

    run(files, protocol, test)


def test_the_least_loaded_server_is_asked(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        one, two = [await bed.server(name) for name in ("one", "two")]
        await bed.clients(20)
        await bed.until(lambda: len(one.dials) + len(two.dials) == 20)
        assert abs(len(one.dials) - len(two.dials)) <= 4

    run(files, protocol, test)


def test_however_many_say_nothing_there_is_one_deadline(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.listen(wait_s=0.3, dial_timeout_s=0.2)
        servers = [await bed.server(name) for name in ("one", "two", "three")]
        assert await bed.is_reset(await bed.client())
        asked = [incoming for far in servers for incoming in far.dials]
        assert len(asked) == 2  # the time of the second was over before its own
        assert bed.results() == {NodeResult.UNANSWERED: 1}
        assert sorted(incoming.timeout_s <= 0.1 for incoming in asked) == [False, True]

    run(files, "mux", test)


def test_a_client_that_leaves_takes_its_dial_back(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        far = await bed.server()
        client = await bed.client()
        incoming = await far.asked()
        cancelled = asyncio.Event()
        incoming.on_cancelled = cancelled.set
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        async with asyncio.timeout(LIMIT_S):
            await cancelled.wait()
        await bed.until(lambda: not bed.connections.waiting)
        assert bed.results() == {NodeResult.LEFT: 1}

    run(files, protocol, test)


def test_a_client_that_leaves_while_there_is_no_server_is_forgotten(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        client = await bed.client()
        await bed.until(lambda: bed.connections.waiting == 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await bed.until(lambda: not bed.connections.waiting)
        far = await bed.server()
        with await bed.client():
            await far.serve()
        assert not far.dials
        assert bed.results()[NodeResult.LEFT] == 1

    run(files, "mux", test)


def test_an_answer_that_comes_too_late_is_not_heard(files: pki.PkiFiles, protocol: str) -> None:
    async def test(bed: Bed) -> None:
        bed.listen(wait_s=0.0)
        far = await bed.server()
        client = await bed.client()
        late = await far.asked()
        await bed.until(lambda: not next(iter(bed.connections._pending)).patient)
        next(iter(bed.connections._pending)).unanswered()  # as its deadline does
        end = MemoryEnd()
        join(late.accept("192.0.2.1:6443"), end)
        assert await bed.is_reset(client)
        await bed.until(lambda: end.aborted is not None)
        assert bed.results() == {NodeResult.UNANSWERED: 1}
        assert bed.metrics.node.unanswered == 1

    run(files, protocol, test)


def test_too_many_are_reset(files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        await bed.clients(2)
        await bed.until(lambda: bed.connections.waiting == 2)
        assert await bed.is_reset(await bed.client())
        far = await bed.server()
        for _ in range(2):
            await far.serve()
        await bed.until(lambda: bed.connections.open == 2)
        await bed.client()
        await far.serve()
        await bed.until(lambda: bed.connections.open == 3)
        assert await bed.is_reset(await bed.client())  # three in all
        assert bed.results() == {NodeResult.TOO_MANY: 2, NodeResult.JOINED: 3}

    monkeypatch.setattr(node_connections, "MOST_WAITING", 2)
    monkeypatch.setattr(node_connections, "MOST_CONNECTIONS", 3)
    run(files, "mux", test)


def test_descriptors_are_left_for_links_and_ports(
    files: pki.PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whatever comes then waits in the kernel for ever, and no new link could be made."""

    async def test(bed: Bed) -> None:
        bed.listen()
        assert bed.connections.most == 128

    monkeypatch.setattr(node_connections, "descriptors", lambda: 256)
    run(files, "mux", test)


def test_draining_resets_who_waits_for_a_server_and_lets_the_others_go_on(
    files: pki.PkiFiles,
) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        client = await bed.client()
        await bed.until(lambda: bed.connections.waiting == 1)
        bed.connections.leave()
        assert await bed.is_reset(client)
        far = await bed.server()
        with await bed.client():
            incoming = await far.asked()
            bed.connections.leave()
            join(incoming.accept(""), end := MemoryEnd())
            await bed.until(lambda: not bed.connections.waiting)
            assert end.aborted is None and bed.connections.open == 1
        assert bed.results() == {NodeResult.DRAINED: 1, NodeResult.JOINED: 1}

    run(files, "mux", test)


def test_it_says_what_it_is_doing(files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.listen()
        far = await bed.server()
        with await bed.client():
            await bed.until(lambda: bed.connections._pending)
            (connection,) = bed.connections._pending
            assert repr(connection).startswith(
                f"<NodeConnection {connection.request.connection_id} to {DESTINATION}"
                " asks <ServerLink"
            )
            await far.serve()
            await bed.until(lambda: bed.connections.open)
            assert repr(connection).endswith(" over>")

    run(files, "mux", test)
