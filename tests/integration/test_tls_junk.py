"""Junk where a TLS handshake is expected, at every port that speaks it.

Each of them is ended, by an alert or at its deadline; others are served all the while, and no
descriptor is left. What a fuzzer finds in the reading of hellos is tests/fuzz.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
from clients import LIMIT_S, echo_target, tunnel
from stack import Stack, agent_context, client_context, http_get, wait_until
from test_floods import is_over, rss_bytes
from test_slowloris import DEADLINE_S, descriptors, tcp, uds_client

from isthmus.dial.frontends import grpc_proxy, http_connect
from isthmus.net import http_site
from isthmus.programs.server import hand_on
from isthmus.programs.server.agents import AgentDoor

MIB = 1024 * 1024
RECORD = b"\x16\x03\x01"


def hello() -> bytes:
    """The ClientHello of Python's own TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["isthmus/1", "h2"])
    read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(read, written, server_hostname="localhost").do_handshake()
    return written.read()


def junk() -> Iterator[bytes]:
    """Hellos with wrong bytes, and records that no client sends."""
    good, chance = hello(), random.Random(12)
    for _ in range(60):
        wrong = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        yield bytes(wrong)
    for length in (1, 5, 6, 60):
        yield good[:length]
    yield chance.randbytes(70_000)
    yield (RECORD + b"\0\0") * 10_000  # records with nothing in them
    yield b"\x15\x03\x01\x00\x02\x01\x00" * 10_000  # warnings without end
    yield b"\x14\x03\x03\x00\x01\x01" * 10_000  # changes of cipher
    yield b"".join(RECORD + b"\0\1" + bytes([byte]) for byte in good[5:])  # a byte in each record
    yield RECORD + b"\x40\0\x01\xff\xff\xff" + b"x" * 200_000  # a hello of 16 MiB
    yield b"\x80\x2e\x01\x03\x01" + b"\0" * 60  # SSL 2
    yield good + b"\x17\x03\x03\x40\0" + b"j" * 16_384
    yield good + good
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connect, "HEAD_S", DEADLINE_S)
    monkeypatch.setattr(grpc_proxy, "PREFACE_S", DEADLINE_S)
    monkeypatch.setattr(hand_on, "HANDSHAKE_S", DEADLINE_S)
    monkeypatch.setattr(AgentDoor._serve, "__defaults__", (0, DEADLINE_S))
    monkeypatch.setattr(http_site, "HANDSHAKE_S", DEADLINE_S)


def send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it has heard enough
        sock.sendall(data)


@pytest.mark.parametrize("peers", [(), ("other=127.0.0.1:1",)], ids=["alone", "with peers"])
def test_every_tls_port(fresh: Stack, quick: None, peers: tuple[str, ...]) -> None:
    """With peers an agent's hello is looked at before TLS."""
    files = fresh.files
    server = fresh.add_server(
        mode=("grpc", "http-connect"),
        http_connect_port=0,
        http_connect_uds_name=str(fresh.dir / "connect.sock"),
        server_id="one",
        peer_server=peers,
        admin_cert=str(files.server_cert),
        admin_key=str(files.server_key),
    )
    fresh.add_agent()
    doors = server.doors.ports
    ports = (doors["http-connect"], doors["grpc"], server.agent_port, server.admin_port)
    with echo_target() as target, contextlib.ExitStack() as opened:

        def honest() -> None:
            path = server.settings.http_connect_uds_name
            with tunnel(uds_client(path), target.name) as client:
                client.send(b"honest")
                assert client.read_exactly(6) == b"honest"
            assert http_get(server.health_port, "/readyz")[0] == 200

        honest()
        fresh.wait_idle()
        before, open_before = rss_bytes(), descriptors()
        socks, senders = [], []
        for port in ports:
            for data in junk():
                sock = opened.enter_context(tcp(port)())
                sender = threading.Thread(target=send, args=(sock, data), daemon=True)
                sender.start()
                socks.append(sock)
                senders.append(sender)
            honest()
        wait_until(lambda: all(map(is_over, socks)), "all are ended")
        honest()
        assert rss_bytes() - before < 128 * MIB
        for sender in senders:
            sender.join(LIMIT_S)
        opened.close()
        fresh.wait_idle()
        wait_until(lambda: descriptors() <= open_before, "every descriptor is back")
        for port, context in (
            (doors["http-connect"], client_context(files)),
            (server.agent_port, agent_context(files)),
        ):
            with context.wrap_socket(tcp(port)(), server_hostname="localhost") as tls:
                assert tls.version() == "TLSv1.3"
