"""Version skew: this release and the one before it, in both roles, and back and forth."""

from __future__ import annotations

import hashlib
import signal
import socket
import threading
from collections.abc import Iterator
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
    gate, port = "--feature-gates=EnableClusterToMasterTraffic=true", 6443
    with own_network(), Target() as target:
        near = programs.server(gate, f"--allowed-destination={target.name}", source=sources[server])
        programs.agent(
            near, gate, f"--link={link}", "--bind-address=10.96.0.1",
            f"--target={port}:{target.name}", source=sources[agent],
        )  # fmt: skip
        with connected("10.96.0.1", port) as client, target.accept() as far:
            client.send(b"ping")
            assert far.read_exactly(4) == b"ping"
            far.send(BULK)
            far.close()
            assert client.read_to_end() == BULK


class Pair:
    """Two servers and two agents, each of which can be replaced by another release."""

    def __init__(self, programs: Programs, sources: dict[str, Path]) -> None:
        self._programs = programs
        self._sources = sources
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
        )
        self._servers[number] = self._programs.server(*more, source=self._sources[release])
        if self._agents:
            self._programs.wait_ready(self._servers[number])

    def agent(self, number: int, release: str) -> None:
        """Put an agent of this release into the place of the one there."""
        _end(self._agents.get(number))
        more = (f"--proxy-server-host=127.0.0.{n + 1}" for n in range(2))
        flags = self._programs.agent_flags(self._port)
        program = self._programs.start("agent", *flags, *more, source=self._sources[release])
        self._agents[number] = program
        wait_until(lambda: program.log.count("linked ") >= 2, "the agent has both servers")


def _end(program: Program | None) -> None:
    if program is not None:
        program.signal(signal.SIGTERM)
        assert program.wait_exit() == 0, program.log


class Asking:
    """Asks all the time, of whichever server takes it, as kube-apiserver's replicas would."""

    def __init__(self, sockets: list[str], target: str) -> None:
        self.asked = 0
        self.failed: list[str] = []
        self._sockets = sockets
        self._target = target
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
            errors = [error for path in self._sockets if (error := self._ask(path))]
            self.asked += 1
            if len(errors) == len(self._sockets):
                self.failed.append("; ".join(errors))

    def _ask(self, path: str) -> str:
        try:
            with tunnel(connect_uds(path), self._target) as client:
                client.send(b"hello")
                assert client.read_exactly(5) == b"hello"
        except (OSError, AssertionError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return ""


def test_upgrade_downgrade_upgrade(programs: Programs, sources: dict[str, Path]) -> None:
    pair = Pair(programs, sources)
    for number in range(2):
        pair.server(number, "old")
    for number in range(2):
        pair.agent(number, "old")
    with echo_target() as echo, Asking(pair.sockets, echo.name) as asking:
        for release in ("new", "old", "new"):
            for number in range(2):
                pair.server(number, release)
                asking.more()
            for number in range(2):
                pair.agent(number, release)
                asking.more()
    assert not asking.failed, asking.failed[:3]
    print(f"{asking.asked} requests over three changes of release, none failed")
