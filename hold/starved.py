"""F: ten agents, one of which gets hardly any CPU: how many dials it is given.

It is stopped and continued repeatedly (SIGSTOP, SIGCONT): it runs 10 ms of every 100 ms. This needs
no privileges and no cgroup, and works the same on every machine.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hold.clients import FRONTENDS, LINKS, ask, opened, run, service, until
from hold.ground import Ground
from hold.outcome import Outcome
from hold.programs import Agent, Server
from hold.traffic import FAULTS, percentile
from isthmus.client.dialer import Dialer

LETTER, TITLE = "F", "ten agents, one starved of CPU: its share of dials"
RUNS_S, STOPS_S = 0.01, 0.09
#: As a ratio to a fair share.
SHARE_GOAL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario."""

    agents: int = 10
    seconds: float = 12.0
    #: The number of tunnels open at a time, each for ``lasts_s``.
    tunnels: int = 40
    lasts_s: float = 0.3
    links: tuple[str, ...] = LINKS


FULL = Numbers()
QUICK = Numbers(seconds=5.0, links=("mux",))


@dataclass(slots=True)
class Seen:
    """The durations of dials, and failures."""

    took: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Each link: first with all agents well, then with one starved."""
    outcome = Outcome(LETTER, TITLE)
    for link in numbers.links:
        server = ground.server(f"s-{link}")
        agents = [
            ground.agent(f"a{number}-{link}", server, link=link) for number in range(numbers.agents)
        ]
        ground.say(f"F: {link} link")
        run(both(outcome, ground, numbers, link, server, agents))
        for program in (*agents, server):
            ground.end(program)
    return outcome


async def both(
    outcome: Outcome,
    ground: Ground,
    numbers: Numbers,
    link: str,
    server: Server,
    agents: Sequence[Agent],
) -> None:
    """All well, then one starved; the agents themselves count the dials they were given."""
    names = sorted(agent.name for agent in agents)
    await until(lambda: server.peers() == names, "all agents are linked")
    victim, *others = agents
    async with service({name: server.door(name) for name in FRONTENDS}) as clients:
        dialers = [clients.dialer(name) for name in FRONTENDS]
        address = ground.target.address()
        well = await spell(dialers, address, numbers)
        before = await dials_of(agents)
        starving = asyncio.create_task(starve(victim))
        try:
            starved = await spell(dialers, address, numbers)
        finally:
            starving.cancel()
            await asyncio.gather(starving, return_exceptions=True)
            victim.signal(signal.SIGCONT)
        after = await dials_of(agents)
    given = {name: after[name] - before[name] for name in names}
    fair = sum(given.values()) / len(agents)
    name = f"{link} link"
    outcome.tell(f"{name}: dials in all", sum(given.values()))
    outcome.tell(f"{name}: dials of the starved agent", given[victim.name])
    share = given[victim.name] / max(1.0, fair)
    outcome.time(f"{name}: its share, of a fair one", share, "×", at_most=SHARE_GOAL)
    most = max(given[other.name] for other in others)
    outcome.time(f"{name}: the largest share", most / max(1.0, fair), "×")
    for words, seen in (("all well", well), ("one starved", starved)):
        outcome.time(f"{name}, {words}: dials' p50", percentile(seen.took, 0.5) * 1000, "ms")
        outcome.time(f"{name}, {words}: dials' p99", percentile(seen.took, 0.99) * 1000, "ms")
    outcome.count(f"{name}: dials that failed", len(well.faults) + len(starved.faults), 0)
    outcome.notes += (well.faults + starved.faults)[:2]


async def dials_of(agents: Sequence[Agent]) -> dict[str, int]:
    """The number of dials of each agent so far."""

    def ask_all() -> dict[str, int]:
        return {agent.name: int(agent.snapshot()["totals"]["dials"]) for agent in agents}

    return await asyncio.to_thread(ask_all)


async def starve(victim: Agent) -> None:
    """Let an agent run a tenth of the time, until cancelled."""
    while True:
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(STOPS_S)
        victim.signal(signal.SIGCONT)
        await asyncio.sleep(RUNS_S)


async def spell(dialers: Sequence[Dialer], address: str, numbers: Numbers) -> Seen:
    """Open tunnels that send a request and stay open for a while, repeatedly."""
    seen = Seen()
    over = time.monotonic() + numbers.seconds

    async def one(number: int) -> None:
        await asyncio.sleep(numbers.lasts_s * number / numbers.tunnels)
        while time.monotonic() < over:
            began = time.monotonic()
            try:
                connection = await opened(dialers[number % len(dialers)], address, "echo")
            except FAULTS as exc:
                seen.faults.append(repr(exc))
                continue
            seen.took.append(time.monotonic() - began)
            try:
                await ask(connection)
                await asyncio.sleep(numbers.lasts_s)
            except FAULTS as exc:
                seen.faults.append(repr(exc))
            finally:
                connection.abort()

    await asyncio.gather(*(one(number) for number in range(numbers.tunnels)))
    return seen
