"""C: thousands of dials at once, half of them cancelled at any moment: what is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hold.clients import FRONTENDS, LIMIT_S, LINKS, ask, opened, run, service, until
from hold.ground import Ground
from hold.outcome import Outcome
from hold.programs import Counts, Program
from hold.traffic import FAULTS
from isthmus.client.dialer import Dialer
from isthmus.dial.rules_connectivity import NetworkConnection as Door

LETTER, TITLE = "C", "2,000 dials at once, half of them given up, again and again"
#: How much memory of server and agent may grow between the first rounds and the last.
FLAT_MB = 8.0
FIRST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario."""

    dials: int = 2_000
    rounds: int = 20
    given_up_within_s: float = 1.0


FULL = Numbers()
QUICK = Numbers(rounds=6, dials=1_000)


@dataclass(slots=True)
class Tally:
    """The outcomes of the dials."""

    answered: int = 0
    given_up: int = 0
    #: How many of these were cancelled before the dial was answered.
    undialed: int = 0
    faults: list[str] = field(default_factory=list)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Both frontends and both links in every round: a quarter of the dials each."""
    outcome = Outcome(LETTER, TITLE)
    programs: list[Program] = []
    doors: dict[str, Door] = {}
    for link in LINKS:
        server, agent = ground.pair(link)
        programs += [server, agent]
        doors |= {f"{frontend}-{link}": server.door(frontend) for frontend in FRONTENDS}
    memory: dict[str, list[float]] = {program.name: [] for program in programs}
    tally = Tally()

    async def rounds() -> None:
        async with service(doors) as clients:
            dialers = [clients.dialer(name) for name in doors]
            address = ground.target.address()
            await one_round(dialers, address, 40, numbers, tally, 0)  # warms up
            await quiet(programs)
            baseline = {program.name: await stable(program) for program in programs}
            tally.answered = tally.given_up = tally.undialed = 0
            for number in range(numbers.rounds):
                ground.say(f"C: round {number + 1} of {numbers.rounds}")
                await one_round(dialers, address, numbers.dials, numbers, tally, number + 1)
                await quiet(programs)
                for program in programs:
                    memory[program.name].append(program.memory_mb())
            for program in programs:
                await write(outcome, program, baseline[program.name])

    run(rounds())
    outcome.tell("dials that were answered", tally.answered)
    outcome.tell("dials that were given up", tally.given_up)
    outcome.tell("of these before they were answered", tally.undialed)
    outcome.count("dials that failed", len(tally.faults), 0)
    outcome.notes += sorted(set(tally.faults))[:3]
    for name, seen in memory.items():
        first = max(seen[: min(FIRST_ROUNDS, len(seen) // 2)])
        grown = max(0.0, min(seen[-2:]) - first)
        outcome.time(f"{name}: memory after the first rounds", first, "MB")
        outcome.time(f"{name}: memory grown since", grown, "MB", at_most=FLAT_MB)
    left = ground.target.ask("count")["open"]
    assert isinstance(left, int)
    outcome.count("connections left at the target", left, 0)
    return outcome


async def one_round(
    dialers: Sequence[Dialer], address: str, dials: int, numbers: Numbers, tally: Tally, seed: int
) -> None:
    """Start dials at the same moment, and cancel every second one at a random moment."""
    chance = random.Random(seed)
    within = numbers.given_up_within_s
    tasks = [
        asyncio.create_task(
            one(dialers[number % len(dialers)], address, tally,
                chance.uniform(0.0, within) if (number // len(dialers)) % 2 else None)
        )
        for number in range(dials)
    ]  # fmt: skip
    async with asyncio.timeout(2 * LIMIT_S):
        await asyncio.gather(*tasks)


async def one(dialer: Dialer, address: str, tally: Tally, moment: float | None) -> None:
    """A dial and a request; whatever is in progress at the moment is cancelled."""
    dialed = False
    try:
        async with asyncio.timeout(moment):
            connection = await opened(dialer, address, "echo")
            dialed = True
            try:
                await ask(connection)
                if moment is not None:
                    await asyncio.sleep(moment)
                connection.write_eof()
                await connection.read()
            finally:
                connection.abort()
            tally.answered += 1
    except FAULTS as exc:
        if isinstance(exc, TimeoutError) and moment is not None:
            tally.given_up += 1
            tally.undialed += not dialed
        else:
            tally.faults.append(repr(exc))


async def quiet(programs: Sequence[Program]) -> None:
    """Wait until no program carries a tunnel."""
    for program in programs:
        await until(lambda p=program: p.tunnels() == 0, "tunnels end")  # type: ignore[misc]


async def stable(program: Program) -> Counts:
    """What a program holds, once two counts are equal."""
    counts = await asyncio.to_thread(program.counts)
    for _ in range(50):
        again = await asyncio.to_thread(program.counts)
        if again == counts:
            break
        counts = again
    return counts


async def write(outcome: Outcome, program: Program, baseline: Counts) -> None:
    """Compare with the baseline, once the counts are back to it or the time is over."""
    seen = await asyncio.to_thread(program.counts)
    for _ in range(100):
        if seen == baseline:
            break
        await asyncio.sleep(0.1)
        seen = await asyncio.to_thread(program.counts)
    for kind in ("descriptors", "tasks", "streams", "tunnels"):
        was = getattr(baseline, kind)
        outcome.count(f"{program.name}: {kind}", getattr(seen, kind), was)
