"""B: an agent that is restarted, frozen or cut off: how long dials are still sent to it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hold.clients import FRONTENDS, LINKS, once, run, service, until
from hold.ground import Ground
from hold.network import HERE, Beside, beside
from hold.outcome import Outcome
from hold.programs import Agent, Server
from hold.traffic import FAULTS
from isthmus.client.dialer import Dialer

LETTER, TITLE = "B", "an agent closed, frozen, cut off: until it is not chosen"
CLOSED_GOAL_S, SILENT_GOAL_S = 1.0, 25.0
#: A dial that takes this long was sent to an agent that did not answer.
HARMED_S = 0.9
DIAL_S = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario."""

    pause_s: float = 0.1
    settle_s: float = 3.0
    watch_s: float = 40.0
    cases: tuple[str, ...] = ("closed", "frozen", "cut off")


FULL = Numbers()
QUICK = Numbers(cases=("closed", "frozen"))


@dataclass(slots=True)
class Dials:
    """Repeated dials through both frontends, each with its start time and its outcome."""

    dialers: list[Dialer]
    address: str
    pause_s: float
    done: list[tuple[float, float, str]] = field(default_factory=list)
    pending: set[asyncio.Task[None]] = field(default_factory=set)
    most_pending: int = 0

    async def go_on(self) -> None:
        """Start dials until cancelled, without waiting for earlier ones."""
        loop, turn = asyncio.get_running_loop(), 0
        while True:
            task = loop.create_task(self._dial(self.dialers[turn % len(self.dialers)]))
            self.pending.add(task)
            task.add_done_callback(self.pending.discard)
            self.most_pending = max(self.most_pending, len(self.pending))
            turn += 1
            await asyncio.sleep(self.pause_s)

    async def _dial(self, dialer: Dialer) -> None:
        began, fault = time.monotonic(), ""
        try:
            await once(dialer, self.address, DIAL_S)
        except FAULTS as exc:
            fault = repr(exc)
        self.done.append((began, time.monotonic() - began, fault))


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Both links at once: each with a server, an agent that stays and an agent that is harmed."""
    outcome = Outcome(LETTER, TITLE)
    cases = [case for case in numbers.cases if case != "cut off" or ground.alone]
    if len(cases) < len(numbers.cases):
        outcome.notes.append("cut off: left out, network namespaces need root")
    elsewhere = beside(ground.space) if "cut off" in cases else None
    host = HERE if elsewhere else "127.0.0.1"
    beds = [Bed(ground, numbers, link, host, elsewhere) for link in LINKS]
    run(both(outcome, ground, beds, cases, elsewhere))
    return outcome


class Bed:
    """A server and its two agents, over one kind of link."""

    def __init__(
        self, ground: Ground, numbers: Numbers, link: str, host: str, elsewhere: Beside | None
    ) -> None:
        self.ground, self.numbers, self.link = ground, numbers, link
        self.address = ground.target.address(host)
        self.server: Server = ground.server(f"s-{link}", host=host)
        self.stays: Agent = ground.agent(f"stays-{link}", self.server, link=link)
        self.victim: Agent = ground.agent(
            f"victim-{link}",
            self.server,
            link=link,
            inside=elsewhere.prefix if elsewhere else (),
        )

    async def linked(self) -> float:
        """Wait until both agents are chosen; returns how long that took."""
        return await until(
            lambda: self.server.has(self.stays.name) and self.server.has(self.victim.name),
            "both agents are linked",
        )

    async def suffer(self, harm: Callable[[], None]) -> tuple[float, Dials, float]:
        """Harm an agent under dials; returns when the server noticed, the dials, and the time."""
        async with service({name: self.server.door(name) for name in FRONTENDS}) as clients:
            dialers = [clients.dialer(name) for name in FRONTENDS]
            dials = Dials(dialers, self.address, self.numbers.pause_s)
            going = asyncio.get_running_loop().create_task(dials.go_on())
            try:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(harm)
                at = time.monotonic()
                noticed = await until(
                    lambda: not self.server.has(self.victim.name),
                    "the server notices",
                    self.numbers.watch_s,
                )
                await asyncio.sleep(self.numbers.settle_s)
            finally:
                going.cancel()
            async with asyncio.timeout(DIAL_S + 5):
                await asyncio.gather(*dials.pending)
        return noticed, dials, at


async def both(
    outcome: Outcome, ground: Ground, beds: list[Bed], cases: list[str], elsewhere: Beside | None
) -> None:
    """Each case on all beds at the same time."""
    for case in cases:
        ground.say(f"B: {case}")
        await asyncio.gather(*(bed.linked() for bed in beds))
        if case == "cut off":
            assert elsewhere is not None
            done = await asyncio.gather(
                beds[0].suffer(elsewhere.cut), *(bed.suffer(lambda: None) for bed in beds[1:])
            )
            elsewhere.mend()
        else:
            number = signal.SIGKILL if case == "closed" else signal.SIGSTOP
            done = await asyncio.gather(
                *(bed.suffer(partial(bed.victim.signal, number)) for bed in beds)
            )
        goal = CLOSED_GOAL_S if case == "closed" else SILENT_GOAL_S
        for bed, (noticed, dials, at) in zip(beds, done, strict=True):
            write(outcome, f"{case}, {bed.link} link", noticed, dials, at, goal)
        for bed in beds:
            if case == "closed":
                bed.ground.end(bed.victim)
                bed.ground.again(bed.victim)
            else:
                bed.victim.signal(signal.SIGCONT)
        ground.say(f"B: {case}, and back")
        for bed, took in zip(beds, await asyncio.gather(*(b.linked() for b in beds)), strict=True):
            how = "started again" if case == "closed" else "let go"
            outcome.time(f"{case}, {bed.link} link: {how}, chosen after", took, "s")


def write(
    outcome: Outcome, name: str, noticed: float, dials: Dials, at: float, goal: float
) -> None:
    """The figures of one case."""
    after = [(began - at, took, fault) for began, took, fault in dials.done if began + took > at]
    harmed = [began for began, took, fault in after if fault or took > HARMED_S]
    failed = [fault for _, _, fault in after if fault]
    outcome.time(f"{name}: until the server does not choose it", noticed, "s", at_most=goal)
    last = max([0.0, *harmed])
    outcome.time(f"{name}: last dial that was sent to it, after", last, "s", at_most=goal)
    outcome.tell(f"{name}: dials since it happened", len(after))
    outcome.tell(f"{name}: dials that took more than {HARMED_S} s", len(harmed))
    if goal == CLOSED_GOAL_S:
        outcome.count(f"{name}: dials that failed", len(failed), 0)
    else:  # no goal: a tunnel that was open already may be asked when its agent goes silent
        outcome.tell(f"{name}: dials that failed", len(failed))
    late = [fault for began, _, fault in after if fault and began > noticed]
    outcome.count(f"{name}: dials that failed and began when it was not chosen", len(late), 0)
    outcome.tell(f"{name}: dials pending at once, at most", dials.most_pending)
    if failed:
        outcome.notes.append(f"{name}: {failed[0]}")
    """All bytes moved so far, including those of open tunnels."""
    # Timed: the kernel determines how much a socket buffers.
    """The figures of a path."""
