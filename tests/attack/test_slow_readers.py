"""Attacks by readers: clients and targets that read slowly, or nothing, over a gRPC link.

Konnectivity's protocol has one flow control for all connections of an agent. A reader that is slow
must lose nothing, and one that does not read must neither fill the memory of a program nor keep
others from it while its share of the budget lasts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator

import pytest
from clients import LIMIT_S, MIB, Client, Target, echo_target, receive_all, send_all, tunnel
from programs import Program, Programs
from stack import http_get, metric, wait_until

from isthmus.tools.pki import making as pki

#: Of the budget of a process its only busy peer has the half; at an agent, where the client has a
#: share of its server's share, a third.
BUDGET = "--memory-budget=256Mi"
SHARE_BYTES = 128 * MIB
#: Besides: what Python's allocator keeps, and what was under way.
MOST_GROWTH_BYTES = 2 * SHARE_BYTES + 32 * MIB
SIDES = pytest.mark.parametrize("side", ["server", "agent"])


class Bed:
    """A server and an agent as processes, linked by gRPC."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.server = programs.server(BUDGET)
        self.agent = programs.agent(self.server, "--link=grpc", BUDGET)
        programs.wait_ready(self.server)

    def program(self, side: str) -> Program:
        """Where what comes over the link is kept for slow readers of this side."""
        return self.server if side == "server" else self.agent

    def tunnel(self, target: Target) -> Client:
        return tunnel(self._programs.connect_uds(), target.name)

    def answers(self, echo: Target, times: int = 20) -> None:
        """An honest client is answered: new connections, and requests over them."""
        with self.tunnel(echo) as client:
            for number in range(times):
                request = number.to_bytes(4, "big") * 16
                client.send(request)
                assert client.read_exactly(len(request)) == request


@pytest.fixture(scope="module")
def bed(certificates: pki.PkiFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The same programs for all: whatever an attack did, they live on."""
    with Programs(certificates, tmp_path_factory.mktemp("programs")) as programs:
        yield Bed(programs)


def rss_bytes(program: Program) -> int:
    with open(f"/proc/{program.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def counted(program: Program, name: str) -> float:
    port = program.port("admin_port")
    return metric(http_get(port, "/metrics")[1], name)


@contextlib.contextmanager
def pouring(writers: list[Client], total: int) -> Iterator[list[int]]:
    """Send so much into each of them, from threads; gives what each has sent so far."""
    sent = [0] * len(writers)

    def pour(at: int) -> None:
        with contextlib.suppress(OSError):
            while sent[at] < total:
                writers[at].send(bytes(256 * 1024))
                sent[at] += 256 * 1024

    threads = [threading.Thread(target=pour, args=(at,), daemon=True) for at in range(len(writers))]
    for writer in writers:
        writer.sock.settimeout(LIMIT_S)
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        for writer in writers:
            writer.reset()
        for thread in threads:
            thread.join(LIMIT_S)


@contextlib.contextmanager
def stalled(bed: Bed, side: str, number: int) -> Iterator[tuple[list[Client], list[Client]]]:
    """Several tunnels: the side that reads, or does not, and the side that writes."""
    with Target() as target, contextlib.ExitStack() as opened:
        clients, fars = [], []
        for _ in range(number):
            clients.append(opened.enter_context(bed.tunnel(target)))
            fars.append(opened.enter_context(target.accept()))
        yield (clients, fars) if side == "server" else (fars, clients)


@SIDES
def test_a_reader_that_reads_nothing_keeps_nobody_out(bed: Bed, side: str) -> None:
    """One tunnel is filled and never read, while an honest client comes and asks."""
    with (
        stalled(bed, side, 1) as (_, writers),
        echo_target() as echo,
        pouring(writers, 24 * MIB) as sent,
    ):
        for _ in range(10):
            bed.answers(echo)
        assert sent[0] > 0
    assert bed.server.process.poll() is None and bed.agent.process.poll() is None


@SIDES
def test_a_reader_of_a_byte_at_a_time_is_not_reset(bed: Bed, side: str) -> None:
    """A reader takes single bytes, long enough to be known as slow, and then everything."""
    total = 24 * MIB
    with (
        stalled(bed, side, 1) as ((reader,), writers),
        echo_target() as echo,
        pouring(writers, total) as sent,
    ):
        first = b""
        for _ in range(20):
            first += reader.sock.recv(1)
            bed.answers(echo, 5)
        rest = reader.read_exactly(total - len(first))
        assert first + rest == bytes(total)
        wait_until(lambda: sent == [total], "all was sent")


@SIDES
def test_fifty_readers_that_read_nothing_stay_inside_a_share(bed: Bed, side: str) -> None:
    """Fifty tunnels are filled without end and never read: memory is bounded, programs live."""
    program = bed.program(side)
    before = rss_bytes(program)
    # Somebody else must be there, or the call is braked at once and nothing is lent.
    with (
        stalled(bed, side, 50) as (readers, writers),
        stalled(bed, side, 1) as ((listener,), (speaker,)),
        echo_target() as echo,
    ):
        bed.answers(echo)
        with pouring(writers, 64 * MIB):

            def held() -> float:
                listener.send(b"?")
                return counted(program, f"isthmus_{side}_held_bytes")

            wait_until(lambda: held() > SHARE_BYTES // 2, "much is kept", limit_s=60)
            for _ in range(20):
                assert held() <= SHARE_BYTES + 16 * MIB
            grown = rss_bytes(program) - before
            assert grown <= MOST_GROWTH_BYTES, f"{grown >> 20} MiB"
            assert http_get(bed.server.port("health_port"), "/readyz")[0] == 200
            for reader in readers:
                reader.reset()
            # They have left: everybody is served again.
            bed.answers(echo)
        speaker.send(b"!")
        assert listener.read_exactly(1) == b"!"
    assert counted(bed.server, "isthmus_server_streams_reset_for_budget_total") == 0


def test_a_slow_download_arrives_whole(bed: Bed) -> None:
    """64 MiB of a fast target, read at a few MB/s at first: four times what was once its end."""
    total = 64 * MIB
    with Target() as target, bed.tunnel(target) as client, target.accept() as far:
        digest: list[str] = []
        sending = threading.Thread(target=lambda: digest.append(send_all(far, 7, total)))
        sending.start()
        got, size = hashlib.sha256(), 0
        while size < 4 * MIB:
            piece = client.sock.recv(32 * 1024)
            assert piece, "cut"
            got.update(piece)
            size += len(piece)
            time.sleep(0.005)  # its pace, 6 MB/s; nothing is held to it
        while piece := client.recv():
            got.update(piece)
            size += len(piece)
        sending.join(LIMIT_S)
        assert (size, [got.hexdigest()]) == (total, digest)


def test_a_slow_upload_beside_requests_arrives_whole(bed: Bed) -> None:
    """A target that pauses between reads, while an honest client asks over the same link."""
    total = 32 * MIB
    with (
        Target() as target,
        echo_target() as echo,
        bed.tunnel(target) as client,
        target.accept() as far,
    ):
        digest: list[str] = []
        sending = threading.Thread(target=lambda: digest.append(send_all(client, 8, total)))
        sending.start()
        got, size = hashlib.sha256(), 0
        for _ in range(5):
            bed.answers(echo, 10)
            piece = far.read_exactly(64 * 1024)
            got.update(piece)
            size += len(piece)
        while piece := far.recv():
            got.update(piece)
            size += len(piece)
        sending.join(LIMIT_S)
        assert (size, [got.hexdigest()]) == (total, digest)


def test_a_slow_reader_that_is_gone_leaves_nothing(bed: Bed) -> None:
    """Ten readers fill their share, one after the other, and reset: nothing adds up."""
    held = "isthmus_server_held_bytes"
    with echo_target() as echo:
        for _ in range(10):
            with stalled(bed, "server", 1) as ((reader,), writers), pouring(writers, 16 * MIB):
                wait_until(lambda: counted(bed.server, held) > 0, "it is behind")
                reader.reset()
            wait_until(lambda: counted(bed.server, held) == 0, "it is forgotten")
            bed.answers(echo, 2)


def test_everything_reads_again_after_everybody_stopped(bed: Bed) -> None:
    """Ten downloads stand still at once, until all of them read: each is whole."""
    total = 8 * MIB
    with Target() as target, contextlib.ExitStack() as opened:
        pairs = []
        for _ in range(10):
            client = opened.enter_context(bed.tunnel(target))
            pairs.append((client, opened.enter_context(target.accept())))
        digests: dict[int, str] = {}

        def send(at: int, far: Client) -> None:
            digests[at] = send_all(far, at, total)

        threads = [
            threading.Thread(target=send, args=(at, far), daemon=True)
            for at, (_, far) in enumerate(pairs)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: counted(bed.server, "isthmus_server_held_bytes") > 0, "all are behind")
        # One after the other: who comes last has waited for all others, and lost nothing.
        for at, (client, _) in enumerate(pairs):
            size, digest = receive_all(client)
            threads[at].join(LIMIT_S)
            assert (size, digest) == (total, digests[at])
