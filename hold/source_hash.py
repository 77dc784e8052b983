"""E: servers behind one source-hashed address, which are added, removed and replaced.

Servers find each other by Leases in a real kube-apiserver if its programs are built, otherwise by
``--peer-server``. Only mux links can be handed on: konnectivity's protocol does not support it. At
the end the server that passes links on is killed, and the failures are counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from signal import SIGKILL, SIGTERM, Signals

from processes import BenchError, Child

from hold import ROOT
from hold.clients import FRONTENDS, once, run, service
from hold.ground import Ground
from hold.kube_programs import built
from hold.outcome import Outcome
from hold.programs import Agent, Server, SilentError
from hold.traffic import FAULTS

LETTER, TITLE = "E", "servers behind one source-hashed address, replaced and scaled"
MESH_GOAL_S = 10.0
WATCH_S = 45.0
#: A mesh counts as full once it has been full for this long.
STEADY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The size of the scenario: the number of servers after each step, beginning with the start."""

    agents: int = 3
    sizes: tuple[int, ...] = (3, 2, 6, 3)
    dial_pause_s: float = 0.05
    leases: bool = True
    #: Longer than the goal: a slow server does not affect the others.
    grace_s: int = 12


FULL = Numbers()
QUICK = Numbers(agents=2, sizes=(2, 4, 2), grace_s=5)


@contextmanager
def lease_flags(ground: Ground, numbers: Numbers) -> Iterator[list[str] | None]:
    """Flags that let servers use Leases, during the block; None if that is not possible."""
    binaries = built() if numbers.leases else None
    if binaries is None:
        yield None
        return
    from kube.cluster import plain_control_plane

    with ExitStack() as stack:
        ground.say("E: etcd and kube-apiserver start")
        control_plane, _ = stack.enter_context(plain_control_plane(binaries))
        api = stack.enter_context(control_plane.apiserver())
        yield ["--enable-lease-controller", f"--kubeconfig={api.kubeconfig}"]


def scenario(ground: Ground, numbers: Numbers) -> Outcome:
    """Start, replace one server, and go through the sizes."""
    outcome = Outcome(LETTER, TITLE)
    with lease_flags(ground, numbers) as leases:
        how = "--peer-server" if leases is None else "Leases"
        outcome.notes.append(f"servers know each other by {how}")
        fleet = Fleet(ground, numbers, leases)
        run(fleet.play(outcome))
    return outcome


@dataclass(slots=True)
class Dialing:
    """Dials through every server that should serve, and the failures of one step."""

    done: int = 0
    faults: list[str] = field(default_factory=list)
    #: The first and the last failure of the step, relative to its start.
    began: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0

    def begin(self) -> None:
        """Start a step: reset the failures."""
        self.began = time.monotonic()
        self.faults.clear()

    def failed(self, what: str) -> None:
        """Count a failure."""
        self.last_s = time.monotonic() - self.began
        if not self.faults:
            self.first_s = self.last_s
        self.faults.append(what)


class Fleet:
    """The servers, their balancer and their agents."""

    def __init__(self, ground: Ground, numbers: Numbers, leases: list[str] | None) -> None:
        self.ground, self.numbers, self.leases = ground, numbers, leases
        # A port for every server that will exist: a draining one keeps its own.
        more = sum(max(0, b - a) for a, b in pairwise(numbers.sizes))
        self.ports = [ground.space.free_port() for _ in range(numbers.sizes[0] + 1 + more)]
        self.front_port = ground.space.free_port()
        self.servers: list[Server] = []
        self.stopping: list[Server] = []
        self.dialing: dict[str, asyncio.Task[None]] = {}
        self.dials = Dialing()
        self._started = 0
        self.balancer: Child = self._balancer()
        self.agents: list[Agent] = []

    def _balancer(self) -> Child:
        words = [
            sys.executable,
            "-m",
            "isthmus.lab.balancer",
            f"--listen=127.0.0.1:{self.front_port}",
        ]
        words += ["--by=source", *(f"--to=127.0.0.1:{port}" for port in self.ports)]
        return self.ground.space.start("balancer", words, env={"PYTHONPATH": str(ROOT / "src")})

    async def play(self, outcome: Outcome) -> None:
        """Every step, each until the mesh is full."""
        for _ in range(self.numbers.sizes[0]):
            self.add()
        for number in range(self.numbers.agents):
            agent = self.ground.agent(
                f"agent{number}", self.servers[0], f"--proxy-server-port={self.front_port}",
                "--proxy-server-host=127.0.0.1",
            )  # fmt: skip
            self.agents.append(agent)
        await self._step(outcome, f"{len(self.servers)} servers start", lambda: None, goal=False)
        await self._step(outcome, "one is replaced by another", self._replace)
        before = len(self.servers)
        for size in self.numbers.sizes[1:]:
            await self._step(outcome, f"{before} → {size} servers", lambda s=size: self._scale(s))  # type: ignore[misc]
            before = size
        await self._step(outcome, "the one in between is killed", self._kill, goal=False)
        for task in self.dialing.values():
            task.cancel()
        outcome.tell("dials on the way", self.dials.done)

    def add(self) -> None:
        """Start another server, under a new id."""
        port = self.ports[self._started]
        name = f"server{self._started}"
        self._started += 1
        if self.leases is None:
            ids = enumerate(self.ports)
            more = [f"--peer-server=server{n}=127.0.0.1:{each}" for n, each in ids]
        else:
            more = [f"--advertise-agent-address=127.0.0.1:{port}", *self.leases]
        more.append(f"--graceful-shutdown-timeout={self.numbers.grace_s}s")
        self.servers.append(self.ground.server(name, *more, agent_port=port))

    def _stop(self, server: Server, by: Signals = SIGTERM) -> None:
        """Signal a server to end; no more dials go through it."""
        self.servers.remove(server)
        self.stopping.append(server)
        if server.name in self.dialing:
            self.dialing.pop(server.name).cancel()
        server.signal(by)

    def _replace(self) -> None:
        self._stop(self.servers[0])
        self.add()

    def _scale(self, size: int) -> None:
        while len(self.servers) > size:
            self._stop(self.servers[0])
        while len(self.servers) < size:
            self.add()

    def _kill(self) -> None:
        self._stop(max(self.servers, key=Server.passing), SIGKILL)

    async def _step(
        self, outcome: Outcome, name: str, change: Callable[[], None], *, goal: bool = True
    ) -> None:
        self.ground.say(f"E: {name}")
        self.dials.begin()
        change()
        longest, whole = await self._watch()
        at_most = MESH_GOAL_S if goal else None
        outcome.time(f"{name}: longest without a full mesh", longest, "s", at_most=at_most)
        outcome.time(f"{name}: mesh full for good after", whole, "s")
        if self.dialing:
            self._tell_dials(outcome, name, goal=goal)
        for server in self.servers:
            if server.name not in self.dialing:
                self.dialing[server.name] = asyncio.create_task(self._dial_on(server))
        await asyncio.sleep(1.0)

    def _tell_dials(self, outcome: Outcome, name: str, *, goal: bool) -> None:
        dials = self.dials
        if goal:
            outcome.count(f"{name}: dials that failed", len(dials.faults), 0)
        else:
            outcome.tell(f"{name}: dials that failed", len(dials.faults))
        if dials.faults:
            when = f"{dials.first_s:.1f}–{dials.last_s:.1f} s after its beginning"
            outcome.notes.append(f"{name}, {when}: {', '.join(sorted(set(dials.faults))[:3])}")

    async def _watch(self) -> tuple[float, float]:
        """Watch until no server is stopping and the mesh stays full.

        Returns the longest time without a full mesh, and the time until it was full for good; both
        include the start of a new server.

        Raises:
            BenchError: the mesh did not become full in time.
        """
        began = since = time.monotonic()
        longest = whole = 0.0
        full = False
        while True:
            now_full = await asyncio.to_thread(self._meshed)
            now = time.monotonic()
            if not now_full:
                longest = max(longest, now - (since if not full else now))
                whole = now - began
            if now_full != full:
                full, since = now_full, now
            self.stopping = [s for s in self.stopping if s.child.process.poll() is None]
            if full and not self.stopping and now - since > STEADY_S:
                return longest, whole
            if now - began > WATCH_S:
                raise BenchError(f"no full mesh within {WATCH_S:.0f} s")
            await asyncio.sleep(0.05)

    def _meshed(self) -> bool:
        """Whether every server that should serve has every agent, once."""
        agents = sorted(agent.name for agent in self.agents)
        try:
            return all(server.peers() == agents for server in self.servers)
        except SilentError:
            return False

    async def _dial_on(self, server: Server) -> None:
        address = self.ground.target.address()
        async with service({name: server.door(name) for name in FRONTENDS}) as clients:
            while True:
                for name in FRONTENDS:
                    try:
                        await once(clients.dialer(name), address, 10.0)
                        self.dials.done += 1
                    except FAULTS as exc:
                        self.dials.failed(f"{server.name}: {exc!r}")
                    await asyncio.sleep(self.numbers.dial_pause_s)
