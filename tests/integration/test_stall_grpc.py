"""A reader that stops, over a gRPC link: it has a budget, nobody else waits, and it is told.

Konnectivity's protocol has no flow control of a connection's own, so that a writer cannot be
stopped; what happens over our own links is test_stall.py.
"""

from __future__ import annotations

import ssl
import threading

import pytest
from clients import MIB, Client, Target
from stack import Program, Stack, metric, wait_until

from isthmus.tunnel.packet_brake import BUDGET_BYTES

# The budget, and kernel buffers and windows on the way.
MOST_BYTES = BUDGET_BYTES + 48 * MIB
KINDS = pytest.mark.parametrize("kind", ["uds", "tls"])
CUT = (ConnectionResetError, BrokenPipeError, ssl.SSLError)


@pytest.fixture(scope="module")
def link() -> str:
    """Only this kind."""
    return "grpc"


def held(stack: Stack, program: Program, side: str) -> float:
    return metric(stack.metrics(program), f"isthmus_{side}_held_bytes")


def resets(stack: Stack, program: Program, side: str) -> float:
    return metric(stack.metrics(program), f"isthmus_{side}_streams_reset_for_budget_total")


def last_ending(stack: Stack, program: Program) -> str:
    return str(stack.snapshot(program)["recentEndings"][0]["ending"])


class Pouring:
    """Sends until the connection breaks, from a thread; ``sent`` is how much went out."""

    def __init__(self, sender: Client) -> None:
        self.sent = 0
        self.cut = False
        self._sender = sender
        self._thread = threading.Thread(target=self._pour, daemon=True)
        self._thread.start()

    def _pour(self) -> None:
        try:
            while self.sent < 2 * MOST_BYTES:
                self._sender.send(b"z" * 65536)
                self.sent += 65536
        except CUT:
            self.cut = True

    @property
    def going_on(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(20)
        assert self.cut, f"{self.sent} bytes were taken for a reader that does not read"


def chat(near: Client, far: Client, times: int) -> None:
    """Another tunnel of the same link, which does not notice."""
    for _ in range(times):
        near.send(b"ping")
        assert far.read_exactly(4) == b"ping"
        far.send(b"x" * 100_000)
        assert near.read_exactly(100_000) == b"x" * 100_000


@KINDS
def test_a_client_that_does_not_read_ends_alone(stack: Stack, kind: str) -> None:
    before = resets(stack, stack.server, "server")
    with (
        Target() as target,
        stack.tunnel(kind, target.name),
        target.accept() as far,
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        pouring = Pouring(far)
        while pouring.going_on:
            chat(other, other_far, 1)
        pouring.wait()
        assert pouring.sent < MOST_BYTES
        wait_until(lambda: resets(stack, stack.server, "server") == before + 1, "it is counted")
        assert last_ending(stack, stack.server) == "reset to stay inside the memory budget"
        assert held(stack, stack.server, "server") == 0
        chat(other, other_far, 5)


@KINDS
def test_a_target_that_does_not_read_ends_alone(stack: Stack, kind: str) -> None:
    before = resets(stack, stack.agent, "agent")
    with (
        Target() as target,
        stack.tunnel(kind, target.name) as client,
        target.accept(),
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        pouring = Pouring(client)
        while pouring.going_on:
            chat(other, other_far, 1)
        pouring.wait()
        assert pouring.sent < MOST_BYTES
        wait_until(lambda: resets(stack, stack.agent, "agent") == before + 1, "it is counted")
        assert last_ending(stack, stack.agent) == "reset to stay inside the memory budget"
        wait_until(lambda: last_ending(stack, stack.server) != "closed", "the server knows, too")
        assert held(stack, stack.agent, "agent") == 0
        chat(other, other_far, 5)


@KINDS
def test_a_reader_that_pauses_inside_its_budget_loses_nothing(stack: Stack, kind: str) -> None:
    total = BUDGET_BYTES // 2
    with (
        Target() as target,
        stack.tunnel(kind, target.name) as client,
        target.accept() as far,
    ):
        sending = threading.Thread(target=far.send, args=(b"z" * total,), daemon=True)
        sending.start()
        wait_until(lambda: held(stack, stack.server, "server") > 0, "the client is behind")
        assert client.read_exactly(total) == b"z" * total
        sending.join(20)
        wait_until(lambda: held(stack, stack.server, "server") == 0, "nothing is held any more")


@KINDS
def test_a_stalled_client_that_leaves_frees_everything(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        pouring = Pouring(far)
        wait_until(lambda: held(stack, stack.server, "server") > MIB, "much is held")
        client.close()
        pouring.wait()
    stack.wait_idle()
    assert held(stack, stack.server, "server") == 0
