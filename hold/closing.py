"""H: send, half-close, await the reply; upload and close: every byte is counted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from hold.clients import FRONTENDS, LIMIT_S, LINKS, opened, run, send, service, swap
from hold.ground import Ground
from hold.outcome import Outcome
from hold.patterns import trailer_of
from hold.traffic import FAULTS
from isthmus.client.dialer import Dialer
from isthmus.dial.rules_connectivity import NetworkConnection as Door

LETTER, TITLE = "H", "half-closes and closes, every byte counted"
#: The sizes to send, in turn: nothing, little, about a buffer, and more than a buffer.
SIZES = (0, 1, 100, 4_096, 65_535, 65_536, 65_537, 200_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario: ``times`` of both forms together, on each of four paths."""

    times: int = 10_000
    at_once: int = 32


FULL = Numbers()
QUICK = Numbers(times=500)


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Both frontends over both links, one after the other."""
    outcome = Outcome(LETTER, TITLE)
    for link in LINKS:
        server, agent = ground.pair(link)
        for frontend in FRONTENDS:
            name = f"{frontend}, {link} link"
            ground.say(f"H: {name}")
            run(both_forms(outcome, ground, numbers, name, server.door(frontend)))
        for program in (agent, server):
            ground.end(program)
    outcome.notes += [
        "Isthmus' client sends half-closes on both frontends, its agents on both links",
        "konnectivity's own client and agents have no half-close: with them the second form holds",
    ]
    return outcome


async def both_forms(
    outcome: Outcome, ground: Ground, numbers: Numbers, name: str, door: Door
) -> None:
    """Both forms alternately; the target is asked about uploads afterwards."""
    address = ground.target.address()
    prefix = "-".join(name.replace(",", "").split())
    todo = iter(range(numbers.times))
    halves: list[str] = []
    uploads: list[str] = []

    async def work(dialer: Dialer) -> None:
        for number in todo:
            size = SIZES[(number // 2) % len(SIZES)]
            faults = uploads if number % 2 else halves
            try:
                if number % 2:
                    await upload(dialer, address, f"{prefix}-{number}", number, size)
                else:
                    await swap(dialer, address, seed=number, up=size, down=0)
            except* FAULTS as group:
                faults.append(f"{number}, {size} bytes: {group.exceptions[0]!r}")

    async with service({"way": door}) as clients:
        dialer = clients.dialer("way")
        await asyncio.gather(*(work(dialer) for _ in range(numbers.at_once)))
    wrong = await asyncio.to_thread(missing, ground, prefix, numbers.times)
    outcome.tell(f"{name}: sent, half-closed, answered", numbers.times // 2)
    outcome.count(f"{name}: of these wrong", len(halves), 0)
    outcome.tell(f"{name}: uploaded, closed", numbers.times // 2)
    outcome.count(f"{name}: of these incomplete", len(uploads) + len(wrong), 0)
    outcome.notes += (halves + uploads + wrong)[:3]


async def upload(dialer: Dialer, address: str, name: str, seed: int, size: int) -> None:
    """Send and close, without waiting for an answer."""
    connection = await opened(dialer, address, f"put {name}")
    try:
        await send(connection, seed, size)
    except BaseException:
        connection.abort()
        raise
    await connection.close(grace_s=0.0)


def missing(ground: Ground, prefix: str, times: int) -> list[str]:
    """The uploads that did not arrive complete within the time limit."""
    got: dict[str, object] = {}
    numbers = range(1, times, 2)
    deadline = time.monotonic() + LIMIT_S
    while len(got) < len(numbers) and time.monotonic() < deadline:
        got |= ground.target.ask(f"take {prefix}")
        time.sleep(0.05)
    wrong = []
    for number in numbers:
        size = SIZES[(number // 2) % len(SIZES)]
        expected = [size, trailer_of(number, size).hex(), "end"]
        found = got.get(f"{prefix}-{number}")
        if found != expected:
            said = found[::2] if isinstance(found, list) else "nothing"
            wrong.append(f"upload {number} of {size} bytes: {said}")
    return wrong
