"""Dialing by KEP-1281's protocol through servers that a test plays: the calls, and their pool."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from isthmus.dial.dialers import http2_pool
from isthmus.dial.dialers.http2_pool import Http2Pool
from isthmus.dial.dialers.through_grpc import PayloadDial, PayloadDialer
from isthmus.dial.dialers.through_server import ServerPlace
from isthmus.dial.frontends.statuses import explain
from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.carriers import PlainCarrier
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.payload import PayloadEnd
from isthmus.values import HostPort, RequestMetadata
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import ErrorCode, Headers, goaway
from isthmus.wire.payload import STATUS_OF_FAILURE, target_in

TARGET = HostPort("pod.example", 8080)
LIMIT_S = 20.0


class Accepted:
    """One connection of a server, the owner of its carrier; its calls wait for the test."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.calls: list[PayloadEnd] = []
        self.requests: list[Headers] = []
        self.over = False
        self.carrier = PlainCarrier(self, sock, server.poller)
        self.http2 = self.carrier.session = Http2Connection(
            self.carrier,
            client=False,
            clock=time.monotonic,
            on_request=self._request,
            limits=Http2Limits(max_streams=server.max_streams),
        )
        self.carrier.read_again()

    def _request(self, stream: Http2Stream, headers: Headers) -> PayloadEnd:
        end = PayloadEnd(stream, half_closes=True)
        self.calls.append(end)
        self.requests.append(headers)
        self.server.on_call(self, end)
        return end

    def violated(self, error: ProtocolError) -> None:
        raise AssertionError(error)

    def lost(self, why: str) -> None:
        self.over = True
        self.carrier.close()
        self.http2.lost(why)

    def secured(self) -> None:
        raise AssertionError

    def insecure(self, error: object) -> None:
        raise AssertionError


def _nothing(accepted: Accepted, call: PayloadEnd) -> None:
    """Let the call wait."""


def say_yes(accepted: Accepted, call: PayloadEnd) -> None:
    call.accept()


class Server:
    """A UNIX socket that speaks HTTP/2."""

    def __init__(self, poller: Poller, path: Path, max_streams: int) -> None:
        self.poller = poller
        self.max_streams = max_streams
        self.on_call: Callable[[Accepted, PayloadEnd], None] = say_yes
        self.accepted: list[Accepted] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(100)
        self.listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        self.accepted.append(Accepted(self, sock))

    @property
    def calls(self) -> list[PayloadEnd]:
        return [call for it in self.accepted for call in it.calls]

    def stop_listening(self) -> None:
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()

    def close(self) -> None:
        self.stop_listening()
        for accepted in self.accepted:
            accepted.lost("the test is over")


class Bed:
    """A server, a dialer, and what its dials said."""

    def __init__(self, path: Path, max_streams: int = 100, **options: bool) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        self.server = Server(self.poller, path, max_streams)
        place = ServerPlace(uds=str(path))
        self.dialer = PayloadDialer(loop, self.poller, Resolver(loop), place, **options)
        self.ends: list[BaseEnd] = []
        self.failures: list[tuple[DialFailure, str]] = []

    def dial(self, timeout_s: float = LIMIT_S, **more: object) -> PayloadDial:
        return self.dialer.dial(
            TARGET,
            timeout_s=timeout_s,
            reached=self.ends.append,
            failed=lambda *why: self.failures.append(why),
            **more,  # type: ignore[arg-type]
        )

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.001)

    async def reach(self) -> BaseEnd:
        self.dial()
        await self.until(lambda: self.ends or self.failures)
        assert not self.failures, self.failures
        return self.ends.pop()

    async def fails(self, timeout_s: float = LIMIT_S) -> tuple[DialFailure, str]:
        self.dial(timeout_s)
        await self.until(lambda: self.ends or self.failures)
        assert not self.ends
        return self.failures.pop()

    @property
    def live(self) -> list[Accepted]:
        return [it for it in self.server.accepted if not it.over]


Test = Callable[[Bed], Awaitable[None]]


def run(path: Path, test: Test, *, max_streams: int = 100, **options: bool) -> None:
    async def main() -> None:
        bed = Bed(path / "server.sock", max_streams, **options)
        try:
            await test(bed)
        finally:
            bed.dialer.close()
            bed.server.close()
        assert not bed.failures
        await bed.until(lambda: len(bed.poller) == 0)
        bed.poller.shut_down()

    asyncio.run(main())


# Calls.


def test_the_request(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dial(
            asking=RequestMetadata(user="jane", groups=("a", "b")), headers=((b"x-more", b"1"),)
        )
        await bed.until(lambda: bed.ends)
        [headers] = bed.server.accepted[0].requests
        fields = dict(headers)
        assert fields[b":path"] == b"/ProxyService/Proxy" and fields[b":method"] == b"POST"
        assert fields[b"content-type"] == b"application/grpc" and fields[b"te"] == b"trailers"
        assert target_in(headers) == TARGET
        assert fields[b"isthmus-user"] == b"jane" and fields[b"x-more"] == b"1"
        assert [value for name, value in headers if name == b"isthmus-group"] == [b"a", b"b"]

    run(tmp_path, test)


@pytest.mark.parametrize("failure", DialFailure)
def test_every_failure_comes_back_as_it_was(tmp_path: Path, failure: DialFailure) -> None:
    async def test(bed: Bed) -> None:
        text = explain(failure, TARGET, "the detail")
        bed.server.on_call = lambda _, call: call.refuse(STATUS_OF_FAILURE[failure], text)
        assert await bed.fails() == (failure, "the detail")

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("status", "text", "failure"),
    [
        (Status.UNAVAILABLE, "dial tcp 10.0.0.1:1: connect: connection refused", "REFUSED"),
        (Status.PERMISSION_DENIED, "not you", "DENIED"),
        (Status.UNAUTHENTICATED, "who are you", "DENIED"),
        (Status.DEADLINE_EXCEEDED, "", "TIMED_OUT"),
        (Status.NOT_FOUND, "what", "UNRESOLVED"),
        (Status.UNIMPLEMENTED, "unknown method", "INTERNAL"),
        (Status.INVALID_ARGUMENT, "metadata", "INTERNAL"),
        (Status.UNAVAILABLE, "going away", "INTERNAL"),
    ],
)
def test_what_other_servers_say(tmp_path: Path, status: Status, text: str, failure: str) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = lambda _, call: call.refuse(status, text)
        found, detail = await bed.fails()
        assert found is DialFailure[failure] and text in detail
        if found is DialFailure.INTERNAL:
            assert f"connectivity server {bed.dialer.place}" in detail
            assert status.go_name in detail

    run(tmp_path, test)


def test_the_deadline_and_a_cancel_reset_the_call(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = _nothing
        failure, detail = await bed.fails(timeout_s=0.05)
        assert failure is DialFailure.TIMED_OUT and str(bed.dialer.place) in detail
        await bed.until(lambda: bed.server.calls[0].ending is Ending.RESET)
        dial = bed.dial()
        await bed.until(lambda: len(bed.server.calls) == 2)
        dial.cancel()
        dial.cancel()
        await bed.until(lambda: bed.server.calls[1].ending is Ending.RESET)
        bed.dial().cancel()  # before anything was sent
        bed.server.on_call = say_yes
        await bed.reach()
        assert len(bed.server.accepted) == 1 and not bed.failures

    run(tmp_path, test)


def test_a_server_that_does_not_answer_dials(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = _nothing
        end = await bed.reach()
        client = MemoryEnd()
        join(client, end)
        client.feed(b"hello")
        await bed.until(lambda: bed.server.calls)
        [call] = bed.server.calls
        target = MemoryEnd()
        join(call, target)
        await bed.until(lambda: target.received == b"hello")
        call.accept()
        target.feed(b"there")
        await bed.until(lambda: client.received == b"there")

    run(tmp_path, test, answers_dials=False)


def test_no_server_and_no_http2(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        server = bed.server
        asyncio.get_running_loop().remove_reader(server.listener)
        bed.dial()
        dials = bed.dial()  # waits for the same connection
        with server.listener.accept()[0] as sock:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await bed.until(lambda: len(bed.failures) == 2)
        assert {failure for failure, _ in bed.failures} == {DialFailure.INTERNAL}
        assert all("protocol error" in detail for _, detail in bed.failures)
        bed.failures.clear()
        assert dials.done and not bed.dialer.pool.connections
        server.stop_listening()
        failure, detail = await bed.fails()
        assert failure is DialFailure.UNREACHABLE
        refused = "cannot be reached: connection refused"
        assert f"connectivity server {bed.dialer.place} {refused}" in detail
        assert not bed.dialer.pool.connections

    run(tmp_path, test)


# The pool.


def test_one_connection_for_many_calls(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        for _ in range(50):
            bed.dial()
        await bed.until(lambda: len(bed.ends) == 50)
        assert len(bed.server.accepted) == 1
        pairs = [(MemoryEnd(), end) for end in bed.ends]
        for number, (client, end) in enumerate(pairs):
            join(client, end)
            client.feed(b"call %d" % number)
        targets = [MemoryEnd() for _ in pairs]
        for call, target in zip(bed.server.calls, targets, strict=True):
            join(call, target)
        await bed.until(lambda: all(target.received for target in targets))
        assert {bytes(target.received) for target in targets} == {
            b"call %d" % number for number in range(50)
        }

    run(tmp_path, test)


def test_the_servers_limit_is_kept_and_a_second_connection_made(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        await bed.reach()  # by now the limit is known
        for _ in range(4):
            bed.dial()
        await bed.until(lambda: len(bed.ends) == 4)
        assert [len(it.http2.streams) for it in bed.live] == [2, 2, 1]
        assert bed.dialer.pool.connections[0].streams == 2

    run(tmp_path, test, max_streams=2)


def test_calls_that_begin_before_the_limit_is_known(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        for _ in range(5):
            bed.dial()
        await bed.until(lambda: len(bed.ends) == 5)  # three were refused unseen, and asked again
        assert all(len(it.http2.streams) <= 2 for it in bed.live)

    run(tmp_path, test, max_streams=2)


def test_when_all_are_full_calls_wait(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.pool = Http2Pool(bed.dialer, most_connections=2)
        ends = [await bed.reach(), await bed.reach()]
        bed.dial()
        late = bed.dial(timeout_s=0.05)
        await bed.until(lambda: late.done)
        assert bed.failures.pop() == (
            DialFailure.TIMED_OUT,
            f"no room at the connectivity server {bed.dialer.place} in time",
        )
        assert not bed.ends and len(bed.server.accepted) == 2
        ends[0].abort(Ending.CANCELLED)
        await bed.until(lambda: bed.ends)
        assert len(bed.server.accepted) == 2

    run(tmp_path, test, max_streams=1)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.pool = Http2Pool(bed.dialer, idle_s=0.02)
        for _ in range(2):
            end = await bed.reach()
            assert len(bed.live) == 1
            end.abort(Ending.CANCELLED)
            await bed.until(lambda: not bed.live and not bed.dialer.pool.connections)

    run(tmp_path, test)


def test_few_idle_connections_are_kept(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        ends = [await bed.reach() for _ in range(5)]
        assert len(bed.live) == 5
        for end in ends:
            end.abort(Ending.CANCELLED)
        await bed.until(lambda: len(bed.live) == http2_pool.MOST_IDLE)
        await bed.reach()
        assert len(bed.server.accepted) == 5

    run(tmp_path, test, max_streams=1)


def test_a_server_that_goes_away_is_drained(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        end, client = await bed.reach(), MemoryEnd()
        join(client, end)
        first = bed.server.accepted[0]
        first.http2.go_away()
        await bed.until(lambda: bed.dialer.pool.connections[0].leaving)
        await bed.reach()
        assert len(bed.live) == 2
        target = MemoryEnd()
        join(first.calls[0], target)
        client.feed(b"goes on")
        await bed.until(lambda: target.received == b"goes on")
        client.feed_eof()
        target.feed_eof()
        await bed.until(lambda: end.ending is Ending.CLEAN and first.over)
        assert len(bed.dialer.pool.connections) == 1

    run(tmp_path, test)


def test_a_call_that_was_refused_unseen_is_made_again(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        seen: list[Accepted] = []

        def first_goes_away(accepted: Accepted, call: PayloadEnd) -> None:
            seen.append(accepted)
            if len(seen) == 1:
                accepted.http2.emit(goaway(0, ErrorCode.NO_ERROR))
            else:
                call.accept()

        bed.server.on_call = first_goes_away
        await bed.reach()
        assert len(bed.server.accepted) == 2

    run(tmp_path, test)


def test_a_server_that_refuses_every_stream(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = lambda _, call: call.stream.reset(ErrorCode.REFUSED_STREAM)
        failure, detail = await bed.fails()
        assert failure is DialFailure.INTERNAL and "reset by the peer" in detail
        assert len(bed.server.calls) == 4

    run(tmp_path, test)


def test_a_dead_connection_fails_all_of_its_calls_at_once(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        end, client = await bed.reach(), MemoryEnd()
        join(client, end)
        bed.server.on_call = _nothing
        bed.dial()
        await bed.until(lambda: len(bed.server.calls) == 2)
        bed.server.accepted[0].lost("killed")
        await bed.until(lambda: bed.failures)
        failure, detail = bed.failures.pop()
        assert failure is DialFailure.INTERNAL
        assert f"connectivity server {bed.dialer.place}: closed by the peer" in detail
        assert client.aborted is Ending.LINK_LOST and end.ending is Ending.LINK_LOST
        bed.server.on_call = say_yes
        await bed.reach()
        assert len(bed.server.accepted) == 2

    run(tmp_path, test)


def test_a_connection_that_answers_nothing_is_not_used_again(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = _nothing
        assert (await bed.fails(timeout_s=0.05))[0] is DialFailure.TIMED_OUT
        # It spoke, if not to the call: its settings came after that was made.
        assert len(bed.dialer.pool.connections) == 1
        bed.dialer.pool.connections[0].close("the test goes on")
        loop = asyncio.get_running_loop()
        loop.remove_reader(bed.server.listener)  # from now on nobody is there, and nobody says so
        bed.dial(timeout_s=0.05)
        [silent] = bed.dialer.pool.connections
        await bed.until(lambda: bed.failures)
        assert bed.failures.pop()[0] is DialFailure.TIMED_OUT
        await bed.until(lambda: silent not in bed.dialer.pool.connections)
        loop.add_reader(bed.server.listener, bed.server._accept)
        bed.server.on_call = say_yes
        await bed.reach()

    run(tmp_path, test)


def test_old_connections_are_replaced(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        await bed.reach()
        bed.dialer.pool.connections[0].made_at -= 3600.0
        await bed.reach()
        await bed.reach()
        assert [len(it.http2.streams) for it in bed.live] == [1, 2]

    run(tmp_path, test)


def test_a_closed_dialer(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.server.on_call = _nothing
        bed.dial()
        await bed.until(lambda: bed.server.calls)
        bed.dialer.close()
        bed.dial()
        assert [failure for failure, _ in bed.failures] == [DialFailure.INTERNAL] * 2
        assert all("the dialer is closed" in detail for _, detail in bed.failures)
        bed.failures.clear()
        assert not bed.dialer.pool.connections

    run(tmp_path, test)
