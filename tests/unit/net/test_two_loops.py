"""Two event loops in two threads of one process: neither reads into the other's buffers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable

import pytest
import uvloop

from isthmus.errors import ProtocolError
from isthmus.net.carriers import PlainCarrier
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.net.tls import TlsEnd
from isthmus.testing import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import join

DEADLINE_S = 60.0
CHUNK = 64 * 1024
CHUNKS = 400


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)


def pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


class Sink(MemoryEnd):
    """Counts the bytes that are the right ones, and the others."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self.byte = byte
        self.good = self.bad = 0

    def write(self, data: bytes) -> bool:
        self.good += data.count(self.byte)
        self.bad += len(data) - data.count(self.byte)
        return True


async def speak_tls(byte: int, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> int:
    poller = Poller(asyncio.get_running_loop())
    near, far = pair()
    server = TlsEnd(near, poller, contexts[0])
    client = TlsEnd(far, poller, contexts[1], server_hostname="localhost")
    sink, source = Sink(byte), MemoryEnd()
    join(sink, server)
    join(source, client)
    client.begin()
    try:
        for number in range(CHUNKS):
            source.feed(bytes([byte]) * CHUNK)
            await until(
                lambda number=number: (
                    sink.good + sink.bad == (number + 1) * CHUNK or client.ending or server.ending
                )
            )
        assert client.ending is server.ending is None, "the records were spoiled"
        return sink.bad
    finally:
        client.close()
        server.close()
        poller.shut_down()


class Counting:
    """A session that counts."""

    def __init__(self, byte: int) -> None:
        self.byte = byte
        self.good = self.bad = 0

    def heard(self) -> None:
        pass

    def receive(self, view: memoryview) -> None:
        data = bytes(view)
        self.good += data.count(self.byte)
        self.bad += len(data) - data.count(self.byte)

    def flush(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Owner:
    def secured(self) -> None:
        pass

    def insecure(self, error: ssl.SSLError) -> None:
        raise AssertionError(error)

    def violated(self, error: ProtocolError) -> None:
        raise AssertionError(error)

    def lost(self, why: str) -> None:
        pass


async def carry(byte: int) -> int:
    poller = Poller(asyncio.get_running_loop())
    near, far = pair()
    carrier, sender = PlainCarrier(Owner(), near, poller), PlainCarrier(Owner(), far, poller)
    carrier.session = session = Counting(byte)
    try:
        for number in range(CHUNKS):
            sender.send(bytes([byte]) * CHUNK)
            await until(lambda number=number: session.good + session.bad == (number + 1) * CHUNK)
        return session.bad
    finally:
        carrier.close()
        sender.close()
        poller.shut_down()


def in_two_threads(work: Callable[[int], object]) -> list[object]:
    together = threading.Barrier(2)
    came: list[object] = []

    def run(byte: int) -> None:
        together.wait(DEADLINE_S)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                came.append(runner.run(work(byte)))  # type: ignore[arg-type]
        except BaseException as exc:
            came.append(exc)

    threads = [threading.Thread(target=run, args=(byte,)) for byte in b"ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return came


def test_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = pki.init(tmp_path_factory.mktemp("two") / "pki", one_ca=True)
    ca = str(made.ca_cert)
    server = server_context(TlsFiles(str(made.server_cert), str(made.server_key), ca))
    client = client_context(TlsFiles(str(made.client_cert), str(made.client_key), ca))
    assert in_two_threads(lambda byte: speak_tls(byte, (server, client))) == [0, 0]


def test_plain_carriers() -> None:
    assert in_two_threads(carry) == [0, 0]
