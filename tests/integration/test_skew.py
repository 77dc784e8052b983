"""Version skew: this release and the one before it, in both roles, and back and forth."""

from __future__ import annotations

import hashlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target, connect_uds, echo_target, free_port, tunnel
from grpc_clients import GrpcCall
from own_network import needs_root, own_network
from programs import CURRENT, Program, Programs
from releases import previous_source
from stack import wait_until

from isthmus.tools.pki import making as pki

MIB = 1024 * 1024
BULK = hashlib.sha256(b"isthmus").digest() * (4 * MIB // 32)
ROLES = [("new", "old"), ("old", "new")]
GATE = "--feature-gates=EnableClusterToMasterTraffic=true"
NODE_ADDRESS, NODE_PORTS = "10.96.0.1", (6443, 6444)

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"new": CURRENT, "old": previous_source(tmp_path_factory.mktemp("previous"))}


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    names = ("localhost", "127.0.0.1", "127.0.0.2")
    with Programs(pki.init(tmp_path / "pki", server_names=names, days=1), tmp_path) as started:
        yield started


def test_the_previous_release_is_another_one(sources: dict[str, Path]) -> None:
    files = {name: sorted(p.name for p in path.rglob("*.py")) for name, path in sources.items()}
    assert files["new"] != files["old"]


def exchange(client: Client, far: Client) -> None:
    """Bytes both ways at once, then a half-close and an answer after it."""
    sender = threading.Thread(target=client.send, args=(BULK,))
    sender.start()
    assert far.read_exactly(len(BULK)) == BULK
    sender.join()
    client.half_close()
    assert far.read_to_end() == b""
    far.send(b"after the half-close")
    far.close()
    assert client.read_to_end() == b"after the half-close"


@pytest.mark.parametrize("link", ["mux", "grpc"])
@pytest.mark.parametrize(("server", "agent"), ROLES)
def test_a_tunnel_between_releases(
    programs: Programs, sources: dict[str, Path], server: str, agent: str, link: str
) -> None:
    near = programs.server(source=sources[server])
    programs.agent(near, f"--link={link}", source=sources[agent])
    programs.wait_ready(near)
    with (
        Target() as target,
        tunnel(programs.connect_uds(), target.name) as client,
        target.accept() as far,
    ):
        if link == "mux":
            exchange(client, far)
        else:  # konnectivity's packets have no half-close: a close is one
            client.send(b"ping")
            assert far.read_exactly(4) == b"ping"
            far.send(BULK)
            far.close()
            assert client.read_to_end() == BULK


@pytest.mark.parametrize(("server", "agent"), ROLES)
def test_konnectivity_frontend_between_releases(
    programs: Programs, sources: dict[str, Path], server: str, agent: str
) -> None:
    near = programs.server("--mode=grpc", "--server-port=0", source=sources[server])
    programs.agent(near, source=sources[agent])
    programs.wait_ready(near)
    with echo_target() as echo, programs.connect_uds() as client:
        call = GrpcCall(client)
        assert call.dial(echo.name) == ""
        call.send(b"through both")
        assert call.read_exactly(12) == b"through both"


@pytest.mark.parametrize(("server", "agent"), ROLES)
def test_a_reset_is_a_reset_between_releases(
    programs: Programs, sources: dict[str, Path], server: str, agent: str
) -> None:
    near = programs.server(source=sources[server])
    programs.agent(near, source=sources[agent])
    programs.wait_ready(near)
    with Target() as target, tunnel(programs.connect_tls(near), target.name) as client:
        far = target.accept()
        client.reset()
        with pytest.raises(ConnectionResetError):
            far.recv()
        far.close()


def connected(host: str, port: int) -> Client:
    """Connect as soon as somebody listens there."""
    found: list[socket.socket] = []

    def listens() -> bool:
        try:
            found.append(socket.create_connection((host, port), LIMIT_S))
        except ConnectionRefusedError:
            return False
        return True

    wait_until(listens, f"{host}:{port} listens")
    return Client(found[0])


@needs_root
@pytest.mark.parametrize("link", ["mux", "grpc"])
@pytest.mark.parametrize(("server", "agent"), ROLES)
def test_from_nodes_to_the_control_plane_between_releases(
    programs: Programs, sources: dict[str, Path], server: str, agent: str, link: str
) -> None:
    port = NODE_PORTS[0]
    with own_network(), Target() as target:
        near = programs.server(GATE, f"--allowed-destination={target.name}", source=sources[server])
        programs.agent(
            near, GATE, f"--link={link}", f"--bind-address={NODE_ADDRESS}",
            f"--target={port}:{target.name}", source=sources[agent],
        )  # fmt: skip
        with connected(NODE_ADDRESS, port) as client, target.accept() as far:
            client.send(b"ping")
            assert far.read_exactly(4) == b"ping"
            far.send(BULK)
            far.close()
            assert client.read_to_end() == BULK


class Pair:
    """Two servers and two agents, each of which can be replaced by another release.

    With ``destination`` nodes reach it, at a port of each agent.
    """

    def __init__(
        self, programs: Programs, sources: dict[str, Path], *, destination: str = ""
    ) -> None:
        self._programs = programs
        self._sources = sources
        self._destination = destination
        self._port = free_port()
        self.sockets = [f"{programs.uds}.{n}" for n in range(2)]
        self._servers: dict[int, Program] = {}
        self._agents: dict[int, Program] = {}

    def server(self, number: int, release: str) -> None:
        """Put a server of this release into the place of the one there."""
        _end(self._servers.get(number))
        more = (
            f"--uds-name={self.sockets[number]}",
            f"--agent-bind-address=127.0.0.{number + 1}",
            f"--agent-port={self._port}",
            "--server-count=2",
            "--server-port=0",
            *((GATE, f"--allowed-destination={self._destination}") if self._destination else ()),
        )
        self._servers[number] = self._programs.server(*more, source=self._sources[release])
        if self._agents:
            self._programs.wait_ready(self._servers[number])

    def agent(self, number: int, release: str) -> None:
        """Put an agent of this release into the place of the one there."""
        _end(self._agents.get(number))
        more = [f"--proxy-server-host=127.0.0.{n + 1}" for n in range(2)]
        if self._destination:
            target = f"--target={NODE_PORTS[number]}:{self._destination}"
            more += [GATE, f"--bind-address={NODE_ADDRESS}", target]
        flags = self._programs.agent_flags(self._port)
        program = self._programs.start("agent", *flags, *more, source=self._sources[release])
        self._agents[number] = program
        wait_until(lambda: program.log.count("linked ") >= 2, "the agent has both servers")

    def change_all(self, asking: Asking, *releases: str) -> None:
        """Replace one program after the other, under requests, release after release."""
        for release in releases:
            for replace in (self.server, self.agent):
                for number in range(2):
                    replace(number, release)
                    asking.more()


def _end(program: Program | None) -> None:
    if program is not None:
        program.signal(signal.SIGTERM)
        assert program.wait_exit() == 0, program.log


class Asking:
    """Asks all the time, by whichever way works, as kube-apiserver's replicas or pods would."""

    def __init__(self, ways: Sequence[Callable[[], AbstractContextManager[Client]]]) -> None:
        self.asked = 0
        self.failed: list[str] = []
        self._ways = ways
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def more(self) -> None:
        """Wait until something was asked since now."""
        before = self.asked
        wait_until(lambda: self.asked >= before + 20, "requests go on")

    def _run(self) -> None:
        while not self._stop.is_set():
            errors = [error for way in self._ways if (error := self._ask(way))]
            self.asked += 1
            if len(errors) == len(self._ways):
                self.failed.append("; ".join(errors))

    def _ask(self, way: Callable[[], AbstractContextManager[Client]]) -> str:
        try:
            with way() as client:
                client.send(b"hello")
                assert client.read_exactly(5) == b"hello"
        except (OSError, AssertionError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return ""


def by_socket(path: str, target: str) -> AbstractContextManager[Client]:
    return tunnel(connect_uds(path), target)


def test_upgrade_downgrade_upgrade(programs: Programs, sources: dict[str, Path]) -> None:
    pair = Pair(programs, sources)
    for replace in (pair.server, pair.agent):
        for number in range(2):
            replace(number, "old")
    with echo_target() as echo:
        ways = [partial(by_socket, path, echo.name) for path in pair.sockets]
        with Asking(ways) as asking:
            pair.change_all(asking, "new", "old", "new")
    assert not asking.failed, asking.failed[:3]
    print(f"{asking.asked} requests over three changes of release, none failed")


def by_node(port: int) -> AbstractContextManager[Client]:
    return Client(socket.create_connection((NODE_ADDRESS, port), LIMIT_S))


@needs_root
def test_upgrade_downgrade_upgrade_under_traffic_from_nodes(
    programs: Programs, sources: dict[str, Path]
) -> None:
    with own_network(), echo_target() as echo:
        pair = Pair(programs, sources, destination=echo.name)
        for replace in (pair.server, pair.agent):
            for number in range(2):
                replace(number, "old")
        for port in NODE_PORTS:
            connected(NODE_ADDRESS, port).close()
        with Asking([partial(by_node, port) for port in NODE_PORTS]) as asking:
            pair.change_all(asking, "new", "old", "new")
    assert not asking.failed, asking.failed[:3]
    print(f"{asking.asked} requests of nodes over three changes of release, none failed")
