"""Classes of traffic between real programs: chosen by the policy, and kept in both directions."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target
from stack import Program, Stack

from isthmus.tunnel.end import Ending
from isthmus.values import BULK, NORMAL, URGENT, TrafficClass

BULKS = 8
RATE_BYTES_PER_S = 8_000_000
PIECE_BYTES = 16 * 1024
HEAD = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: allow
rules: []
"""
CLASSES = """\
classes:
- name: webhooks
  class: urgent
  match: {{ports: [{urgent}]}}
- name: copies
  class: bulk
  match: {{cidrs: [127.0.0.0/8], ports: [{bulk}]}}
"""


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """Both kinds of link."""
    return str(request.param)


class SlowLine:
    """Carries connections to a port, and no faster than it is told; its queues are short."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        # Of the listener, so that the window of what is accepted is small from the beginning.
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
        self.port = self._door.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for sock in (self._door, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        for sock in (self._door, *self._open):
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=pair))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                sink.sendall(data)
                time.sleep(len(data) / RATE_BYTES_PER_S)  # the line, not the test


@contextlib.contextmanager
def pouring(target: Target) -> Iterator[None]:
    """Send to whoever connects, as fast as it is taken, until it is over."""
    over = threading.Event()

    def pour(sock: Client) -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                sock.send(b"b" * 65536)

    def accept() -> None:
        with contextlib.ExitStack() as kept:
            threads = []
            for _ in range(BULKS):
                sock = kept.enter_context(target.accept())
                threads.append(threading.Thread(target=pour, args=(sock,)))
                threads[-1].start()
            over.wait(2 * LIMIT_S)
            for thread in threads:
                thread.join(LIMIT_S)

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield
    finally:
        over.set()
        accepting.join(LIMIT_S)


def reading(client: Client, got: list[int], number: int) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv():
            got[number] += len(data)


def classes_at(stack: Stack, program: Program) -> dict[int, set[TrafficClass]]:
    """The classes of a program's tunnels, on its link, by the port of their targets."""

    def look() -> dict[int, set[TrafficClass]]:
        found: dict[int, set[TrafficClass]] = {}
        for tunnel in program.tunnels._open.values():
            streams = [end for end in (tunnel.client, tunnel.far) if hasattr(end, "traffic")]
            found.setdefault(tunnel.request.target.port, set()).update(it.traffic for it in streams)
        return found

    return stack.do(look)


def answers(stack: Stack, target: Target, number: int) -> list[float]:
    """How long each of some small requests took."""
    took = []
    with stack.tunnel("uds", target.name) as client, target.accept() as far:
        for _ in range(number):
            begin = time.perf_counter()
            client.send(b"q" * 64)
            far.send(far.read_exactly(64))
            client.read_exactly(64)
            took.append(time.perf_counter() - begin)
    return took


@pytest.mark.parametrize("link", ["mux", pytest.param("grpc", marks=pytest.mark.nightly)])
def test_a_webhook_beside_copies(fresh: Stack, tmp_path: Path) -> None:
    """The figures are printed; that an answer goes before copies is tests/unit/tunnel."""
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD)
    server = fresh.add_server(policy_file=str(path))
    line = SlowLine(server.agent_port)
    policy = server.networks.policy
    assert policy is not None
    try:
        agent = fresh.add_agent(proxy_server_port=line.port)
        with Target() as webhook, Target() as store:
            for text, classes in (
                (HEAD, (NORMAL, NORMAL)),
                (HEAD + CLASSES.format(urgent=webhook.port, bulk=store.port), (URGENT, BULK)),
            ):
                path.write_text(text)
                fresh.run(policy.check())
                _beside_copies(fresh, webhook, store, (server, agent), classes)
    finally:
        fresh.stop(fresh.agents[0])
        line.close()


def _beside_copies(
    stack: Stack,
    webhook: Target,
    store: Target,
    programs: tuple[Program, ...],
    classes: tuple[TrafficClass, TrafficClass],
) -> None:
    with contextlib.ExitStack() as open_ones:
        open_ones.enter_context(pouring(store))
        got = [0] * BULKS
        readers = []
        for number in range(BULKS):
            client = open_ones.enter_context(stack.tunnel("uds", store.name))
            readers.append(threading.Thread(target=reading, args=(client, got, number)))
            readers[-1].start()
        stack.wait(lambda: min(got) > 0, "every copy is under way")
        for program in programs:
            assert classes_at(stack, program) == {store.port: {classes[1]}}
        with stack.tunnel("uds", webhook.name), webhook.accept():
            for program in programs:
                assert classes_at(stack, program)[webhook.port] == {classes[0]}
        before = list(got)
        took = answers(stack, webhook, 20)
        stack.wait(lambda: all(map(int.__gt__, got, before)), "no copy starves")
        print(
            f"{stack.link} link: {classes[0].value} beside {BULKS} {classes[1].value} over"
            f" {RATE_BYTES_PER_S // 10**6} MB/s: p50 {statistics.median(took) * 1e3:.1f} ms"
        )
        stack.do(lambda: stack.server.tunnels.abort_all(Ending.ADMIN))
        for reader in readers:
            reader.join(LIMIT_S)
    stack.wait_idle()
