"""DNS by our own dialers, against a server that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import dns.message
import pytest
from dns_stub import Reply, StubDns, Zone, answer, asked, framed, refusal

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.net.connect import Dialing, Failed, Reached
from isthmus.net.dns_messages import DnsError
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.tunnel_dns import YOUNG_S, TunnelDns
from isthmus.values import HostPort

LIMIT_S = 20.0


class Clock:
    """A loop's clock that tests can put forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._now = loop.time
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._now() + self.ahead_s


class Bed:
    """A stub, and who asks it."""

    def __init__(self, reply: Reply, **how: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.stub = StubDns(reply)
        self.dialer = DirectDialer(self.loop, self.poller, Resolver(self.loop))
        self.dns = TunnelDns(self.loop, self.dialer, **how)  # type: ignore[arg-type]

    async def look(self, name: str, **how: bool) -> tuple[str, ...]:
        return (await self.dns.lookup(self.stub.at, name, **how)).addresses

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.001)


def run(reply: Reply, test: Callable[[Bed], Awaitable[None]], **how: float) -> None:
    unhandled: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        bed = Bed(reply, **how)
        await bed.stub.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                await test(bed)
        finally:
            await bed.dns.close()
            await bed.stub.stop()
        await bed.until(lambda: len(bed.poller) == 0)
        bed.poller.shut_down()
        assert not bed.dns._pending

    asyncio.run(main())
    assert not unhandled


def zone() -> Zone:
    made = Zone()
    made.put("both.example", "A", "192.0.2.1", "192.0.2.2")
    made.put("both.example", "AAAA", "2001:db8::1", "2001:db8::2")
    made.put("four.example", "A", "192.0.2.4")
    made.put("six.example", "AAAA", "2001:db8::6")
    made.put("alias.example", "CNAME", "both.example")
    made.put("empty.example", "TXT", "nothing")
    return made


def test_both_families_take_turns() -> None:
    async def test(bed: Bed) -> None:
        found = await bed.look("both.example")
        assert [":" in each for each in found] == [False, True, False, True]
        assert set(found) == {"192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"}
        assert await bed.look("four.example") == ("192.0.2.4",)
        assert await bed.look("six.example") == ("2001:db8::6",)
        assert set(await bed.look("alias.example")) == set(found)
        assert await bed.look("empty.example") == ()
        assert await bed.look("nowhere.example") == ()
        assert bed.stub.connections == 1  # for all of them

    run(zone().reply, test)


def test_what_a_server_says_is_remembered_for_as_long_as_it_says() -> None:
    made = zone()
    made.ttl_s, made.soa = 50, 20

    async def test(bed: Bed) -> None:
        clock = Clock(bed.loop)
        bed.dns._loop = FakeLoop(bed.loop, clock)  # type: ignore[assignment]
        assert not (await bed.dns.lookup(bed.stub.at, "four.example")).remembered
        await bed.look("nowhere.example")
        asked_before = len(bed.stub.seen)
        assert (await bed.dns.lookup(bed.stub.at, "four.example")).remembered
        assert await bed.look("nowhere.example") == ()
        assert len(bed.stub.seen) == asked_before
        clock.ahead_s = 25.0
        assert bed.dns.known(bed.stub.at, "four.example") is not None
        assert bed.dns.known(bed.stub.at, "nowhere.example") is None
        clock.ahead_s = 51.0
        assert bed.dns.known(bed.stub.at, "four.example") is None
        await bed.look("four.example")
        assert len(bed.stub.seen) == asked_before + 2

    run(made.reply, test)


class FakeLoop:
    """The loop with another clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self.time = clock.time

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


def test_it_is_asked_again_when_wanted_fresh_or_forgotten() -> None:
    async def test(bed: Bed) -> None:
        for _ in range(2):
            await bed.look("four.example", fresh=True)
        assert len(bed.stub.seen) == 4
        bed.dns.forget("four.example")
        await bed.look("four.example")
        assert len(bed.stub.seen) == 6

    run(zone().reply, test)


def test_what_is_remembered_is_bounded() -> None:
    made = Zone()
    for number in range(8):
        made.put(f"n{number}.example", "A", f"192.0.2.{number}")

    async def test(bed: Bed) -> None:
        for number in range(8):
            await bed.look(f"n{number}.example")
        known = [bed.dns.known(bed.stub.at, f"n{number}.example") for number in range(8)]
        assert [each is not None for each in known] == [False] * 5 + [True] * 3

    run(made.reply, test, most_names=3)


def test_lookups_of_one_name_share_the_asking() -> None:
    async def test(bed: Bed) -> None:
        found = await asyncio.gather(*(bed.look("four.example") for _ in range(10)))
        assert set(found) == {("192.0.2.4",)}
        assert len(bed.stub.seen) == 2

    run(zone().reply, test)


def test_too_many_lookups_at_once_are_refused() -> None:
    release = asyncio.Event()

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        await release.wait()
        return await zone().reply(query)

    async def test(bed: Bed) -> None:
        first = asyncio.ensure_future(bed.look("four.example"))
        await bed.until(lambda: bed.stub.seen)
        with pytest.raises(DnsError, match="too many"):
            await bed.look("six.example")
        release.set()
        assert await first == ("192.0.2.4",)

    run(reply, test, most_pending=1)


def test_a_name_without_an_answer_makes_room_for_another() -> None:
    """Whoever asks for names that are never answered keeps nobody else from asking."""

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        return [] if asked(query)[0].startswith("hang") else await zone().reply(query)

    async def test(bed: Bed) -> None:
        hanging = [asyncio.ensure_future(bed.look(f"hang{n}.example")) for n in range(2)]
        await bed.until(lambda: len(bed.stub.seen) == 4)
        for pending in bed.dns._pending.values():
            pending.began_at -= YOUNG_S
        assert await bed.look("four.example") == ("192.0.2.4",)
        with pytest.raises(DnsError, match="too many"):
            await hanging[0]
        hanging[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging[1]
        assert not bed.dns._pending

    run(reply, test, most_pending=2)


def test_a_server_may_answer_in_any_order() -> None:
    waiting: list[dns.message.Message] = []

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        waiting.append(query)
        if len(waiting) < 2:
            return []
        return [each for query in reversed(waiting) for each in await zone().reply(query)]

    async def test(bed: Bed) -> None:
        assert len(await bed.look("both.example")) == 4

    run(reply, test)


def test_a_server_may_close_after_each_answer() -> None:
    made = zone()

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        return [*(await made.reply(query)), None]

    async def test(bed: Bed) -> None:
        assert len(await bed.look("both.example")) == 4
        assert await bed.look("four.example") == ("192.0.2.4",)
        assert bed.stub.connections >= 3

    run(reply, test)


def test_an_idle_connection_is_closed_and_another_made() -> None:
    async def test(bed: Bed) -> None:
        await bed.look("four.example")
        await bed.until(lambda: bed.stub.open == 0)
        await bed.look("six.example")
        assert bed.stub.connections == 2

    run(zone().reply, test, idle_s=0.01)


def test_a_restarted_server_is_found_again() -> None:
    async def test(bed: Bed) -> None:
        await bed.look("four.example")
        await bed.stub.stop()
        with pytest.raises(DnsError, match="refused"):
            await bed.look("six.example")
        await bed.stub.start(bed.stub.at.port)
        assert await bed.look("six.example") == ("2001:db8::6",)

    run(zone().reply, test)


def test_cnames_that_a_server_leaves_open_are_followed() -> None:
    made = Zone()
    made.put("end.example", "A", "192.0.2.9")

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        name, _ = asked(query)
        hops = {"a.example": "b.example", "b.example": "end.example"}
        if name in hops:
            return [answer(query, f"{name} 5 IN CNAME {hops[name]}.")]
        return await made.reply(query)

    async def test(bed: Bed) -> None:
        found = await bed.dns.lookup(bed.stub.at, "a.example")
        assert (found.addresses, found.ttl_s) == (("192.0.2.9",), 5)

    run(reply, test)


def test_cnames_without_end_are_an_error() -> None:
    async def reply(query: dns.message.Message) -> list[bytes | None]:
        name, _ = asked(query)
        return [answer(query, f"{name} 5 IN CNAME x{name}.")]

    async def test(bed: Bed) -> None:
        with pytest.raises(DnsError, match="more than 8 CNAMEs") as caught:
            await bed.look("a.example")
        assert caught.value.answered

    run(reply, test)


def test_one_family_is_enough_where_the_other_fails() -> None:
    made = zone()

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        if asked(query)[1] == "AAAA":
            return [refusal(query, "SERVFAIL")]
        return await made.reply(query)

    async def test(bed: Bed) -> None:
        found = await bed.dns.lookup(bed.stub.at, "four.example")
        assert (found.addresses, found.ttl_s) == (("192.0.2.4",), 1)
        with pytest.raises(DnsError, match="SERVFAIL"):
            await bed.look("six.example")

    run(reply, test)


def test_one_family_is_enough_where_the_other_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.net.tunnel_dns.OTHER_FAMILY_S", 0.02)
    made = zone()

    async def reply(query: dns.message.Message) -> list[bytes | None]:
        return [] if asked(query)[1] == "AAAA" else await made.reply(query)

    async def test(bed: Bed) -> None:
        assert await bed.look("four.example") == ("192.0.2.4",)
        # The connection that has not answered is not waited on by others.
        assert len(await bed.look("both.example")) == 2
        assert bed.stub.connections == 2

    run(reply, test)


async def garbage(query: dns.message.Message) -> list[bytes | None]:
    return [framed(query.id.to_bytes(2, "big") + b"\xff" * 40)]


async def short(query: dns.message.Message) -> list[bytes | None]:
    return [b"\x00\x03abc"]


async def empty(query: dns.message.Message) -> list[bytes | None]:
    return [b"\x00\x00"]


async def noise(query: dns.message.Message) -> list[bytes | None]:
    return [b"HTTP/1.1 400 Bad Request\r\n\r\n", None]


async def half(query: dns.message.Message) -> list[bytes | None]:
    return [answer(query, "x 1 IN A 192.0.2.1")[:20], None]


async def nothing(query: dns.message.Message) -> list[bytes | None]:
    return [None]


async def flood(query: dns.message.Message) -> list[bytes | None]:
    other = dns.message.make_query("other.example", "A", id=(query.id + 1) % 65536)
    return [answer(other) for _ in range(100)]


async def truncated(query: dns.message.Message) -> list[bytes | None]:
    response = dns.message.make_response(query)
    response.flags |= 0x0200
    return [framed(response)]


async def of_somebody_else(query: dns.message.Message) -> list[bytes | None]:
    other = dns.message.make_query("evil.example", query.question[0].rdtype, id=query.id)
    return [answer(other, "evil.example 60 IN A 192.0.2.66")]


@pytest.mark.parametrize(
    "reply",
    [garbage, short, empty, noise, half, nothing, flood, truncated, of_somebody_else],
)
def test_whatever_a_server_sends_is_an_error_and_the_next_lookup_works(reply: Reply) -> None:
    async def test(bed: Bed) -> None:
        with pytest.raises(DnsError) as caught:
            await bed.look("four.example")
        assert not caught.value.answered
        assert str(bed.stub.at) in str(caught.value)
        bed.stub.reply = zone().reply
        assert await bed.look("four.example") == ("192.0.2.4",)

    run(reply, test)


async def silence(query: dns.message.Message) -> list[bytes | None]:
    return []


def test_a_silent_server_has_a_deadline() -> None:
    async def test(bed: Bed) -> None:
        with pytest.raises(DnsError, match="no answer within"):
            await bed.look("four.example")
        bed.stub.reply = zone().reply
        bed.dns._timeout_s = 20.0  # this one answers, if perhaps late on a busy machine
        assert await bed.look("four.example") == ("192.0.2.4",)
        assert bed.stub.connections == 2

    run(silence, test, timeout_s=0.05)


class Stuck:
    """A dialer that never answers, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        self.begun += 1
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def test_a_cancelled_lookup_leaves_nothing_while_it_dials() -> None:
    async def main() -> None:
        stuck = Stuck()
        dns = TunnelDns(asyncio.get_running_loop(), stuck)
        work = asyncio.ensure_future(dns.lookup(HostPort("127.0.0.1", 53), "four.example"))
        while not stuck.begun:
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        while asyncio.all_tasks() != {asyncio.current_task()}:
            await asyncio.sleep(0)
        assert (stuck.begun, stuck.cancelled) == (1, 1)
        assert repr(dns) == "<TunnelDns 0 names, 0 pending>"

    asyncio.run(main())


def test_a_cancelled_lookup_leaves_nothing_while_it_waits_for_the_answer() -> None:
    async def test(bed: Bed) -> None:
        work = [asyncio.ensure_future(bed.look("four.example")) for _ in range(2)]
        await bed.until(lambda: len(bed.stub.seen) == 2)
        work[0].cancel()
        await asyncio.sleep(0)
        assert bed.dns._pending  # the other waits still
        work[1].cancel()
        await asyncio.gather(*work, return_exceptions=True)
        assert not bed.dns._pending
        # Whoever comes in the same moment gets an asking of its own.
        bed.stub.reply = zone().reply
        assert await bed.look("four.example") == ("192.0.2.4",)

    run(silence, test)
