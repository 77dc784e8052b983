"""What a tunnel is holds across the hop: half-close, reset, back-pressure, and a peer that dies."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import (
    Target,
    ask,
    connect_uds,
    echo_target,
    free_port,
    head_for,
    receive_all,
    send_all,
    tunnel,
)
from grpc_clients import GrpcCall
from programs import Program, Programs
from relay_bed import NAME, SENT, Relays, peer_files
from stack import Server, Stack, wait_until

from isthmus.tools.pki import making as pki

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """What the agent of the helping server speaks."""
    return str(request.param)


@pytest.fixture(scope="module")
def pair(
    certificates: pki.PkiFiles, link: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Relays, Server]]:
    """A server that asks, one that helps and its agent."""
    peer = peer_files(certificates, tmp_path_factory.mktemp("relay") / "peer")
    with Stack(certificates, link) as stack:
        relays = Relays(stack, peer)
        b = relays.helper("b")
        relays.agent(b, "agent-b")
        server = relays.asker(b)
        relays.wait_relay(server)
        stack.servers.reverse()
        yield relays, server


@pytest.fixture
def stack(pair: tuple[Relays, Server]) -> Iterator[Stack]:
    relays, _ = pair
    yield relays.stack
    relays.stack.wait_idle()


@pytest.mark.parametrize("kind", ["uds", "tls"])
@pytest.mark.parametrize("first", ["client", "target"])
def test_half_close_then_the_rest_of_the_other_way(stack: Stack, kind: str, first: str) -> None:
    with (
        Target() as target,
        stack.tunnel(kind, target.name, b"early") as client,
        target.accept() as far,
    ):
        assert far.read_exactly(5) == b"early"
        asks, answers = (client, far) if first == "client" else (far, client)
        asks.send(b"question")
        asks.half_close()
        assert answers.read_to_end() == b"question"
        sent: list[str] = []
        sending = threading.Thread(target=lambda: sent.append(send_all(answers, 7, 3 * MIB)))
        sending.start()
        total, digest = receive_all(asks)
        sending.join(20)
        assert (total, digest) == (3 * MIB, sent[0])


def test_a_reset_of_the_target_is_a_reset(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client, target.accept() as far:
        far.send(b"x")
        assert client.read_exactly(1) == b"x"
        far.reset()
        with pytest.raises((ConnectionResetError, OSError)):
            while client.recv():
                pass


def test_a_reset_of_the_client_is_a_reset(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client, target.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        client.reset()
        with pytest.raises(ConnectionResetError):
            while far.recv():
                pass


def test_a_reader_that_stops_stops_its_own_writer_only(stack: Stack) -> None:
    with (
        Target() as target,
        stack.tunnel("uds", target.name) as stopped,
        target.accept() as far,
        echo_target() as echo,
        stack.tunnel("uds", echo.name) as other,
    ):
        far.sock.settimeout(1.0)
        written = 0
        # A gRPC call that stands still lets a little through now and then, so a writer may find
        # room for as long as it tries: five seconds show that it is slowed.
        until = time.monotonic() + 5.0
        with contextlib.suppress(TimeoutError):
            while written < 64 * MIB and time.monotonic() < until:
                written += far.sock.send(b"x" * 65536)
        assert written < 48 * MIB
        other.send(b"ping")
        assert other.read_exactly(4) == b"ping"
        far.half_close()
        assert len(stopped.read_to_end()) == written


def test_by_grpc_a_target_that_closes(certificates: pki.PkiFiles, tmp_path: Path) -> None:
    with Stack(certificates) as stack:
        relays = Relays(stack, peer_files(certificates, tmp_path / "peer"))
        b = relays.helper("b")
        relays.agent(b, "agent-b")
        fresh = relays.asker(b, mode=("grpc",))
        relays.wait_relay(fresh)
        with Target() as target, connect_uds(fresh.settings.uds_name) as client:
            call = GrpcCall(client)
            assert call.dial(target.name) == ""
            with target.accept() as far:
                call.send(b"x")
                assert far.read_exactly(1) == b"x"
                far.reset()
            packet = call.packet()
            assert packet is not None and packet.closeResponse.error
        stack.wait_idle()


# Servers that die, as processes.


def start_pair(programs: Programs, peer: pki.PkiFiles, tmp_path: Path) -> tuple[Program, Program]:
    uds = programs.uds
    programs.uds = str(tmp_path / "b.sock")
    helper = programs.server("--server-id=b", f"--peer-relay-name={NAME}")
    programs.agent(helper)
    programs.uds = uds
    asker = programs.server(
        "--server-id=a",
        "--peer-relay",
        f"--peer-server=b=127.0.0.1:{helper.port('agent_port')}",
        f"--peer-cert={peer.client_cert}",
        f"--peer-key={peer.client_key}",
    )
    asker.wait_log("linked to another server")
    programs.wait_ready(asker)
    return asker, helper


def test_the_other_server_killed_in_the_middle_is_a_reset(
    programs: Programs, certificates: pki.PkiFiles, tmp_path: Path
) -> None:
    peer = peer_files(certificates, tmp_path / "peer")
    asker, helper = start_pair(programs, peer, tmp_path)
    with (
        Target() as target,
        tunnel(programs.connect_tls(asker), target.name) as client,
        target.accept() as far,
    ):
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        helper.signal(signal.SIGKILL)
        helper.wait_exit()
        with pytest.raises(OSError):
            while client.recv():
                pass
    # It is gone: that there is no agent is said at once, not after a wait.
    with programs.connect_uds() as client:
        assert ask(client, head_for(f"127.0.0.1:{free_port()}")).status == 503


def test_a_server_that_drains_is_not_asked_and_its_tunnels_end(
    pair: tuple[Relays, Server],
) -> None:
    relays, server = pair
    stack = relays.stack
    helper = next(it for it in stack.servers if it.id == "b")
    assert server.relays is not None
    links = server.relays.links
    with echo_target() as target, relays.tunnel(server, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
        before = relays.counted(server, SENT % "joined")
        stack.do(lambda: helper.agent_door.drain())
        stack.wait(lambda: not links.ready, "it says so")
        with connect_uds(server.settings.uds_name) as other:
            assert ask(other, head_for(target.name)).status == 503
        assert relays.counted(server, SENT % "joined") == before
        client.send(b"y")  # what is open goes on
        assert client.read_exactly(1) == b"y"
    wait_until(lambda: not stack.do(lambda: len(helper.tunnels)), "it ends")
