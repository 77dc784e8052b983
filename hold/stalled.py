"""A: readers that stop reading, on both sides, and the effect on all others."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field

from processes import BenchError

from hold.clients import FRONTENDS, LINKS, opened, run, service, until
from hold.ground import Ground
from hold.outcome import Outcome
from hold.programs import Agent, Server
from hold.traffic import Sample, Steady, pour
from isthmus.client.dialer import Dialer
from isthmus.client.stream import Connection

LETTER, TITLE = "A", "readers that stop reading, beside 100 tunnels that go on"
P50_GOAL, P99_GOAL = 1.5, 3.0
#: The limit of received and unsent bytes on one link, in each of two programs, with a margin.
MEMORY_GOAL_MB = 320.0
MEASURED = (("answers", 0.5, P50_GOAL), ("answers", 0.99, P99_GOAL),
            ("dials", 0.5, P50_GOAL), ("dials", 0.99, P99_GOAL))  # fmt: skip
DIAL_PAUSE_S = 0.05
SETTLE_S = 8.0
#: The longest wait of others while so many tunnels fill up.
LONGEST_GOAL_S = 5.0
#: What is sent to a client and to an endpoint that do not read. Over a gRPC link everyone waits for
#: readers whose share is used up (tunnel/packet_brake.py), as with Go's programs: there the amount
#: is more than sockets buffer, and less than the share that 50 of them may use together.
MOST_BYTES: dict[str, tuple[int, int] | None] = {"mux": None, "grpc": (2_000_000, 4_500_000)}
WORDS = {"answers": "others", "dials": "new dials"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario."""

    rounds: int
    seconds: float
    tunnels: int = 100
    many: int = 50
    pause_s: float = 0.25
    frontends: tuple[str, ...] = FRONTENDS


FULL = Numbers(rounds=5, seconds=1.2)
QUICK = Numbers(rounds=2, seconds=1.0)


@dataclass(slots=True)
class Stalled:
    """Clients and endpoints that do not read, for as long as needed."""

    pouring: list[asyncio.Task[bool]] = field(default_factory=list)
    tunnels: list[Connection] = field(default_factory=list)

    async def begin(
        self, dialer: Dialer, address: str, number: int, most_bytes: tuple[int, int] | None
    ) -> None:
        """Open the tunnels, and send into all of them, without end or a given amount."""
        loop = asyncio.get_running_loop()
        to_client, to_endpoint = most_bytes or (None, None)
        job = "pour" if to_client is None else f"pour {to_client}"
        for _ in range(number):
            self.tunnels.append(await opened(dialer, address, job))  # never read
            unread = await opened(dialer, address, "stall")
            self.tunnels.append(unread)
            self.pouring.append(loop.create_task(pour(unread, to_endpoint)))

    async def end(self, ground: Ground) -> int:
        """Close them all; returns how many the programs had reset before."""
        reset = sum(tunnel.is_closing for tunnel in self.tunnels)
        for task in self.pouring:
            task.cancel()
        await asyncio.gather(*self.pouring, return_exceptions=True)
        for tunnel in self.tunnels:
            tunnel.abort()
        with suppress(OSError):
            await asyncio.to_thread(ground.target.ask, "release")
        return reset


@dataclass(slots=True)
class Way:
    """The measurements of one path: pairs of each round, by (how many, what, percentile).

    A pair is milliseconds alone and milliseconds beside the stalled tunnels.
    """

    name: str
    pairs: dict[tuple[int, str, float], list[tuple[float, float]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    stuck: int = 0
    longest_s: float = 0.0
    grown_mb: float = 0.0
    #: The number of stalled tunnels, and how many of them were still open at the measurement.
    stalled: int = 0
    reset: int = 0

    def add(self, number: int, alone: Sample, loaded: Sample) -> None:
        """Add one round."""
        self.stuck += alone.stuck + loaded.stuck
        for kind, share, _ in MEASURED:
            pair = (alone.millis(kind, share), loaded.millis(kind, share))
            if all(pair):  # without any answer the tunnels are stuck, and counted as such
                self.pairs.setdefault((number, kind, share), []).append(pair)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Each frontend over each link, one after the other, each with its own programs."""
    outcome = Outcome(LETTER, TITLE)
    for link in LINKS:
        for frontend in numbers.frontends:
            server, agent = ground.pair(link)
            way = Way(f"{frontend}, {link} link")
            ground.say(f"A: {way.name}")
            run(measure(ground, numbers, server, agent, frontend, link, way))
            write(outcome, way, numbers)
            for program in (server, agent):
                ground.end(program)
    return outcome


async def measure(
    ground: Ground,
    numbers: Numbers,
    server: Server,
    agent: Agent,
    frontend: str,
    link: str,
    way: Way,
) -> None:
    """Rounds of: alone, beside one stalled tunnel of each kind, alone, beside many."""
    address = ground.target.address()
    async with service({"way": server.door(frontend), "bad": server.door(frontend)}) as clients:
        dialer, bad = clients.dialer("way"), clients.dialer("bad")
        steady = Steady([dialer], address, pause_s=numbers.pause_s, dial_pause_s=DIAL_PAUSE_S)
        await steady.open(numbers.tunnels)
        await steady.measure(0.5)
        before_mb = server.memory_mb() + agent.memory_mb()

        async def beside(number: int, most_bytes: tuple[int, int] | None) -> tuple[Sample, int]:
            """Measure beside stalled tunnels; returns how many of those were reset."""
            steady.longest_s = 0.0
            stalled = Stalled()
            await stalled.begin(bad, address, number, most_bytes)
            await settle(server)
            loaded = await steady.measure(numbers.seconds)
            way.longest_s = max(way.longest_s, steady.longest_s)
            way.grown_mb = max(way.grown_mb, server.memory_mb() + agent.memory_mb() - before_mb)
            reset = await stalled.end(ground)
            await until(lambda: server.tunnels() <= numbers.tunnels + 8, "they are gone")
            await steady.answered()
            return loaded, reset

        for _ in range(numbers.rounds):
            for number in (1, numbers.many):
                alone = await steady.measure(numbers.seconds)
                loaded, reset = await beside(number, MOST_BYTES[link])
                way.add(number, alone, loaded)
                way.stalled += 2 * number
                way.reset += reset
        way.faults += steady.lost
        await steady.close()


async def settle(server: Server) -> None:
    """Wait until the stalled tunnels are full, up to a limit for slow machines."""
    with suppress(BenchError):
        await until(lambda: settled(server), "the stalled tunnels are full", SETTLE_S)


def settled(server: Server) -> bool:
    """Whether little data moves any more: the stalled tunnels are full."""
    first = moved(server)
    time.sleep(0.25)
    return moved(server) - first < 1_000_000


def moved(server: Server) -> int:
    """All bytes moved so far, including those of open tunnels."""
    return sum(link["sentBytes"] + link["receivedBytes"] for link in server.snapshot()["links"])


def write(outcome: Outcome, way: Way, numbers: Numbers) -> None:
    """The figures of a path."""
    for number in (1, numbers.many):
        for kind, share, goal in MEASURED:
            name = f"{way.name}, {number} stalled of each kind: {WORDS[kind]}' p{share * 100:.0f}"
            pairs = way.pairs.get((number, kind, share), [(0.0, math.inf)])
            alone, loaded = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(b / a if a else math.inf for a, b in pairs)
            unit = f"× alone ({alone:.1f} → {loaded:.1f} ms)"
            outcome.time(name, ratio, unit, at_most=goal)
    outcome.count(f"{way.name}: other tunnels or dials that failed", len(way.faults), 0)
    outcome.count(f"{way.name}: other tunnels or dials that stood still", way.stuck, 0)
    outcome.time(
        f"{way.name}: longest wait of the others, filling up too", way.longest_s, "s",
        at_most=LONGEST_GOAL_S,
    )  # fmt: skip
    outcome.time(f"{way.name}: memory grown", way.grown_mb, "MB", at_most=MEMORY_GOAL_MB)
    outcome.tell(f"{way.name}: tunnels that stalled", way.stalled)
    # Timed: the kernel determines how much a socket buffers.
    outcome.time(f"{way.name}: of these reset meanwhile", way.reset, "", at_most=0)
    outcome.notes += way.faults[:2]
