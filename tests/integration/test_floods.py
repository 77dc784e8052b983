"""Floods of connections: one source, or one user, never keeps the others out.

Who finds no place is told so in its own protocol, or reset; what is open goes on, and the places
come back. Floods inside a connection are test_floods_http2.py and test_floods_yamux.py.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import socket
import subprocess
from collections.abc import Iterator

import pytest
from clients import (
    LIMIT_S,
    Client,
    TlsClient,
    echo_target,
    receive_all,
    send_all,
    status_of,
    tunnel,
)
from stack import Stack, agent_context, client_context, metric, wait_until
from test_peers import hello

from isthmus.net import http_site
from isthmus.programs.server import agents as server_agents
from isthmus.wire.http2 import ErrorCode, read_goaway, unpack_head

FLOOD = 5000
OTHER = "127.0.0.2"
REFUSED = 'isthmus_server_connections_refused_total{port="%s",reason="%s"}'
MIB = 1024 * 1024


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0))


@contextlib.contextmanager
def flood(port: int, count: int = FLOOD) -> Iterator[list[socket.socket]]:
    """So many connections of one address that say nothing."""
    socks: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            socks.append(sock)
        yield socks
    finally:
        for sock in socks:
            sock.close()


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def carries(client: Client, seed: int) -> None:
    """Two MiB there and back with the right checksum, on a connection that echoes."""
    with client:
        sent = send_all(client, seed, 2 * MIB)
        assert receive_all(client) == (2 * MIB, sent)


def counted(stack: Stack, port: str, reason: str) -> float:
    return metric(stack.metrics(), REFUSED % (port, reason))


@pytest.mark.nightly
def test_five_thousand_at_the_agent_port(fresh: Stack) -> None:
    server = fresh.add_server()
    fresh.add_agent()
    before = rss_bytes()
    with echo_target() as target, flood(server.agent_port):
        fresh.wait(
            lambda: len(server.agent_door.strangers) == server_agents.MOST_GREETING,
            "the waiting places are taken",
        )
        wait_until(lambda: counted(fresh, "agent", "crowd") > 3000, "the rest is refused")
        # An agent of another address is let in, in place of one of those.
        sock = connect(server.agent_port, OTHER)
        with TlsClient(sock, agent_context(fresh.files), "localhost") as agent:
            agent.send(hello("from-elsewhere"))
            fresh.wait(lambda: len(server.agents) == 2, "it is linked")
        fresh.wait(lambda: len(server.agents) == 1, "it is gone")
        carries(fresh.tunnel("uds", target.name), 1)
        # About 80 KiB for each that waits; the five thousand would be 400 MiB.
        assert rss_bytes() - before < 200 * MIB
    fresh.wait(lambda: not len(server.agent_door.strangers), "they are gone")
    assert fresh.do(lambda: len(server.agent_door.places)) == 1


@pytest.mark.nightly
def test_five_thousand_at_the_frontend(fresh: Stack) -> None:
    server = fresh.add_server()
    fresh.add_agent()
    port = server.frontend_port or 0
    with echo_target() as target, flood(port):
        wait_until(lambda: counted(fresh, "frontend", "crowd") > 500, "the rest is refused")
        sock = connect(port, OTHER)
        client = TlsClient(sock, client_context(fresh.files), "localhost")
        carries(tunnel(client, target.name), 2)
        carries(fresh.tunnel("uds", target.name), 3)
    fresh.wait(lambda: not len(server.doors.places), "they are gone")


@pytest.mark.parametrize("port", ["health", "admin"])
@pytest.mark.parametrize("said", [b"", b"GET /readyz HTTP/1.1\r\nX: "], ids=["silent", "a word"])
def test_a_flood_of_an_operators_port(fresh: Stack, port: str, said: bytes) -> None:
    """It may not take the descriptors of those who have work to do; probes are answered."""
    server = fresh.add_server()
    fresh.add_agent()
    number = server.health_port if port == "health" else server.admin_port
    with echo_target() as target, flood(number, 1500) as socks:
        for sock in socks:
            with contextlib.suppress(OSError):  # not connected yet, or closed already
                sock.send(said)
        wait_until(lambda: sum(map(is_over, socks)) >= 1500 - http_site.MOST_OPEN, "most are gone")
        for source in (OTHER, "127.0.0.1"):
            with connect(number, source) as sock:
                sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        carries(fresh.tunnel("uds", target.name), 5)
        assert not all(map(is_over, socks)), "as many as there may be are let be"


def is_over(sock: socket.socket) -> bool:
    """The other side has closed or reset it."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0)) and bool(poll.poll(0)[0][1] & (select.POLLRDHUP | select.POLLHUP))


def test_one_source_cannot_take_every_place(fresh: Stack) -> None:
    server = fresh.add_server(max_connections=20)
    fresh.add_agent()
    port = server.frontend_port or 0
    with echo_target() as target, contextlib.ExitStack() as opened:
        for _ in range(15):  # three quarters
            opened.enter_context(fresh.tunnel("tls", target.name))
        with pytest.raises((ConnectionError, OSError)), fresh.tls():
            pass
        assert counted(fresh, "frontend", "too_many_of_source") == 1
        for _ in range(5):
            sock = connect(port, OTHER)
            client = TlsClient(sock, client_context(fresh.files), "localhost")
            opened.enter_context(tunnel(client, target.name))
        # Now all are taken, and nobody comes in.
        with (
            pytest.raises((ConnectionError, OSError)),
            connect(port, "127.0.0.3") as sock,
        ):
            TlsClient(sock, client_context(fresh.files), "localhost")
        with fresh.uds() as late:
            assert status_of(late.read_head()) == 503
        assert counted(fresh, "frontend", "too_many") == 2
        assert metric(fresh.metrics(), 'isthmus_server_open_connections{port="frontend"}') == 20
    fresh.wait(lambda: not len(server.doors.places), "the places are back")
    with echo_target() as target:
        carries(fresh.tunnel("tls", target.name), 4)


def test_a_user_of_a_unix_socket_is_told(fresh: Stack) -> None:
    fresh.add_server(max_connections=10, max_connections_per_source=3)
    fresh.add_agent()
    with echo_target() as target, contextlib.ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(fresh.tunnel("uds", target.name))
        with fresh.uds() as late:
            assert status_of(late.read_head()) == 503
            assert b"--max-connections-per-source" in late.read_to_end()
        if os.getuid() == 0:
            assert "is not supported, only CONNECT" in as_nobody(fresh)
    fresh.wait(lambda: not len(fresh.server.doors.places), "the places are back")


def as_nobody(stack: Stack) -> str:
    """What another user of this machine hears at the UNIX socket."""
    path = stack.server.settings.uds_name
    os.chmod(path, 0o777)
    os.chmod(stack.dir, 0o755)
    done = subprocess.run(
        ["curl", "-sS", "-m", "20", "--unix-socket", path, "http://localhost/"],
        user=pwd.getpwnam("nobody").pw_uid, extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_grpc_client_of_a_unix_socket_is_told(fresh: Stack) -> None:
    fresh.add_server(mode=("grpc",), max_connections_per_source=1)
    with fresh.uds(), fresh.uds() as late:
        raw = late.read_to_end()
    found = {}
    while raw:
        high, low, kind, _, _ = unpack_head(raw)
        found[kind] = raw[9 : 9 + (high << 8 | low)]
        raw = raw[9 + (high << 8 | low) :]
    _, code, text = read_goaway(found[7])
    assert code == ErrorCode.ENHANCE_YOUR_CALM and "--max-connections-per-source" in text


def test_who_comes_and_goes_takes_no_place(fresh: Stack) -> None:
    """Thousands that connect and leave, at every port, while a tunnel carries bytes."""
    server = fresh.add_server()
    fresh.add_agent()
    with echo_target() as target, fresh.tunnel("uds", target.name) as client:
        for number in range(20):
            for port in (server.agent_port, server.frontend_port or 0, server.health_port):
                with flood(port, 100):
                    pass
            client.send(b"%04d" % number)
            assert client.read_exactly(4) == b"%04d" % number
    fresh.wait(lambda: not len(server.doors.places), "the places are back")
    fresh.wait(lambda: len(server.agent_door.places) == 1, "but for the agent's own")
    fresh.wait(lambda: not len(server.agent_door.strangers), "nobody waits")
