"""Peers that say little, slowly or nothing, at every port: each is ended at its deadline.

Meanwhile others are served, and afterwards neither a descriptor nor an object of theirs is left.
Single ports have more tests of their own (test_refusals.py, test_peers.py, test_sni_router.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from apiserver_bed import Bed as ApiserverBed
from apiserver_bed import Upstream
from clients import LIMIT_S, Client, TlsClient, echo_target, head_for, tunnel
from proxies_bed import NAME, ProxiesBed, open_socks5, port_of
from sni_bed import Bed as SniBed
from sni_bed import Tenant
from stack import Stack, agent_context, client_context, http_get, wait_until

from isthmus.dial.frontends import grpc_proxy, http_connect
from isthmus.dial.frontends.grpc_proxy import ClientConnection
from isthmus.dial.frontends.http_connect import ConnectClient
from isthmus.frame.admin import ports
from isthmus.links.server_side import AgentLink
from isthmus.net import http_site
from isthmus.net.peek import HelloPeek
from isthmus.programs.server import hand_on
from isthmus.programs.server.agents import AgentDoor
from isthmus.tools.pki import making as pki
from isthmus.wire.http2 import PREFACE

#: Long enough for an honest client on a busy machine, short enough for a test.
DEADLINE_S = 1.5
EACH = 8
DRIP_S = 0.02
RECORD = b"\x17\x03\x03\x01\x00"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 32

Dial = Callable[[], socket.socket]


class Slow:
    """Attackers, each with something to say; a byte goes out now and then, by one thread."""

    def __init__(self, dial: Dial, said: bytes) -> None:
        self.socks = [dial() for _ in range(EACH)]
        self._left = dict.fromkeys(self.socks, memoryview(said))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drip, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        for sock in self.socks:
            sock.close()

    def _drip(self) -> None:
        while not self._stop.wait(DRIP_S):
            for sock, left in self._left.items():
                if left:
                    with contextlib.suppress(OSError):
                        sock.send(left[:1])
                    self._left[sock] = left[1:]

    def all_ended(self) -> bool:
        """The other side has closed or reset every one of them."""
        poll = select.poll()
        for sock in self.socks:
            poll.register(sock, select.POLLIN | select.POLLRDHUP)
        ended = {fd for fd, mask in poll.poll(0) if mask & (select.POLLRDHUP | select.POLLHUP)}
        return len(ended) == len(self.socks)


def tcp(port: int) -> Dial:
    return lambda: socket.create_connection(("127.0.0.1", port), LIMIT_S)


def uds(path: str) -> Dial:
    def dial() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        return sock

    return dial


def secured(port: int, context: ssl.SSLContext) -> Dial:
    """A connection whose handshake is done; what is sent on it then is no TLS record."""

    def dial() -> socket.socket:
        return TlsClient(tcp(port)(), context, "localhost").sock

    return dial


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def objects(*kinds: type) -> int:
    gc.collect()
    # Not the youngest: to look at a tuple that another thread is just making breaks it there.
    return sum(isinstance(each, kinds) for each in gc.get_objects(generation=2))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadlines of the server's ports, shorter."""
    monkeypatch.setattr(http_connect, "HEAD_S", DEADLINE_S)
    monkeypatch.setattr(grpc_proxy, "PREFACE_S", DEADLINE_S)
    monkeypatch.setattr(hand_on, "HANDSHAKE_S", DEADLINE_S)
    monkeypatch.setattr(AgentDoor._serve, "__defaults__", (0, DEADLINE_S))
    monkeypatch.setattr(ports, "IDLE_S", DEADLINE_S)


def goes_on(attacks: list[tuple[Dial, bytes]], honest: Callable[[], None]) -> None:
    """Attack every way, slowly and silently; honest clients are served until all is over."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Slow(dial, said)) for dial, said in attacks]
        slow += [stack.enter_context(Slow(dial, b"")) for dial, _ in attacks]
        until = time.monotonic() + LIMIT_S
        honest()
        while not all(each.all_ended() for each in slow):
            honest()
            ended = [each.all_ended() for each in slow]
            assert time.monotonic() < until, f"never ended: {ended}"


@pytest.mark.parametrize("peers", [(), ("other=127.0.0.1:1",)], ids=["alone", "with peers"])
def test_every_port_of_a_server(fresh: Stack, quick: None, peers: tuple[str, ...]) -> None:
    """All of them at once; with peers an agent's hello is looked at before TLS."""
    files = fresh.files
    server = fresh.add_server(
        mode=("grpc", "http-connect"),
        http_connect_port=0,
        http_connect_uds_name=str(fresh.dir / "connect.sock"),
        server_id="one",
        peer_server=peers,
    )
    fresh.add_agent()
    doors = server.doors.ports
    as_agent, as_client = agent_context(files), client_context(files)
    by_h2 = client_context(files)
    by_h2.set_alpn_protocols(["h2"])
    get = b"GET /readyz HTTP/1.1\r\nX: " + b"y" * 4000
    attacks: list[tuple[Dial, bytes]] = [
        (uds(server.settings.http_connect_uds_name), b"CONNECT a:1 HTTP/1.1\r\nX: " + b"y" * 4000),
        (uds(server.settings.uds_name), PREFACE[:-1]),
        (tcp(doors["http-connect"]), HELLO * 20),
        (tcp(doors["grpc"]), HELLO * 20),
        (tcp(server.agent_port), HELLO * 20),
        (tcp(server.health_port), get),
        (tcp(server.admin_port), get),
        (secured(doors["http-connect"], as_client), RECORD * 20),
        (secured(doors["grpc"], by_h2), RECORD * 20),
        (secured(server.agent_port, as_agent), RECORD * 20),
    ]
    kinds = (ConnectClient, ClientConnection, AgentLink, HelloPeek)
    with echo_target() as target:

        def honest() -> None:
            with tunnel(uds_client(server.settings.http_connect_uds_name), target.name) as client:
                client.send(b"honest")
                assert client.read_exactly(6) == b"honest"
            assert http_get(server.health_port, "/readyz")[0] == 200

        honest()
        fresh.wait_idle()
        before, watched = objects(*kinds), fresh.do(lambda: len(server.poller))
        open_before = descriptors()
        goes_on(attacks, honest)
        fresh.wait_idle()
        fresh.wait(lambda: len(server.poller) <= watched, "every connection is gone")
        wait_until(lambda: descriptors() <= open_before, "every descriptor is back")
        wait_until(lambda: objects(*kinds) <= before, "every object is gone")
        assert fresh.do(lambda: (len(server.doors.places), len(server.agent_door.strangers))) == (
            0,
            0,
        )


def uds_client(path: str) -> Client:
    return Client(uds(path)())


@pytest.mark.parametrize("kind", ["socks5", "https"])
def test_a_sidecar(fresh: Stack, tmp_path: Path, kind: str) -> None:
    fresh.add_server()
    fresh.add_agent()
    with ProxiesBed(fresh, tmp_path) as bed, echo_target() as target:
        start = bed.socks5 if kind == "socks5" else bed.https
        sidecar: Any = start(handshake_timeout_s=DEADLINE_S)
        connect = head_for(f"{NAME}:{target.port}")
        said = b"\x05\xff" + b"\x01" * 200 if kind == "socks5" else connect[:-2] * 30

        def honest() -> None:
            if kind == "socks5":
                client = open_socks5(sidecar, NAME, target.port)
            else:
                client = Client(tcp(port_of(sidecar))())
                client.send(connect)
                assert client.read_head().startswith(b"HTTP/1.1 200 ")
            with client:
                client.send(b"honest")
                assert client.read_exactly(6) == b"honest"

        honest()
        bed.wait_empty(sidecar)
        open_before = descriptors()
        goes_on([(tcp(port_of(sidecar)), said)], honest)
        bed.wait_empty(sidecar)
        wait_until(lambda: descriptors() <= open_before, "every descriptor is back")


def test_the_sni_router(tmp_path: Path) -> None:
    with Tenant("a", tmp_path) as tenant, SniBed(tmp_path, {"a": tenant}) as bed:
        bed.start(hello_timeout_s=DEADLINE_S)

        def honest() -> None:
            with bed.tls("a") as sock:
                assert sock.recv(64).startswith(b"a ")

        honest()
        bed.wait(lambda: not len(bed.connections), "nobody is connected")
        open_before = descriptors()
        goes_on([(tcp(bed.port), HELLO * 20)], honest)
        bed.wait(lambda: not len(bed.connections), "nobody is connected")
        wait_until(lambda: descriptors() <= open_before, "every descriptor is back")


def test_the_apiserver_proxy(tmp_path: Path, certificates: pki.PkiFiles) -> None:
    """It passes bytes through and knows no head: who says nothing is idle."""
    with Upstream(certificates) as upstream, ApiserverBed(tmp_path, certificates) as bed:
        proxy = bed.start(f"127.0.0.1:{upstream.port}", idle_timeout_s=DEADLINE_S)
        bed.wait_checked()

        def honest() -> None:
            bed.echo().close()

        honest()
        bed.wait(lambda: not len(proxy.connections), "nobody is connected")
        goes_on([(tcp(proxy.listeners[0].port), b"")], honest)
        bed.wait(lambda: not len(proxy.connections), "nobody is connected")


def test_the_ports_of_an_agent(fresh: Stack, quick: None) -> None:
    fresh.add_server()
    agent = fresh.add_agent()
    get = b"GET /readyz HTTP/1.1\r\nX: " + b"y" * 4000

    def honest() -> None:
        assert http_get(agent.health_port, "/readyz")[0] == 200
        assert http_get(agent.admin_port, "/snapshot")[0] == 200

    goes_on([(tcp(agent.health_port), get), (tcp(agent.admin_port), get)], honest)


@pytest.mark.parametrize("port", ["health", "admin"])
def test_who_asks_and_never_reads(fresh: Stack, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    """Answers that nobody takes are not kept for ever, and the descriptor is free again."""
    monkeypatch.setattr(http_site, "UNREAD_S", DEADLINE_S)
    server = fresh.add_server()
    number = server.health_port if port == "health" else server.admin_port
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", number))
        sock.setblocking(False)
        ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)

        def over() -> bool:
            with contextlib.suppress(OSError):
                sock.send(ask)  # until neither side takes any more
            return bool(poll.poll(0))

        wait_until(over, "it is cut off")
    assert http_get(number, "/readyz")[0] in (200, 500)
