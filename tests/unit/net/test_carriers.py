"""Carriers: a session is fed what was read, says what it wants, and its owner hears the end."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import pytest

from isthmus.errors import ProtocolError
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.tools.pki import making as pki

Carrier = PlainCarrier | TlsCarrier
KINDS = pytest.mark.parametrize("kind", ["plain", "tls"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"), one_ca=True)


class Session:
    """Writes down what its carrier says."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.heards = self.flushes = self.resumes = 0
        self.broken = False

    def heard(self) -> None:
        self.heards += 1

    def receive(self, view: memoryview) -> None:
        self.got += view
        if self.broken:
            raise ProtocolError("not what I expected")

    def flush(self) -> None:
        self.flushes += 1

    def resume(self) -> None:
        self.resumes += 1


class Owner:
    """Writes down what its carrier reports; it closes at the end, as owners do."""

    def __init__(self) -> None:
        self.session = Session()
        self.carrier: Carrier
        self.secure = False
        self.events: list[str] = []

    def secured(self) -> None:
        self.secure = True
        self.carrier.session = self.session

    def insecure(self, error: ssl.SSLError) -> None:
        self.events.append("insecure")

    def violated(self, error: ProtocolError) -> None:
        self.events.append(f"violated: {error}")

    def lost(self, why: str) -> None:
        self.events.append(why)
        self.carrier.close()


class Bed:
    """Two carriers, each other's peer."""

    def __init__(self, kind: str, files: pki.PkiFiles) -> None:
        self.poller = Poller(asyncio.get_running_loop())
        self.near, self.far = Owner(), Owner()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        for sock in (ours, theirs):
            sock.setblocking(False)
        if kind == "plain":
            self.near.carrier = PlainCarrier(self.near, ours, self.poller)
            self.far.carrier = PlainCarrier(self.far, theirs, self.poller)
            self.near.secured()
            self.far.secured()
        else:
            mine = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
            other = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
            self.far.carrier = TlsCarrier(self.far, theirs, self.poller, server_context(other))
            self.near.carrier = near = TlsCarrier(
                self.near, ours, self.poller, client_context(mine), server_hostname="localhost"
            )
            near.begin()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


def run(kind: str, files: pki.PkiFiles, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed(kind, files)
        try:
            await until(lambda: bed.near.secure and bed.far.secure)
            await test(bed)
        finally:
            bed.near.carrier.close()
            bed.far.carrier.close()
            await until(lambda: len(bed.poller) == 0)
            bed.poller.shut_down()

    asyncio.run(main())


@KINDS
def test_a_session_is_fed_all_that_comes_and_it_is_counted(kind: str, files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        data = random.Random(1).randbytes(3_000_000)  # many reads
        bed.near.carrier.send(data[:1])
        for at in range(1, len(data), 300_000):
            bed.near.carrier.send(data[at : at + 300_000])
        session = bed.far.session
        await until(lambda: len(session.got) == len(data))
        assert session.got == data and session.heards > 1
        assert (bed.near.carrier.bytes_out, bed.far.carrier.bytes_in) == (len(data), len(data))
        assert bed.far.events == []

    run(kind, files, test)


@KINDS
def test_a_session_hears_when_there_is_room_again(kind: str, files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        sent = 0
        while bed.near.carrier.send(b"x" * 65536):
            sent += 65536
        assert bed.near.carrier.out_bytes > 0 and bed.near.session.resumes == 0
        await until(lambda: bed.near.session.resumes)
        await until(lambda: len(bed.far.session.got) == sent + 65536)
        assert bed.near.carrier.out_bytes == 0

    run(kind, files, test)


@KINDS
def test_waking_flushes_later_and_not_now(kind: str, files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        before = bed.near.session.flushes
        bed.near.carrier.wake()
        assert bed.near.session.flushes == before
        await until(lambda: bed.near.session.flushes == before + 1)

    run(kind, files, test)


@KINDS
def test_broken_rules_are_the_owners_to_judge(kind: str, files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.far.session.broken = True
        bed.near.carrier.send(b"nonsense")
        await until(lambda: bed.far.events)
        assert bed.far.events == ["violated: not what I expected"]
        assert not bed.far.carrier.closed

    run(kind, files, test)


@KINDS
def test_a_goodbye_comes_after_all_that_was_sent_and_nothing_after_it(
    kind: str, files: pki.PkiFiles
) -> None:
    async def test(bed: Bed) -> None:
        data = b"x" * 2_000_000
        bed.near.carrier.send(data)
        bed.near.carrier.say_goodbye()
        assert bed.near.carrier.send(b"too late")
        assert bed.near.carrier.bytes_out == len(data)
        await until(lambda: bed.far.events)
        assert bed.far.events == ["closed by the peer"]
        assert bed.far.session.got == data
        await until(lambda: bed.near.events)  # it read on until the peer closed too
        assert bed.near.carrier.closed

    run(kind, files, test)


@KINDS
def test_a_reset_is_no_clean_end_and_what_came_before_it_is_heard(
    kind: str, files: pki.PkiFiles
) -> None:
    async def test(bed: Bed) -> None:
        bed.near.carrier.send(b"last words")
        sock = bed.near.carrier.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bed.far.session.got or bed.far.events)
        bed.near.carrier.close()
        await until(lambda: bed.far.events)
        assert bed.far.events == ["connection lost"]
        assert bed.far.session.got == b"last words"

    run(kind, files, test)


@KINDS
def test_sending_after_the_close_does_nothing(kind: str, files: pki.PkiFiles) -> None:
    async def test(bed: Bed) -> None:
        bed.near.carrier.close()
        assert bed.near.carrier.send(b"hello?")
        assert bed.near.carrier.bytes_out == 0
        bed.near.carrier.wake()
        bed.near.carrier.close()
        await until(lambda: bed.far.events)
        assert len(bed.far.events) == 1

    run(kind, files, test)


def test_why_a_handshake_failed_is_told_before_the_end(
    files: pki.PkiFiles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    strangers = pki.init(tmp_path_factory.mktemp("strangers"), one_ca=True)

    async def main() -> None:
        bed = Bed("plain", files)
        bed.near.carrier.close()
        bed.far.carrier.close()
        poller, owner, client = bed.poller, Owner(), Owner()
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        right = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        wrong = TlsFiles(str(strangers.agent_cert), str(strangers.agent_key), str(files.ca_cert))
        owner.carrier = TlsCarrier(owner, theirs, poller, server_context(right))
        client.carrier = begun = TlsCarrier(
            client, ours, poller, client_context(wrong), server_hostname="localhost"
        )
        begun.begin()
        await until(lambda: owner.events)
        # Why first, and then the end that every connection has.
        assert owner.events == ["insecure", "connection lost"] and not owner.secure
        await until(lambda: client.events)
        assert not owner.session.got
        client.carrier.close()
        owner.carrier.close()
        await until(lambda: len(poller) == 0)
        poller.shut_down()

    asyncio.run(main())
