"""J: a hundred thousand tunnels of mixed sizes and lifetimes: flat memory, correct checksums."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hold.cancelled import quiet, stable, write
from hold.clients import FRONTENDS, LINKS, once, run, service, swap
from hold.ground import Ground
from hold.outcome import Outcome
from hold.programs import Program
from hold.traffic import FAULTS
from isthmus.client.dialer import Dialer
from isthmus.dial.rules_connectivity import NetworkConnection as Door

LETTER, TITLE = "J", "100,000 tunnels of mixed sizes and lifetimes"
#: How much memory of each program may grow between the first quarter and the end.
FLAT_MB = 8.0
#: Sizes per direction and their frequency: mostly a request and an answer, rarely large data.
SIZES = ((0, 2), (200, 40), (2_000, 30), (16_000, 20), (100_000, 7), (1_000_000, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario; ``most_s`` limits the time on a slow machine."""

    tunnels: int = 100_000
    at_once: int = 100
    #: The percentage of tunnels that stay open and idle for up to a second.
    idle_of_100: int = 3
    most_s: float = 240.0


FULL = Numbers()
QUICK = Numbers(tunnels=8_000, most_s=60.0)


@dataclass(slots=True)
class Seen:
    """The results so far."""

    done: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)
    memory: dict[str, list[float]] = field(default_factory=dict)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """All four combinations of frontend and link at once."""
    outcome = Outcome(LETTER, TITLE)
    programs: list[Program] = []
    doors: dict[str, Door] = {}
    for link in LINKS:
        server, agent = ground.pair(link)
        programs += [server, agent]
        doors |= {f"{frontend}-{link}": server.door(frontend) for frontend in FRONTENDS}
    seen = Seen(memory={program.name: [] for program in programs})

    async def churn() -> None:
        async with service(doors) as clients:
            dialers = [clients.dialer(name) for name in doors]
            for dialer in dialers:
                await once(dialer, ground.target.address())
            await quiet(programs)
            baseline = {program.name: await stable(program) for program in programs}
            began = time.monotonic()
            await go_through(ground, numbers, dialers, programs, seen)
            outcome.load("tunnels", seen.done, at_least=numbers.tunnels)
            outcome.time("tunnels each second", seen.done / (time.monotonic() - began), "/s")
            await quiet(programs)
            for program in programs:
                await write(outcome, program, baseline[program.name])

    run(churn())
    figures(outcome, numbers, seen)
    return outcome


async def go_through(
    ground: Ground,
    numbers: Numbers,
    dialers: Sequence[Dialer],
    programs: Sequence[Program],
    seen: Seen,
) -> None:
    """Run the tunnels, with a limit on concurrency, and sample memory twenty times."""
    chance = random.Random(5)
    over = time.monotonic() + numbers.most_s
    numbered = iter(range(numbers.tunnels))
    address = ground.target.address()
    step = max(1, numbers.tunnels // 20)

    async def work() -> None:
        for number in numbered:
            if time.monotonic() > over:
                return
            await one(dialers[number % len(dialers)], address, number, chance, numbers, seen)
            if seen.done % step == 0:
                ground.say(f"J: {seen.done:,} tunnels")
                for program in programs:
                    seen.memory[program.name].append(program.memory_mb())

    await asyncio.gather(*(work() for _ in range(numbers.at_once)))


async def one(
    dialer: Dialer, address: str, number: int, chance: random.Random, numbers: Numbers, seen: Seen
) -> None:
    """One tunnel: bytes in both directions with checksums, perhaps after an idle time."""
    sizes, weights = zip(*SIZES, strict=True)
    up, down = chance.choices(sizes, weights, k=2)
    idle_s = chance.random() if chance.randrange(100) < numbers.idle_of_100 else 0.0
    try:
        await swap(dialer, address, seed=number, up=up, down=down, idle_s=idle_s)
    except* FAULTS as group:
        seen.faults.append(f"tunnel {number}, {up} up, {down} down: {group.exceptions[0]!r}")
    seen.done += 1
    seen.bytes += up + down


def figures(outcome: Outcome, numbers: Numbers, seen: Seen) -> None:
    """The figures, except those of what is left behind."""
    outcome.tell("bytes through them, all summed", seen.bytes / 1e6, "MB")
    outcome.count("tunnels that failed, or whose bytes were wrong", len(seen.faults), 0)
    outcome.notes += seen.faults[:3]
    for name, memory in seen.memory.items():
        quarter = max(1, len(memory) // 4)
        first, last = statistics.median(memory[:quarter]), statistics.median(memory[-quarter:])
        outcome.time(f"{name}: memory in the first quarter", first, "MB")
        outcome.time(f"{name}: memory grown since", max(0.0, last - first), "MB", at_most=FLAT_MB)
    if seen.done < numbers.tunnels:
        outcome.notes.append(f"stopped after {numbers.most_s:.0f} s, of {numbers.tunnels:,}")
