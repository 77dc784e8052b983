"""The direct dialer: reaches targets by address and by name, and can be told to stop."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable

import pytest

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import DialFailure
from isthmus.net.connect import Failed, literal
from isthmus.net.poller import Poller
from isthmus.net.resolver import Cancel, Found, Resolver, nothing
from isthmus.net.socket_end import SocketEnd
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.values import HostPort


class Bed:
    """A dialer and what its dials said."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        aliases = {"demo.internal": ("127.0.0.1",), "v6.internal": ("::1", "127.0.0.1")}
        self.dialer = DirectDialer(loop, self.poller, Resolver(loop, aliases))
        self.ends: list[SocketEnd] = []
        self.failures: list[DialFailure] = []
        self.details: list[str] = []

    def dial(self, host: str, port: int, timeout_s: float = 20.0) -> DirectDial:
        return self.dialer.dial(
            HostPort(host, port),
            timeout_s=timeout_s,
            reached=self.ends.append,
            failed=self._failed,
        )

    def _failed(self, failure: DialFailure, detail: str) -> None:
        self.failures.append(failure)
        self.details.append(detail)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)


def run(test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed()
        await test(bed)
        for end in bed.ends:
            end.abort(Ending.CANCELLED)
        await bed.until(lambda: len(bed.poller) == 0)
        await asyncio.sleep(0)
        bed.poller.shut_down()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "demo.internal", "v6.internal", "localhost"])
def test_a_target_by_address_or_name(host: str) -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as target:
            bed.dial(host, target.getsockname()[1])
            await bed.until(lambda: bed.ends)
            assert not bed.failures

    run(test)


def test_what_the_target_said_at_once_and_its_end_are_not_lost() -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as target:
            bed.dial("127.0.0.1", target.getsockname()[1])
            peer, _ = target.accept()  # connected before the poller looks
            with peer:
                peer.sendall(b"220 ready")
            await bed.until(lambda: bed.ends)
            client = MemoryEnd()
            join(client, bed.ends[0])
            await bed.until(lambda: client.eofs)
            assert client.received == b"220 ready"

    run(test)


def test_failures_have_their_reason() -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            free = sock.getsockname()[1]
        bed.dial("127.0.0.1", free)
        await bed.until(lambda: bed.failures)
        bed.dial("no-such-name.invalid", 1)
        await bed.until(lambda: len(bed.failures) == 2)
        assert bed.failures == [DialFailure.REFUSED, DialFailure.UNRESOLVED]

    run(test)


def test_cancelled_it_says_nothing() -> None:
    async def test(bed: Bed) -> None:
        with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
            socket.create_connection(full.getsockname(), 10),
        ):
            bed.dial("127.0.0.1", full.getsockname()[1], timeout_s=0.01).cancel()
            bed.dial("localhost", full.getsockname()[1], timeout_s=0.01).cancel()
            bed.dial("no-such-name.invalid", 1)
            await bed.until(lambda: bed.failures)
            assert bed.failures == [DialFailure.UNRESOLVED] and not bed.ends

    run(test)


class SilentResolver(Resolver):
    """Answers when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.asked: list[tuple[Found, Failed]] = []

    def lookup(self, target: HostPort, found: Found, failed: Failed, client: object = "") -> Cancel:
        self.asked.append((found, failed))
        return nothing


def test_the_time_for_a_dial_covers_the_lookup() -> None:
    async def test(bed: Bed) -> None:
        resolver = bed.dialer.resolver = SilentResolver(asyncio.get_running_loop())
        with socket.create_server(("127.0.0.1", 0)) as target:
            bed.dial("slow.example", 1, timeout_s=0.01)
            await bed.until(lambda: bed.failures)
            found, failed = resolver.asked[0]
            found([literal(*target.getsockname())])  # too late
            failed(DialFailure.UNRESOLVED, "too late as well")
            assert bed.failures == [DialFailure.TIMED_OUT]
            assert len(bed.poller) == 0 and not bed.ends

    run(test)


@pytest.mark.parametrize("host", ["127.0.0.1", "slow.example"])
@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_deadline_that_has_passed_is_its_own_reason(host: str, timeout_s: float) -> None:
    async def test(bed: Bed) -> None:
        resolver = bed.dialer.resolver = SilentResolver(asyncio.get_running_loop())
        bed.dial(host, 1, timeout_s=timeout_s)
        assert bed.failures == [DialFailure.TIMED_OUT] and not resolver.asked
        assert bed.details == ["the deadline of the dial had passed before it began"]

    run(test)


def test_a_dial_with_hardly_any_time_blames_no_resolver() -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.resolver = SilentResolver(asyncio.get_running_loop())
        bed.dial("slow.example", 1, timeout_s=0.005)
        await bed.until(lambda: bed.failures)
        assert bed.details == ["only 5 ms were left of the deadline of the dial when it began"]
        bed.dial("slow.example", 1, timeout_s=0.05)
        await bed.until(lambda: len(bed.failures) == 2)
        assert bed.details[1] == "no answer from the resolver in time"

    run(test)


class CancelledResolver(SilentResolver):
    """Counts the lookups that were taken back."""

    taken_back = 0

    def lookup(self, target: HostPort, found: Found, failed: Failed, client: object = "") -> Cancel:
        super().lookup(target, found, failed, client)

        def cancel() -> None:
            self.taken_back += 1

        return cancel


def test_a_dial_that_is_over_takes_its_lookup_back() -> None:
    async def test(bed: Bed) -> None:
        resolver = bed.dialer.resolver = CancelledResolver(asyncio.get_running_loop())
        dial = bed.dial("slow.example", 1, timeout_s=20)
        dial.cancel()
        assert resolver.taken_back == 1
        bed.dial("slow.example", 1, timeout_s=0.01)
        await bed.until(lambda: bed.failures)
        assert resolver.taken_back == 2

    run(test)


def test_too_many_lookups_are_not_a_wrong_name() -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.resolver = Resolver(asyncio.get_running_loop(), max_pending=0)
        bed.dial("slow.invalid", 1)
        assert bed.failures == [DialFailure.TOO_MANY]

    run(test)


class Caller:
    """Keeps its dial, as whoever may cancel it does."""

    def __init__(self, bed: Bed, host: str, port: int) -> None:
        self.dial = bed.dialer.dial(
            HostPort(host, port), timeout_s=20.0, reached=self.reached, failed=self.failed
        )

    def reached(self, end: SocketEnd) -> None:
        pytest.fail("reached")

    def failed(self, failure: DialFailure, detail: str) -> None:
        pytest.fail("failed")


@pytest.mark.parametrize("host", ["127.0.0.1", "slow.example"])
def test_cancelled_it_keeps_nobody(host: str) -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.resolver = SilentResolver(asyncio.get_running_loop())
        with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
            socket.create_connection(full.getsockname(), 10),
        ):
            gc.disable()
            try:
                caller = Caller(bed, host, full.getsockname()[1])
                caller.dial.cancel()
                kept = weakref.ref(caller)
                del caller
                await bed.until(lambda: len(bed.poller) == 0)
                assert kept() is None
            finally:
                gc.enable()

    run(test)
