"""A raw socket on the poller: unsent bytes, FIN after them, resets, pauses."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from isthmus.net.poller import Poller
from isthmus.net.raw import FREE_BYTES, FULL_BYTES, RawSocket
from isthmus.tunnel.budget import Budget

DEADLINE_S = 20.0
FAMILIES = ["tcp", "unix"]


class Probe(RawSocket):
    """Reads once per call, and writes down what it was told."""

    __slots__ = ("events", "got")

    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        self.events: list[str] = []
        self.got = bytearray()
        super().__init__(sock, poller)

    def readable(self) -> None:
        data = self.sock.recv(65536)
        self.got += data
        if not data:
            self.events.append("eof")

    def drained(self) -> None:
        self.events.append("drained")

    def last_words(self) -> None:
        self.events.append("last words")

    def broken(self) -> None:
        self.events.append("broken")
        self.reset()


def connect(family: str) -> tuple[socket.socket, socket.socket]:
    if family == "unix":
        near, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def read_all(sock: socket.socket) -> bytes:
    got = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while data := await asyncio.get_running_loop().sock_recv(sock, 65536):
            got += data
    return bytes(got)


def run(family: str, test: Callable[[Probe, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        near, far = connect(family)
        probe = Probe(near, poller)
        try:
            await test(probe, far)
        finally:
            far.close()
            probe.close()
            poller.shut_down()
            near.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("family", FAMILIES)
def test_unsent_bytes_of_many_parts_keep_their_order(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        source = random.Random(1)
        parts = [source.randbytes(source.choice((1, 100, 5000, 70_000))) for _ in range(700)]
        answers = [probe.put(part) for part in parts]
        assert answers[0] is True
        assert answers[-1] is False  # nobody reads
        assert probe.out_bytes > FULL_BYTES
        probe.shut_write()
        probe.shut_write()
        assert await read_all(far) == b"".join(parts)
        assert probe.out_bytes == 0
        assert probe.events == ["drained"]

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_put_together_arrive_in_order(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        source = random.Random(2)
        many = [source.randbytes(1 + n % 90_000) for n in range(0, 90_000 * 3, 1000)]
        assert probe.put_parts(many[:1]) is True
        assert probe.put_parts(many[1:100]) is False  # some sent, one in part, more than 64 of them
        probe.put(b"between")
        assert probe.put_parts(many[100:]) is False
        probe.shut_write()
        wanted = b"".join((*many[:100], b"between", *many[100:]))
        assert await read_all(far) == wanted
        assert probe.out_bytes == 0
        assert probe.events == ["drained"]

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_small_unsent_parts_are_kept_together(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        first = bytes(30_000_000)  # more than the kernel takes
        probe.put(first)
        assert probe._out is not None
        small = [bytes([n % 256]) for n in range(50_000)]
        for part in small:
            probe.put(part)
        assert len(probe._out) <= 3
        probe.shut_write()
        assert await read_all(far) == first + b"".join(small)

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_is_said_above_the_bound_and_drained_once(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        while not probe.out_bytes:
            probe.put(bytes(4096))
        while probe.out_bytes + 4096 <= FULL_BYTES:
            assert probe.put(bytes(4096)) is True
        assert probe.put(bytes(4096)) is False
        assert probe.events == []
        reading = asyncio.ensure_future(read_all(far))
        await until(lambda: probe.events)
        assert probe.put(b"more") is True
        probe.shut_write()
        assert (await reading).endswith(b"more")
        assert probe.events == ["drained"]

    run(family, test)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_write_into_a_broken_connection_is_told_once_and_later(family: str, parts: bool) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        far.close()
        told: list[str] = []
        for _ in range(100):  # the first may go out before the reset comes back
            if probe.closed:
                break
            assert (probe.put_parts([b"x", b"y"]) if parts else probe.put(b"x")) is True
            told.append(" ".join(probe.events))
            await asyncio.sleep(0)
        await until(lambda: "broken" in probe.events)
        assert probe.events.count("broken") == 1
        assert "broken" not in told[0]  # never from inside put

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_paused_socket_reads_nothing_and_resumes_where_it_was(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        far.send(b"one")
        await until(lambda: probe.got == b"one")
        probe.pause_reading()
        probe.pause_reading()
        far.send(b"two")
        await until(lambda: probe.unread)
        assert probe.got == b"one"
        probe.resume_reading()
        assert probe.got == b"one"  # from the next round on
        await until(lambda: probe.got == b"onetwo")
        probe.resume_reading()
        far.shutdown(socket.SHUT_WR)
        await until(lambda: probe.events)
        assert probe.events == ["eof"]

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pause_before_the_second_look_holds(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        probe.pause_reading()
        far.send(b"x")
        await until(lambda: probe.unread)
        probe.resume_reading()
        probe.pause_reading()
        await until(lambda: probe.unread)
        assert not probe.got
        probe.resume_reading()
        await until(lambda: probe.got)

    run(family, test)


def test_reset_is_seen_as_one_on_tcp() -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        probe.put(b"some")
        probe.reset()
        probe.reset()
        probe.close()
        with pytest.raises(ConnectionResetError):
            await read_all(far)
        await until(lambda: probe.sock.fileno() == -1)

    run("tcp", test)


def test_reset_closes_a_unix_socket() -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        probe.put(b"some")
        probe.reset()
        assert await read_all(far) == b"some"

    run("unix", test)


@pytest.mark.parametrize("family", FAMILIES)
def test_close_leaves_what_the_kernel_took(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        probe.put(b"all of it")
        probe.close()
        assert await read_all(far) == b"all of it"
        assert probe.events == []

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_waits_is_charged_to_its_payer(family: str) -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        budget = Budget(1 << 30)
        first, second = budget.account("first"), budget.account("second")
        probe.charge_to(first)
        assert first.used_bytes == 0
        probe.put(bytes(20_000_000))  # more than the kernel takes
        probe.put(b"small")
        probe.put_parts([b"two", b"parts"])
        assert first.used_bytes == probe.out_bytes > 0
        probe.charge_to(second)
        assert (first.used_bytes, second.used_bytes) == (0, probe.out_bytes)
        probe.shut_write()
        await read_all(far)
        assert second.used_bytes == budget.used_bytes == 0
        first.close()
        second.close()
        assert budget.peers == 1  # as long as the socket is open
        probe.close()
        assert budget.peers == 0

    run(family, test)


def test_what_is_kept_early_is_charged_and_given_back_on_close() -> None:
    async def test(probe: Probe, far: socket.socket) -> None:
        budget = Budget(1 << 30)
        probe.keeps(70_000)  # nobody pays
        account = budget.account("peer")
        probe.charge_to(account)
        probe.keeps(FREE_BYTES)
        assert account.used_bytes == 0
        for size in (FREE_BYTES + 1, 70_000, 5_000):
            probe.keeps(size)
            assert account.used_bytes == size
        probe.keeps(FREE_BYTES)
        assert account.used_bytes == 0
        probe.keeps(5_000)
        probe.put(bytes(20_000_000))
        assert account.used_bytes == probe.out_bytes + 5_000
        probe.reset()
        assert account.used_bytes == budget.used_bytes == 0
        account.close()
        assert budget.peers == 0

    run("unix", test)
