"""Peers that want memory of programs that pass connections on: it is theirs, shown and given back.

Clients of these come from this machine, where they cannot be told apart: they are refused only when
nothing is left. The SNI router tells every address apart.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients import LIMIT_S, Client, Target, full_target
from programs import Program, Programs
from stack import http_get, metric, wait_until
from test_memory import Pouring

from isthmus.wire import socks5

KIB, MIB = 1024, 1024 * 1024
BUDGET = 8 * MIB
PORTS = ("--health-port=0", "--admin-port=0", f"--memory-budget={BUDGET}")
#: How many readers of what they never read use the budget up, with some to spare: more than one
#: read waits in a socket and two at most, and a window in a call.
READERS = {"apiserver-proxy": 140, "sni-router": 140, "socks5-proxy": 140, "https-proxy": 50}
#: What one of them may have: that, and what a connection costs.
EACH = 2 * 64 * KIB + 4 * KIB


context = cache(ssl.create_default_context)  # which reads all authorities of this machine


def client_hello(name: str) -> bytes:
    """The first bytes of a TLS client that wants this name: never the same again, as a loop has."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


class Forwarder(NamedTuple):
    """A program, and the target that it is asked for."""

    name: str
    program: Program
    port: int

    def memory(self) -> dict[str, Any]:
        """What its snapshot says."""
        status, text = http_get(self.program.port("admin_port"), "/snapshot")
        assert status == 200
        found: dict[str, Any] = json.loads(text)["memory"]
        return found

    def used(self) -> int:
        """What is charged to its clients now, by the metric."""
        name = f"isthmus_{self.name.replace('-', '_')}_memory_budget_used_bytes"
        return int(metric(http_get(self.program.port("admin_port"), "/metrics")[1], name))

    def ask(self) -> Client:
        """Connect, and ask for the target; what it says is left unread."""
        sock = socket.socket()
        sock.settimeout(LIMIT_S)
        # As far away as others are: with the segments of loopback the kernel would take in
        # megabytes for each reader before the forwarder has to hold anything.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        try:
            sock.connect(("127.0.0.1", self.program.port("port")))
        except BaseException:
            sock.close()
            raise
        client = Client(sock)
        with contextlib.suppress(ConnectionError):  # whoever is refused reads that it is
            client.send(self._request())
        return client

    def _request(self) -> bytes:
        if self.name == "sni-router":
            return client_hello("api.example")
        if self.name == "https-proxy":
            return b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\n" % self.port
        if self.name == "socks5-proxy":
            return b"\x05\x01\x00" + socks5.Request(1, "127.0.0.1", self.port).to_bytes()
        return b""

    def asks_in_vain(self) -> bool:
        """Whether one more is refused: reset, or told so."""
        try:
            with self.ask() as client:
                return client.recv()[:12] in (b"", b"HTTP/1.1 503")
        except ConnectionError:
            return True


@contextlib.contextmanager
def started(name: str, programs: Programs, port: int, directory: Path) -> Iterator[Forwarder]:
    at = f"127.0.0.1:{port}"
    flags: tuple[str, ...]
    if name == "apiserver-proxy":
        flags = (f"--upstream={at}", "--listen=127.0.0.1:0", "--health-check=none",
                 "--manage-address=false")  # fmt: skip
    elif name == "sni-router":
        routes = directory / "routes.yaml"
        head = "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\n"
        routes.write_text(
            f'{head}routes: [{{name: r, hosts: [api.example], backends: ["{at}"]}}]\n'
        )
        flags = (f"--config={routes}", "--listen=127.0.0.1:0")
    else:
        # One sidecar by CONNECT, the other by calls that share a connection.
        mode = "http-connect" if name == "socks5-proxy" else "grpc"
        programs.agent(programs.server(f"--mode={mode}"))
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
            "clusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "users: [{name: x, user: {token: t}}]\n"
        )
        flags = (
            "--serving-port=0", "--allow-unauthenticated", f"--kubeconfig={kubeconfig}",
            f"--konnectivity-uds={programs.uds}", f"--konnectivity-protocol={mode}",
        )  # fmt: skip
    program = programs.start(name, *flags, *PORTS)
    program.wait_log("serving ")
    yield Forwarder(name, program, port)


@pytest.mark.parametrize("name", READERS)
def test_what_stalled_readers_hold_is_charged_to_them(
    name: str, programs: Programs, tmp_path: Path
) -> None:
    """Readers that never read use the budget up: one more is refused, until they have left."""
    with (
        Pouring(16 * MIB) as target,
        started(name, programs, int(target.name.rpartition(":")[2]), tmp_path) as forwarder,
        contextlib.ExitStack() as readers,
    ):
        before = forwarder.memory()
        assert before["budgetBytes"] == BUDGET and before["usedBytes"] == 0
        for _ in range(READERS[name]):
            with contextlib.suppress(ConnectionError):  # they hold all that they may already
                readers.enter_context(forwarder.ask())
        enough = BUDGET // 2 if name == "sni-router" else BUDGET  # which it tells apart
        wait_until(lambda: forwarder.used() >= enough, "they hold all that they may")
        wait_until(forwarder.asks_in_vain, "one more is refused")
        memory = forwarder.memory()
        assert memory["largest"][0]["bytes"] == memory["usedBytes"]
        assert memory["usedBytes"] <= max(2 * BUDGET, READERS[name] * EACH)
        readers.close()
        wait_until(lambda: forwarder.used() == 0, "everything is given back")
        wait_until(lambda: not forwarder.asks_in_vain(), "there is room again")


@pytest.mark.parametrize("name", ["apiserver-proxy", "sni-router"])
def test_what_waits_for_a_target_is_charged(name: str, programs: Programs, tmp_path: Path) -> None:
    """Clients that send while their target is dialed, which takes its time, pay for the bytes."""
    with (
        full_target() as target,
        started(name, programs, target.port, tmp_path) as forwarder,
        contextlib.ExitStack() as clients,
    ):
        opened = [clients.enter_context(forwarder.ask()) for _ in range(20)]
        for client in opened:
            client.send(bytes(60 * KIB))
        wait_until(lambda: forwarder.used() > 20 * 60 * KIB, "what was sent is charged")
        for client in opened:
            client.reset()
        wait_until(lambda: forwarder.used() == 0, "it is given back")


assert Target  # what full_target gives
