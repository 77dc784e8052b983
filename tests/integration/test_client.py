"""The client library through a real server and agent, by every protocol, in a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import threading
from collections.abc import Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from client_bed import KINDS, THROUGH_SERVER, all_doors, config, doors, opened, run, until, way
from clients import MIB, Target, blocks, echo_target, free_port, full_target
from stack import Stack

from isthmus.client import (
    Connection,
    ConnectivityService,
    DialError,
    DialFailure,
    NetworkContext,
    start_tls,
)
from isthmus.dial.rules_connectivity import ConnectivityConfig, NetworkConfig
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles


@pytest.fixture(scope="module")
def running(certificates: PkiFiles) -> Iterator[Stack]:
    with all_doors(certificates) as stack:
        yield stack


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def far_of(target: Target) -> object:
    return await asyncio.to_thread(target.accept)


# Streams.


def test_much_both_ways_and_a_half_close(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with echo_target() as target:
                connection = await service.dialer(kind).dial("tcp", target.name)
                sent, came = hashlib.sha256(), hashlib.sha256()

                async def send() -> None:
                    for block in blocks(7, 10 * MIB):
                        sent.update(block)
                        connection.write(block)
                        await connection.drain()
                    connection.write_eof()

                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(send())
                    while data := await connection.read():
                        came.update(data)
                assert came.digest() == sent.digest()
                assert await connection.read() == b""
                await connection.close()
                assert connection.is_closing

    run(test)


def test_a_reset_by_the_target_never_looks_like_the_end(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                connection = await service.dialer(kind).dial("tcp", target.name)
                far = await asyncio.to_thread(target.accept)
                far.send(b"half an answer")
                assert await connection.read() == b"half an answer"
                far.reset()
                with pytest.raises(ConnectionResetError):
                    await connection.read()
                with pytest.raises(ConnectionResetError):
                    connection.write(b"x")
                with pytest.raises(ConnectionResetError):
                    await connection.drain()
                await connection.close()

    run(test)


def test_a_reset_by_us(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                connection = await service.dialer(kind).dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    connection.abort()
                    if kind == "connect-uds":  # a UNIX socket closes
                        with contextlib.suppress(ConnectionResetError):
                            assert await asyncio.to_thread(far.recv) == b""
                    else:
                        with pytest.raises(ConnectionResetError):
                            await asyncio.to_thread(far.recv)
                with pytest.raises(ConnectionResetError):
                    await connection.read()

    run(test)


def test_a_reader_that_stops_stops_its_writer(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                connection = await service.dialer(kind).dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    far.sock.settimeout(0.5)
                    total = 0
                    with contextlib.suppress(TimeoutError):
                        while total < 200 * MIB:
                            total += await asyncio.to_thread(far.sock.send, b"x" * MIB)
                    assert total < 200 * MIB
                    assert len(connection._inbox.buffer) < 4 * MIB
                    far.half_close()
                    size = 0
                    while data := await connection.read(MIB):
                        size += len(data)
                    assert size == total
                await connection.close()

    run(test)


def test_a_target_that_stops_reading_stops_drain(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                connection = await service.dialer(kind).dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    written = 0
                    with pytest.raises(TimeoutError):
                        while written < 200 * MIB:
                            connection.write(b"y" * MIB)
                            written += MIB
                            await connection.drain(timeout_s=0.5)
                    connection.write_eof()
                    assert len(await asyncio.to_thread(far.read_to_end)) == written
                await connection.close()

    run(test)


def test_a_read_has_a_deadline_and_goes_on_after_it(stack: Stack) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                connection = await service.dialer("direct").dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    with pytest.raises(TimeoutError):
                        await connection.read(timeout_s=0.01)
                    far.send(b"late")
                    assert await connection.read(timeout_s=20) == b"late"
                    reading = asyncio.create_task(connection.read())
                    await asyncio.sleep(0)
                    with pytest.raises(RuntimeError):
                        await connection.read()
                    reading.cancel()
                    await asyncio.wait([reading])
                    far.send(b"kept")
                    assert await connection.read() == b"kept"
                connection.abort()

    run(test)


def test_what_was_written_before_close_arrives(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                async with await service.dialer(kind).dial("tcp", target.name) as connection:
                    far = await asyncio.to_thread(target.accept)
                    connection.write(b"z" * MIB)
                    reading = asyncio.create_task(asyncio.to_thread(far.read_to_end))
                assert len(await reading) == MIB
                far.close()

    run(test)


def test_the_service_ends_what_is_left_open(stack: Stack, kind: str) -> None:
    async def test() -> None:
        with Target() as target:
            async with opened(config(stack)) as service:
                service.grace_s = 0.0
                connection = await service.dialer(kind).dial("tcp", target.name)
                far = await asyncio.to_thread(target.accept)
            with pytest.raises(ConnectionResetError):
                await connection.read()
            with contextlib.suppress(ConnectionResetError), far:
                assert await asyncio.to_thread(far.recv) == b""
            with pytest.raises(RuntimeError, match="not open"):
                service.dialer(kind)

    run(test)


@pytest.mark.parametrize("kind", ["packet-uds", "packet-tls", "payload-uds", "payload-tls"])
def test_calls_share_a_connection(stack: Stack, kind: str) -> None:
    async def use(service: ConnectivityService, address: str) -> None:
        async with await service.dialer(kind).dial("tcp", address) as connection:
            connection.write(b"hello")
            connection.write_eof()
            while await connection.read():
                continue

    async def test() -> None:
        async with opened(config(stack, [kind])) as service:
            with echo_target() as target:
                await asyncio.gather(*(use(service, target.name) for _ in range(30)))
                pool = service._ways[kind]._dialer.pool
                [shared] = pool.connections
                await until(lambda: not shared.streams)

    run(test)


# Real sockets.


def test_a_real_socket_keeps_half_closes_and_resets(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            loop = asyncio.get_running_loop()
            with Target() as target:
                sock = await service.dialer(kind).dial_socket(target.name)
                with await asyncio.to_thread(target.accept) as far, sock:
                    await loop.sock_sendall(sock, b"question")
                    sock.shutdown(socket.SHUT_WR)
                    assert await asyncio.to_thread(far.read_to_end) == b"question"
                    far.send(b"answer")
                    far.half_close()
                    assert await loop.sock_recv(sock, 100) == b"answer"
                    assert await loop.sock_recv(sock, 100) == b""
                sock = await service.dialer(kind).dial_socket(target.name)
                far = await asyncio.to_thread(target.accept)
                with sock:
                    far.send(b"some")
                    assert await loop.sock_recv(sock, 100) == b"some"
                    far.reset()
                    with pytest.raises(ConnectionResetError):
                        await loop.sock_recv(sock, 100)

    run(test)


# TLS inside the tunnel.


def test_tls_to_the_target(stack: Stack, certificates: PkiFiles) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates.server_cert, certificates.server_key)
    trust = ssl.create_default_context(cafile=str(certificates.ca_cert))

    def serve(target: Target, *, cut: bool) -> None:
        with target.accept() as far:
            try:
                with serving.wrap_socket(far.sock, server_side=True) as sock:
                    sock.sendall(sock.recv(100).upper())
                    if not cut:
                        sock.unwrap()
            except OSError:
                return

    async def test() -> None:
        async with opened(config(stack)) as service:
            with Target() as target:
                for cut in (False, True):
                    thread = threading.Thread(target=serve, args=(target,), kwargs={"cut": cut})
                    thread.start()
                    connection = await service.dialer("connect-tls").dial("tcp", target.name)
                    secured = await start_tls(connection, trust, "localhost")
                    assert secured.get_extra_info("ssl_object").version() == "TLSv1.3"
                    secured.write(b"hello")
                    assert await secured.read() == b"HELLO"
                    if cut:
                        with pytest.raises(ConnectionResetError):
                            await secured.read()
                        secured.abort()
                    else:
                        assert await secured.read() == b""
                        await secured.close()
                    await asyncio.to_thread(thread.join)
                thread = threading.Thread(target=serve, args=(target,), kwargs={"cut": True})
                thread.start()
                connection = await service.dialer("connect-tls").dial("tcp", target.name)
                with pytest.raises(ssl.SSLCertVerificationError):
                    await start_tls(connection, trust, "other.example")
                assert connection.is_closing
                await asyncio.to_thread(thread.join)

    run(test)


# Failures.


def test_every_failure_has_its_reason(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            dialer = service.dialer(NetworkContext(kind.upper()))
            with pytest.raises(DialError) as refused:
                await dialer.dial("tcp", f"127.0.0.1:{free_port()}")
            assert refused.value.reason is DialFailure.REFUSED
            with full_target() as target, pytest.raises(DialError) as late:
                await dialer.dial("tcp", target.name, timeout_s=0.2)
            assert late.value.reason is DialFailure.TIMED_OUT
            with pytest.raises(ValueError):
                await dialer.dial("udp", "127.0.0.1:1")
            with pytest.raises(ValueError):
                await dialer.dial("tcp", "127.0.0.1")

    run(test)


@pytest.mark.parametrize("kind", [kind for kind in THROUGH_SERVER if kind.endswith("tls")])
def test_a_dial_that_fails_for_want_of_a_certificate_says_so(stack: Stack, kind: str) -> None:
    async def test() -> None:
        unnamed = NetworkConfig(name="cluster", connection=way(stack, kind, named=False))
        async with opened(ConnectivityConfig(networks={"cluster": unnamed})) as service:
            with pytest.raises(DialError, match="it requires a client certificate") as failed:
                await service.dialer("Cluster").dial("tcp", "127.0.0.1:1")
            assert failed.value.reason is DialFailure.INTERNAL

    run(test)


def test_certificates_are_picked_up_when_they_change(fresh: Stack, tmp_path: Path) -> None:
    """A file that is missing fails its dials, by name; when it comes they work."""
    fresh.add_server(**doors(fresh))
    fresh.add_agent()
    files = fresh.files
    cert, key = tmp_path / "client.crt", tmp_path / "client.key"
    named = way(fresh, "connect-tls")
    tls = type(named.tls)(  # type: ignore[misc]
        ca_bundle=str(files.ca_cert), client_cert=str(cert), client_key=str(key)
    )
    network = NetworkConfig(
        name="cluster",
        connection=type(named)(protocol=named.protocol, tcp=named.tcp, tls=tls),
    )

    async def test() -> None:
        async with opened(ConnectivityConfig(networks={"cluster": network})) as service:
            dialer = service.dialer("cluster")
            with Target() as target:
                with pytest.raises(DialError, match=r"client\.crt: no such file"):
                    await dialer.dial("tcp", target.name)
                other = pki.init(tmp_path / "other")
                cert.write_bytes(other.client_cert.read_bytes())
                key.write_bytes(other.client_key.read_bytes())
                with pytest.raises(DialError):  # of another CA
                    await dialer.dial("tcp", target.name)
                cert.write_bytes(files.client_cert.read_bytes())
                key.write_bytes(files.client_key.read_bytes())
                connection = await reach(dialer, target.name)
                connection.abort()

    async def reach(dialer: object, name: str) -> Connection:
        while True:
            with contextlib.suppress(DialError):
                return await dialer.dial("tcp", name)  # type: ignore[attr-defined, no-any-return]
            await asyncio.sleep(0.05)

    run(test)


# Cancelling.


class Steps:
    """Runs a coroutine, and has its task cancelled at one of its awaits.

    ``late``: at the moment when what it awaits is done, and before it hears of that.
    """

    def __init__(self, work: Coroutine[Any, Any, None], cancel_at: int, *, late: bool) -> None:
        self.work = work
        self.cancel_at = cancel_at
        self.late = late
        self.awaits = 0

    def __await__(self) -> Generator[Any, None, None]:
        task = asyncio.current_task()
        assert task is not None
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = self.work.throw(thrown) if thrown else self.work.send(None)
            except StopIteration:
                return
            self.awaits += 1
            if self.awaits == self.cancel_at:
                if self.late and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            thrown = None
            try:
                yield waits_for
            except BaseException as exc:
                thrown = exc


@pytest.mark.parametrize("late", [False, True], ids=["at the await", "at its result"])
def test_cancelled_at_every_await_nothing_leaks(stack: Stack, kind: str, late: bool) -> None:
    """A whole use is cancelled at its first await, its second, and so on to the last."""

    async def use(service: ConnectivityService, address: str) -> None:
        async with await service.dialer(kind).dial("tcp", address) as connection:
            connection.write(b"hello" * MIB)
            await connection.drain()
            assert (await connection.read(5))[:1] == b"h"
            connection.write_eof()
            while await connection.read(5 * MIB):
                continue
        with await service.dialer(kind).dial_socket(address) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"hi")
            assert await loop.sock_recv(sock, 5) == b"hi"

    async def test() -> None:
        cancelled = awaits = 0
        with echo_target() as target:
            while True:
                async with opened(config(stack, [kind])) as service:
                    service.grace_s = 0.0
                    steps = Steps(use(service, target.name), cancelled + 1, late=late)

                    async def run_steps(steps: Steps = steps) -> None:
                        await steps

                    task = asyncio.create_task(run_steps())
                    await asyncio.wait([task])
                    if not task.cancelled():
                        task.result()
                        awaits = steps.awaits
                if awaits and awaits <= cancelled:
                    break
                # How often a read has to wait is chance; the first and the last ones are not.
                cancelled += 1 if cancelled < 12 else 7
        assert cancelled > 4

    run(test)


def test_the_dial_of_a_cancelled_task_is_taken_back(stack: Stack, kind: str) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            with full_target() as target:
                task = asyncio.create_task(service.dialer(kind).dial("tcp", target.name))
                pending = stack.server.dialer.pending
                if kind != "direct":
                    await until(lambda: len(pending))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: not len(pending))

    run(test)
