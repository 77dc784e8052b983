"""Readers that are slow or stop, over a gRPC link: they are slowed, nobody is reset, all arrives.

Konnectivity's protocol has no flow control of a connection's own; what happens over our own links
is test_stall.py, and over time tests/property/test_packet_brake.py.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients import LIMIT_S, MIB, Client, Target
from stack import Program, Stack, metric, wait_until

from isthmus.links.grpc import GrpcTalk
from isthmus.tools.pki import making as pki
from isthmus.tunnel.packet_brake import Brake

#: Of what a call divides, one peer has the half.
SHARE_BYTES = 4 * MIB
# The share, kernel buffers and windows on the way.
MOST_BYTES = SHARE_BYTES + 48 * MIB
KINDS = pytest.mark.parametrize("kind", ["uds", "tls"])
CUT = (ConnectionResetError, BrokenPipeError, ssl.SSLError)


@pytest.fixture(scope="module")
def link() -> str:
    """Only this kind."""
    return "grpc"


@pytest.fixture(scope="module")
def narrow(certificates: pki.PkiFiles) -> Iterator[Stack]:
    """A server and an agent whose peers may make them keep little."""
    with Stack(certificates, "grpc") as stack:
        stack.add_server(memory_budget=str(2 * SHARE_BYTES))
        stack.add_agent(memory_budget=str(2 * SHARE_BYTES))
        yield stack


def held(stack: Stack, program: Program, side: str) -> float:
    return metric(stack.metrics(program), f"isthmus_{side}_held_bytes")


def resets(stack: Stack, program: Program, side: str) -> float:
    return metric(stack.metrics(program), f"isthmus_{side}_streams_reset_for_budget_total")


def brake(stack: Stack, side: str) -> Brake:
    """The brake of what comes over the link at one side."""
    if side == "server":
        (link, *_) = stack.server.links
        talk = link.talk
    else:
        assert stack.agent.servers is not None
        (server_link, *_) = stack.agent.servers.open_links
        talk = server_link.talk
    assert isinstance(talk, GrpcTalk) and talk.packets is not None
    return talk.packets.brake


class Pouring:
    """Sends so much, or until the connection breaks, from a thread."""

    def __init__(self, sender: Client, total: int) -> None:
        self.sent = 0
        self.cut = False
        self.digest = hashlib.sha256()
        self._sender, self._total = sender, total
        self._thread = threading.Thread(target=self._pour, daemon=True)
        self._thread.start()

    def _pour(self) -> None:
        try:
            while self.sent < self._total:
                piece = self.sent.to_bytes(8, "big") * 8192
                self._sender.send(piece)
                self.digest.update(piece)
                self.sent += len(piece)
        except CUT:
            self.cut = True

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.sent} bytes were taken"


def arrives(reader: Client, pouring: Pouring, total: int) -> None:
    """Everything that is poured comes, and comes right."""
    assert hashlib.sha256(reader.read_exactly(total)).digest() == (
        pouring.wait() or pouring.digest.digest()
    )


def chat(near: Client, far: Client, times: int) -> None:
    """Another tunnel of the same link, which goes on."""
    for _ in range(times):
        near.send(b"ping")
        assert far.read_exactly(4) == b"ping"
        far.send(b"x" * 100_000)
        assert near.read_exactly(100_000) == b"x" * 100_000


SIDES = pytest.mark.parametrize("side", ["server", "agent"])


@KINDS
@SIDES
def test_a_reader_that_pauses_beside_others_loses_nothing(
    stack: Stack, kind: str, side: str
) -> None:
    program = stack.server if side == "server" else stack.agent
    before = resets(stack, program, side)
    total = 24 * MIB
    with (
        Target() as target,
        stack.tunnel(kind, target.name) as client,
        target.accept() as far,
        stack.tunnel(kind, target.name) as other,
        target.accept() as other_far,
    ):
        reader, writer = (client, far) if side == "server" else (far, client)
        pouring = Pouring(writer, total)
        wait_until(lambda: held(stack, program, side) > 0, "the reader is behind")
        chat(other, other_far, 20)
        assert not pouring.cut
        arrives(reader, pouring, total)
        wait_until(lambda: held(stack, program, side) == 0, "nothing is held any more")
        chat(other, other_far, 5)
    assert resets(stack, program, side) == before


@KINDS
def test_an_only_reader_that_pauses_makes_the_server_keep_a_window(stack: Stack, kind: str) -> None:
    total = 64 * MIB
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        pouring = Pouring(far, total)
        wait_until(lambda: held(stack, stack.server, "server") > 0, "the client is behind")
        assert stack.do(lambda: brake(stack, "server").withheld) > 0
        assert held(stack, stack.server, "server") < 32 * MIB
        arrives(client, pouring, total)
        wait_until(lambda: held(stack, stack.server, "server") == 0, "nothing is held any more")


@SIDES
def test_a_share_that_is_used_up_slows_and_resets_nobody(narrow: Stack, side: str) -> None:
    program = narrow.server if side == "server" else narrow.agent
    total = MOST_BYTES + 8 * MIB
    with (
        Target() as target,
        narrow.tunnel("uds", target.name) as client,
        target.accept() as far,
        narrow.tunnel("uds", target.name) as other,
        target.accept() as other_far,
    ):
        reader, writer = (client, far) if side == "server" else (far, client)
        pouring = Pouring(writer, total)
        slowed = brake(narrow, side)

        def used_up() -> bool:
            if not narrow.do(lambda: slowed.exhausted):
                other.send(b"?")
            return narrow.do(lambda: slowed.exhausted)

        wait_until(used_up, "the share is used up")
        # The link lives: pings are answered, whatever stands still.
        (link, *_) = narrow.server.links
        heard = link.talk.session.last_heard if isinstance(link.talk, GrpcTalk) else 0.0
        narrow.do(lambda: link.talk and link.talk.probe())
        wait_until(
            lambda: isinstance(link.talk, GrpcTalk) and link.talk.session.last_heard > heard,
            "the ping is answered",
        )
        assert pouring.sent < MOST_BYTES and not pouring.cut
        assert held(narrow, program, side) <= SHARE_BYTES + 8 * MIB
        arrives(reader, pouring, total)
        wait_until(lambda: held(narrow, program, side) == 0, "nothing is held any more")
        other_far.recv()
        other_far.send(b"done")
        assert other.read_exactly(4) == b"done"
    narrow.wait_idle()
    assert resets(narrow, program, side) == 0


def test_a_slow_reader_gets_everything_at_its_pace(narrow: Stack) -> None:
    total = 24 * MIB
    with (
        Target() as target,
        narrow.tunnel("uds", target.name) as client,
        target.accept() as far,
        narrow.tunnel("uds", target.name) as other,
        target.accept() as other_far,
        ThreadPoolExecutor(1) as pool,
    ):
        pouring = Pouring(far, total)
        talking = pool.submit(chat, other, other_far, 20)
        got = hashlib.sha256()
        left = total
        while left:
            piece = client.read_exactly(min(left, 64 * 1024))
            got.update(piece)
            left -= len(piece)
            time.sleep(0.001)  # its pace; nothing is held to it
        pouring.wait()
        talking.result(LIMIT_S)
        assert got.digest() == pouring.digest.digest()
    narrow.wait_idle()


@KINDS
def test_a_stalled_client_that_leaves_frees_everything(stack: Stack, kind: str) -> None:
    with Target() as target, stack.tunnel(kind, target.name) as client, target.accept() as far:
        pouring = Pouring(far, 512 * MIB)
        wait_until(lambda: held(stack, stack.server, "server") > 0, "much is held")
        client.close()
        pouring.wait()
        assert pouring.cut
    stack.wait_idle()
    assert held(stack, stack.server, "server") == 0
    assert stack.do(lambda: brake(stack, "server").withheld) == 0
