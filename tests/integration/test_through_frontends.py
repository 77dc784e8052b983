"""Our own dialers through a real server and agent, by every frontend: what a tunnel has to keep."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from clients import MIB, Target, blocks, echo_target, free_port, full_target
from stack import Stack, client_context

from isthmus.dial.dialers.http2_pool import PooledDialer
from isthmus.dial.dialers.through_connect import ConnectDialer
from isthmus.dial.dialers.through_grpc import GrpcDialer, PayloadDialer
from isthmus.dial.dialers.through_server import ServerDial, ServerDialer, ServerPlace
from isthmus.errors import DialFailure
from isthmus.lab.pipes import Pipe
from isthmus.lab.probe_messages import ProbeTlsFiles
from isthmus.lab.prober import Prober
from isthmus.lab.topology import (
    AttemptFailure,
    FrontendProtocol,
    LabAttempt,
    LabFrontend,
    Traffic,
    Verb,
)
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki.making import PkiFiles
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import HostPort

LIMIT_S = 20.0
DIALERS = {"connect": ConnectDialer, "grpc": GrpcDialer, "payload": PayloadDialer}
PROTOCOLS = {
    "connect": FrontendProtocol.HTTP_CONNECT,
    "grpc": FrontendProtocol.GRPC,
    "payload": FrontendProtocol.PAYLOAD,
}
KINDS = ["connect-uds", "connect-tls", "grpc-uds", "grpc-tls", "payload-uds", "payload-tls"]


@pytest.fixture(scope="module")
def running(certificates: PkiFiles) -> Iterator[Stack]:
    with Stack(certificates) as stack:
        stack.add_server(**doors(stack))
        stack.add_agent()
        yield stack


def doors(stack: Stack) -> dict[str, object]:
    return {
        "mode": ("grpc", "http-connect"),
        "http_connect_uds_name": str(stack.dir / f"connect{len(stack.servers)}.sock"),
        "http_connect_port": 0,
    }


def place(stack: Stack, kind: str) -> ServerPlace:
    protocol, _, carrier = kind.partition("-")
    settings = stack.server.settings
    if carrier == "uds":
        connect = settings.http_connect_uds_name
        return ServerPlace(uds=connect if protocol == "connect" else settings.uds_name)

    def context() -> object:
        made = client_context(stack.files)
        if protocol != "connect":
            made.set_alpn_protocols(["h2"])
        return made

    port = stack.server.doors.ports["http-connect" if protocol == "connect" else "grpc"]
    return ServerPlace(tcp=HostPort("localhost", port), context=context)  # type: ignore[arg-type]


class Bed:
    """A dialer, and what its dials said."""

    def __init__(self, stack: Stack, kind: str) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        self.dialer: ServerDialer = DIALERS[kind.partition("-")[0]](
            loop, self.poller, Resolver(loop), place(stack, kind)
        )
        self.ends: list[BaseEnd] = []
        self.endings: list[Ending] = []
        self.failures: list[tuple[DialFailure, str]] = []

    def dial(self, target: str, timeout_s: float = LIMIT_S) -> ServerDial:
        return self.dialer.dial(
            HostPort.parse(target),
            timeout_s=timeout_s,
            reached=self._reached,
            failed=lambda *why: self.failures.append(why),
        )

    def _reached(self, end: BaseEnd) -> None:
        end.on_done = lambda _, ending: self.endings.append(ending)
        self.ends.append(end)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.001)

    async def reach(self, target: str) -> BaseEnd:
        self.dial(target)
        await self.until(lambda: self.ends or self.failures)
        assert not self.failures
        return self.ends.pop()

    async def fails(self, target: str, timeout_s: float = LIMIT_S) -> tuple[DialFailure, str]:
        self.dial(target, timeout_s)
        await self.until(lambda: self.ends or self.failures)
        assert not self.ends
        return self.failures.pop()


def run(stack: Stack, kind: str, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed(stack, kind)
        await test(bed)
        if isinstance(bed.dialer, PooledDialer):
            bed.dialer.close()
        assert not bed.ends and not bed.failures
        await bed.until(lambda: len(bed.poller) == 0)  # whatever was opened is closed
        await asyncio.sleep(0)
        bed.poller.shut_down()

    stack.run(main())  # in the loop of the programs


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Failures.


def test_every_failure_has_its_reason(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        failure, detail = await bed.fails(f"127.0.0.1:{free_port()}")
        assert failure is DialFailure.REFUSED
        assert "cannot dial" not in detail
        assert (await bed.fails("no-such-host.invalid:443"))[0] is DialFailure.UNRESOLVED
        # To everybody at once: no kernel has a way there for TCP.
        assert (await bed.fails("255.255.255.255:80"))[0] is DialFailure.UNREACHABLE
        # What agents deny by themselves.
        assert (await bed.fails("[fe80::1]:80"))[0] is DialFailure.DENIED

    run(stack, kind, test)


def test_the_one_deadline(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with full_target() as target:
            failure, detail = await bed.fails(target.name, timeout_s=0.2)
            assert failure is DialFailure.TIMED_OUT
            assert str(bed.dialer.place) in detail

    run(stack, kind, test)


def test_a_dial_that_is_cancelled_says_nothing_and_leaves_nothing(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with full_target() as target:
            at_once = bed.dial(target.name)
            at_once.cancel()
            dial = bed.dial(target.name)
            pending = stack.server.dialer.pending
            await bed.until(lambda: len(pending))
            dial.cancel()
            dial.cancel()
            await bed.until(lambda: not len(pending))

    run(stack, kind, test)


def test_no_agent(fresh: Stack, kind: str) -> None:
    fresh.add_server(**doors(fresh))

    async def test(bed: Bed) -> None:
        failure, _ = await bed.fails("127.0.0.1:1")
        assert failure is DialFailure.NO_AGENT

    run(fresh, kind, test)


def test_the_server_itself_is_not_there(fresh: Stack, kind: str) -> None:
    fresh.add_server(**doors(fresh))

    async def test(bed: Bed) -> None:
        await asyncio.to_thread(fresh.stop, fresh.server)
        failure, detail = await bed.fails("127.0.0.1:1")
        # Not REFUSED: the target has refused nothing.
        assert failure is DialFailure.UNREACHABLE
        wanted = f"connectivity server {bed.dialer.place} cannot be reached: connection refused: "
        assert detail.startswith(wanted)

    run(fresh, kind, test)


@pytest.mark.parametrize("kind", ["connect-tls", "grpc-tls", "payload-tls"])
def test_a_server_that_is_not_who_it_should_be(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        good = bed.dialer.place
        bed.dialer.place = ServerPlace(
            tcp=good.tcp, context=good.context, server_hostname="other.example"
        )
        failure, detail = await bed.fails("127.0.0.1:1")
        assert failure is DialFailure.INTERNAL
        assert "certificate" in detail and "other.example" in detail

    run(stack, kind, test)


def test_the_server_dies_while_it_dials(fresh: Stack, kind: str) -> None:
    fresh.add_server(**doors(fresh))
    fresh.add_agent()

    async def test(bed: Bed) -> None:
        with full_target() as target:
            bed.dial(target.name)
            pending = fresh.server.dialer.pending
            await bed.until(lambda: len(pending))
            await asyncio.to_thread(fresh.stop, fresh.server)
            await bed.until(lambda: bed.failures)
            assert bed.failures.pop()[0] is not DialFailure.TIMED_OUT

    run(fresh, kind, test)


# What a tunnel keeps.


def test_the_target_speaks_first_and_ends(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            bed.dial(target.name)
            with await asyncio.to_thread(target.accept) as far:
                far.send(b"220 ready")
                far.half_close()
                await bed.until(lambda: bed.ends)
                client = MemoryEnd()
                join(client, bed.ends.pop())
                await bed.until(lambda: client.eofs)
                assert client.received == b"220 ready"
                client.feed_eof()
                await bed.until(lambda: bed.endings == [Ending.CLEAN])
                assert await asyncio.to_thread(far.read_to_end) == b""

    run(stack, kind, test)


def test_a_half_close_keeps_the_reply(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            client = MemoryEnd()
            join(client, end)
            with await asyncio.to_thread(target.accept) as far:
                client.feed(b"question")
                client.feed_eof()
                assert await asyncio.to_thread(far.read_to_end) == b"question"
                assert not client.eofs
                far.send(b"answer")
                far.half_close()
                await bed.until(lambda: client.eofs)
                assert client.received == b"answer"
                assert bed.endings == [Ending.CLEAN]

    run(stack, kind, test)


def test_a_reset_by_the_target_is_a_reset(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            client = MemoryEnd()
            join(client, end)
            far = await asyncio.to_thread(target.accept)
            far.send(b"some")
            await bed.until(lambda: client.received == b"some")
            far.reset()
            await bed.until(lambda: bed.endings)
            assert bed.endings[0] is not Ending.CLEAN
            assert client.aborted is not None
            assert client.eofs == 0

    run(stack, kind, test)


def test_a_reset_by_us_is_a_reset(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            with await asyncio.to_thread(target.accept) as far:
                if kind == "connect-uds":
                    # A UNIX socket cannot say it; unread bytes at its close do.
                    far.send(b"unread")
                end.abort(Ending.CANCELLED)
                if kind == "connect-uds":
                    await asyncio.to_thread(_drained_or_reset, far.sock)
                else:
                    with pytest.raises(ConnectionResetError):
                        await asyncio.to_thread(far.read_to_end)

    run(stack, kind, test)


def _drained_or_reset(sock: socket.socket) -> None:
    try:
        assert sock.recv(100) == b""
    except ConnectionResetError:
        return


def test_the_agent_is_lost(fresh: Stack, kind: str) -> None:
    fresh.add_server(**doors(fresh))
    fresh.add_agent()

    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            client = MemoryEnd()
            join(client, end)
            with await asyncio.to_thread(target.accept):
                await asyncio.to_thread(fresh.stop, fresh.agent)
                await bed.until(lambda: bed.endings)
                assert bed.endings[0] is not Ending.CLEAN
                assert client.aborted is not None

    run(fresh, kind, test)


def test_much_both_ways(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            pipe = Pipe(await bed.reach(target.name), bed.poller)
            await pipe.open()
            sent, came = hashlib.sha256(), hashlib.sha256()

            async def send() -> None:
                for block in blocks(7, 10 * MIB):
                    sent.update(block)
                    pipe.writer.write(block)
                    await pipe.writer.drain()
                pipe.writer.write_eof()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send())
                size = 0
                while data := await pipe.read():
                    came.update(data)
                    size += len(data)
            assert size == 10 * MIB
            assert came.digest() == sent.digest()
            pipe.close(politely=False)

    run(stack, kind, test)


def test_a_reader_that_stops_stops_its_writer_and_loses_nothing(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            client = MemoryEnd()
            client.fill()
            join(client, end)
            with await asyncio.to_thread(target.accept) as far:
                total = await asyncio.to_thread(_send_until_stuck, far.sock)
                assert total < 100 * MIB
                assert len(client.received) < 20 * MIB
                assert not bed.endings
                client.make_room()
                await bed.until(lambda: len(client.received) == total)
                assert client.received == b"x" * total
                client.feed_eof()
                far.half_close()
                await bed.until(lambda: bed.endings == [Ending.CLEAN])

    run(stack, kind, test)


def test_a_target_that_stops_reading_stops_us(stack: Stack, kind: str) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            end = await bed.reach(target.name)
            client = MemoryEnd()
            join(client, end)
            with await asyncio.to_thread(target.accept) as far:
                client.feed(b"y" * MIB)
                fed = 1
                while not client.paused:
                    client.feed(b"y" * MIB)
                    fed += 1
                    assert fed < 100
                    await asyncio.sleep(0)
                client.feed_eof()
                received = await asyncio.to_thread(far.read_to_end)
                assert len(received) == fed * MIB
                far.half_close()
                await bed.until(lambda: bed.endings == [Ending.CLEAN])

    run(stack, kind, test)


def _send_until_stuck(sock: socket.socket) -> int:
    """Send until nothing is taken for a second; all of it will be read in the end."""
    sock.settimeout(1.0)
    total = 0
    try:
        while total < 200 * MIB:
            total += sock.send(b"x" * 65536)
    except TimeoutError:
        pass
    sock.settimeout(LIMIT_S)
    return total


# The lab's probe, which is a process of its own.


@pytest.fixture(scope="module")
def prober(certificates: PkiFiles) -> Iterator[Prober]:
    tls = ProbeTlsFiles(
        ca_cert=str(certificates.ca_cert),
        client_cert=str(certificates.client_cert),
        client_key=str(certificates.client_key),
    )
    with Prober(None, tls=tls) as made:
        yield made


def way(stack: Stack, kind: str) -> LabFrontend:
    at = place(stack, kind)
    protocol = PROTOCOLS[kind.partition("-")[0]]
    return LabFrontend(name=kind, protocol=protocol, uds=at.uds, tcp=str(at.tcp) if at.tcp else "")


def attempt(verb: Verb, target: str, **more: float) -> LabAttempt:
    return LabAttempt(source="", verb=verb, target=target, **more)  # type: ignore[arg-type]


def test_a_probes_attempts(stack: Stack, prober: Prober, kind: str) -> None:
    through = way(stack, kind)
    with echo_target() as target:
        outcome = prober.attempt(attempt(Verb.ECHO, target.name, bytes=2 * MIB), through)
        assert outcome.worked and outcome.bytes == 2 * MIB, outcome
        assert prober.attempt(attempt(Verb.CONNECT, target.name), through).worked
        # An echo says nothing of its own accord, and is no sink that counts.
        assert (
            prober.attempt(attempt(Verb.DOWNLOAD, target.name, seconds=0.1), through).failing
            is AttemptFailure.TIMEOUT
        )
    outcome = prober.attempt(attempt(Verb.CONNECT, f"127.0.0.1:{free_port()}"), through)
    assert outcome.failing is AttemptFailure.REFUSED, outcome
    outcome = prober.attempt(attempt(Verb.GET, "no-such-host.invalid:80"), through)
    assert outcome.failing is AttemptFailure.UNRESOLVED, outcome


def test_a_probe_sees_a_reset(stack: Stack, prober: Prober, kind: str) -> None:
    with Target() as target:

        def break_it() -> None:
            far = target.accept()
            far.recv()
            far.reset()

        breaking = threading.Thread(target=break_it)
        breaking.start()
        outcome = prober.attempt(attempt(Verb.GET, target.name), way(stack, kind))
        breaking.join()
    assert outcome.failing is AttemptFailure.RESET, outcome


def test_a_probes_page_by_https(
    stack: Stack, prober: Prober, certificates: PkiFiles, kind: str
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server_cert, certificates.server_key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        port = listening.getsockname()[1]

        def serve() -> None:
            plain, _ = listening.accept()
            plain.settimeout(LIMIT_S)
            with context.wrap_socket(plain, server_side=True) as far:
                far.recv(4096)
                far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nfrom pod")

        serving = threading.Thread(target=serve)
        serving.start()
        outcome = prober.attempt(attempt(Verb.GET, f"https://localhost:{port}/"), way(stack, kind))
        serving.join()
    assert outcome.worked and outcome.said == "from pod", outcome


def test_a_probes_traffic(stack: Stack, prober: Prober) -> None:
    ways = {kind: way(stack, kind) for kind in KINDS}
    with echo_target() as target:
        attempts = tuple(
            LabAttempt(source="", verb=Verb.ECHO, target=target.name, through=kind)
            for kind in KINDS
        )
        prober.start_traffic(Traffic(name="all", attempts=attempts, pause_s=0.0), ways)
        for _ in range(3):
            assert prober.attempt(attempts[0], ways[KINDS[0]]).worked
        count = prober.end_traffic("all")
    assert count.worked >= 8 and not count.failures, count
