"""D: an agent and a server get SIGTERM under load: what fails, and how streams end.

A request that fails on one server is repeated on the other, as another kube-apiserver would do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from processes import BenchError

from hold.clients import FRONTENDS, LIMIT_S, LINKS, once, opened, run, service, until
from hold.ground import Ground
from hold.outcome import Outcome
from hold.patterns import Tally, pieces, trailer_of
from hold.programs import Agent, Program, Server
from hold.traffic import FAULTS, percentile
from isthmus.client.dialer import Dialer

LETTER, TITLE = "D", "an agent and a server told to stop, under requests and long streams"
#: The maximum number of concurrent requests.
AT_ONCE = 100
#: The time for a program to end after its grace period.
SPARE_S = 5.0
HOSTS = ("127.0.0.1", "127.0.0.2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario; half of the streams end within the grace period."""

    requests_per_s: int = 500
    streams: int = 40
    grace_s: int = 5
    lead_s: float = 2.0
    links: tuple[str, ...] = LINKS


FULL = Numbers()
QUICK = Numbers(streams=20, grace_s=3, lead_s=1.0)


@dataclass(slots=True)
class Seen:
    """The outcomes of requests and streams."""

    pending: int = 0
    answered: int = 0
    again: int = 0
    failed: list[str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    whole: int = 0
    cut: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 1.0


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Two servers and two agents over each kind of link; the first of each gets SIGTERM."""
    outcome = Outcome(LETTER, TITLE)
    for link in numbers.links:
        grace = f"--graceful-shutdown-timeout={numbers.grace_s}s"
        port = ground.space.free_port()
        servers = [
            ground.server(f"s{number}-{link}", grace, host=host, agent_port=port)
            for number, host in enumerate(HOSTS)
        ]
        hosts = [f"--proxy-server-host={host}" for host in HOSTS]
        agents = [
            ground.agent(
                f"a{number}-{link}", servers[0], grace, "--sync-interval=200ms", *hosts, link=link
            )
            for number in range(2)
        ]
        for victim in (agents[0], servers[0]):
            ground.say(f"D: {victim.kind}, {link} link")
            run(stop(outcome, ground, numbers, servers, agents, victim, link))
            ground.again(victim)
        for program in (*agents, *servers):
            ground.end(program)
    return outcome


async def stop(
    outcome: Outcome,
    ground: Ground,
    numbers: Numbers,
    servers: Sequence[Server],
    agents: Sequence[Agent],
    victim: Program,
    link: str,
) -> None:
    """Send SIGTERM under load, and wait until everything is over."""
    names = sorted(agent.name for agent in agents)
    for server in servers:
        await until(lambda s=server: s.peers() == names, "a full mesh")  # type: ignore[misc]
    # Streams use TLS: a UNIX socket cannot carry a reset.
    doors = {
        f"{frontend}-{carrier}-{number}": server.door(frontend, carrier)
        for number, server in enumerate(servers)
        for frontend in FRONTENDS
        for carrier in ("uds", "tls")
    }
    seen = Seen()
    async with service(doors) as clients:
        pairs, tls_pairs = (
            [[clients.dialer(f"{f}-{carrier}-{n}") for n in range(len(servers))] for f in FRONTENDS]
            for carrier in ("uds", "tls")
        )
        async with asyncio.TaskGroup() as work:
            address = ground.target.address()
            requests = work.create_task(ask_on(pairs, address, numbers, seen, work))
            streams = [
                work.create_task(stream(tls_pairs[n % 2][(n // 2) % 2], address, n, numbers, seen))
                for n in range(numbers.streams)
            ]
            await asyncio.sleep(numbers.lead_s)
            began = time.monotonic()
            victim.signal(signal.SIGTERM)
            took = await ended(victim) - began
            await asyncio.sleep(1.0)
            requests.cancel()
            seen.seconds = numbers.lead_s + time.monotonic() - began
            await asyncio.wait(streams, timeout=LIMIT_S)
    await asyncio.to_thread(ground.end, victim)
    write(outcome, f"{victim.kind} stops, {link} link", numbers, seen, took)
    outcome.count(
        f"{victim.kind} stops, {link} link: exit code", victim.child.process.returncode, 0
    )


async def ended(victim: Program) -> float:
    """Wait until a program has ended; returns that moment.

    Raises:
        BenchError: it did not end in time.
    """
    # The kernel notifies the event loop: polling would wait behind the requests.
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(victim.child.pid)
    loop.add_reader(descriptor, over.set)
    try:
        async with asyncio.timeout(LIMIT_S):
            await over.wait()
    except TimeoutError:
        raise BenchError(f"{victim.name} did not end within {LIMIT_S:.0f} s") from None
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return time.monotonic()


async def ask_on(
    pairs: Sequence[Sequence[Dialer]],
    address: str,
    numbers: Numbers,
    seen: Seen,
    work: asyncio.TaskGroup,
) -> None:
    """Send requests at a rate, until cancelled, without waiting for earlier ones."""
    began, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * numbers.requests_per_s)
        # A machine too slow for the rate gets fewer requests, not a queue.
        for number in range(sent, min(due, sent + AT_ONCE - seen.pending)):
            servers = pairs[number % 2]
            order = servers if (number // 2) % 2 else servers[::-1]
            seen.pending += 1
            work.create_task(request(order, address, seen))
        sent = due
        await asyncio.sleep(0.01)


async def request(order: Sequence[Dialer], address: str, seen: Seen) -> None:
    """One request, repeated on the other server if the first did not answer it."""
    try:
        await _request(order, address, seen)
    finally:
        seen.pending -= 1


async def _request(order: Sequence[Dialer], address: str, seen: Seen) -> None:
    began, faults = time.monotonic(), []
    for dialer in order:
        try:
            await once(dialer, address, 20.0)
        except FAULTS as exc:
            faults.append(repr(exc))
            continue
        seen.answered += 1
        seen.again += len(faults)
        seen.took.append(time.monotonic() - began)
        return
    seen.failed.append("; ".join(faults))


async def stream(dialer: Dialer, address: str, number: int, numbers: Numbers, seen: Seen) -> None:
    """A long stream: it must arrive whole, or be reset after a correct beginning."""
    # Two kinds: one ends well within the grace period, the other long after it.
    lasts = numbers.lead_s + numbers.grace_s * (0.4 if (number // 4) % 2 else 3)
    rate = 64 * 1024
    total = int(rate * lasts)
    connection = await opened(dialer, address, f"drip {number} {total} {rate}")
    tally = Tally()
    try:
        while data := await connection.read(timeout_s=LIMIT_S):
            tally.add(data)
    except ConnectionResetError:
        seen.cut += 1
        if not begins(tally, number, total):
            seen.wrong.append(f"stream {number}: wrong bytes before a reset")
        return
    except FAULTS as exc:
        seen.wrong.append(f"stream {number}: {exc!r}")
        return
    finally:
        connection.abort()
    if tally.trailer() == trailer_of(number, total):
        seen.whole += 1
    else:
        seen.wrong.append(f"stream {number}: a clean end after {tally.size} of {total} bytes")


def begins(tally: Tally, seed: int, total: int) -> bool:
    """Whether the received bytes are the beginning of the stream."""
    expected, left = Tally(), tally.size
    for piece in pieces(seed, total):
        expected.add(piece[:left])
        left -= min(left, len(piece))
        if not left:
            break
    return expected.trailer() == tally.trailer()


def write(outcome: Outcome, name: str, numbers: Numbers, seen: Seen, took: float) -> None:
    """The figures of one stop."""
    outcome.tell(f"{name}: requests answered", seen.answered)
    per_s = seen.answered / seen.seconds
    outcome.load(f"{name}: of these each second", per_s, 0.9 * numbers.requests_per_s, "/s")
    outcome.tell(f"{name}: made again on the other server", seen.again)
    outcome.count(f"{name}: requests that failed", len(seen.failed), 0)
    outcome.time(f"{name}: requests' p99", percentile(seen.took, 0.99) * 1000, "ms")
    outcome.tell(f"{name}: streams that came whole", seen.whole)
    # Of two servers or agents, the one that stops has long streams: cut, or nothing was proven.
    outcome.load(f"{name}: streams cut, seen as resets", seen.cut, 1)
    outcome.count(f"{name}: streams that ended wrongly", len(seen.wrong), 0)
    outcome.count(f"{name}: streams in all", seen.whole + seen.cut, numbers.streams)
    outcome.time(f"{name}: until it had ended", took, "s", at_most=numbers.grace_s + SPARE_S)
    outcome.notes += [f"{name}: {text}" for text in (seen.failed + seen.wrong)[:2]]
