"""Accepts for the workers, and hands each connection to one of them.

A client goes to the least loaded worker: the load is what it had open at its last report, plus what
it was handed since. An agent goes to the worker that its ClientHello asks for, or to the next in
turn for its address; the hello is only peeked at, and the worker still reads it. Connections
without a hello yet are strangers: if there are too many, the source with the most of them loses
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from isthmus.frame.part import BoundSocket, WorkerPlan
from isthmus.frame.workers.metrics import NotHanded, WorkersMetrics
from isthmus.frame.workers.process import Worker
from isthmus.links.link import HANDSHAKE_S
from isthmus.logs import OncePer
from isthmus.net.connection_gate import reset, source_at
from isthmus.net.listen import Listener
from isthmus.net.peek import HelloPeek
from isthmus.net.poller import Poller
from isthmus.net.rules_slots import Strangers
from isthmus.net.systemd import PassedSocket
from isthmus.wire.alpn import asked_for
from isthmus.wire.client_hello import ClientHello

#: Most connections that wait because no worker takes them now; the size of a listener's queue.
MOST_WAITING = 4096
#: Most agents whose hello has not arrived yet.
MOST_LOOKING = 1024
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.workers")
#: Most addresses whose next worker is remembered; the oldest are forgotten.
MOST_SOURCES = 4096


class Doorman:
    """Every listener of a program, and the workers that get their connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        plan: WorkerPlan,
        workers: Sequence[Worker],
        ids: Mapping[str, Worker],
        *,
        metrics: WorkersMetrics,
        once: OncePer,
    ) -> None:
        """``ids`` are the workers' ids, which agents may ask for."""
        self._loop = loop
        self._poller = poller
        self._plan = plan
        self._workers = workers
        self._ids = ids
        self._metrics = metrics
        self._once = once
        self._turns = InTurn(random.shuffle)
        self._waiting: deque[tuple[str, socket.socket]] = deque()
        self._looking: Strangers[HelloPeek] = Strangers(MOST_LOOKING)
        self._bound: list[BoundSocket] = []
        self._frontends: list[Listener] = []
        self._agents: list[Listener] = []
        self.where: dict[str, list[tuple[str, int]]] = {}

    @property
    def listeners(self) -> list[Listener]:
        """The open doors, stopped or not."""
        return [*self._frontends, *self._agents]

    def bind(self) -> None:
        """Bind all listeners without accepting yet.

        Raises:
            ConfigError: an address cannot be bound; ``close`` closes the others.
        """
        for bound in self._plan.bind():
            self._bound.append(bound)
            if bound.sock.family != socket.AF_UNIX:
                host, port = bound.sock.getsockname()[:2]
                self.where.setdefault(bound.flag, []).append((str(host), int(port)))

    def open(self) -> None:
        """Begin to accept."""
        bound, self._bound = self._bound, []
        for flag, sock, for_agents in bound:
            accept = partial(self._agent if for_agents else self._client, flag)
            listener = Listener(self._loop, self._poller, sock, accept)
            (self._agents if for_agents else self._frontends).append(listener)

    # Clients.

    def _client(self, flag: str, sock: socket.socket) -> None:
        if self._plan.refuses(sock):
            self._refuse(NotHanded.REFUSED, sock)
        elif self._waiting or not self._give(flag, sock):
            if not any(worker.running for worker in self._workers):
                self._refuse(NotHanded.NO_WORKER, sock)
            elif len(self._waiting) >= MOST_WAITING:
                self._refuse(NotHanded.TOO_MANY, sock)
            else:
                self._waiting.append((flag, sock))

    def _give(self, flag: str, sock: socket.socket) -> bool:
        """Hand a client to the least loaded worker that takes it."""
        left = [worker for worker in self._workers if worker.running]
        while True:
            chosen = least_loaded(left)
            if chosen is None:
                return False
            try:
                if chosen.give(flag, sock):
                    sock.close()
                    return True
            except OSError:
                sock.close()  # broken: no worker could take it
                return True
            left.remove(chosen)

    def hand_waiting(self) -> None:
        """A worker may take connections again."""
        while self._waiting:
            flag, sock = self._waiting[0]
            if not self._give(flag, sock):
                break
            self._waiting.popleft()
        if self._waiting and not any(worker.running for worker in self._workers):
            for _, sock in self._waiting:
                self._refuse(NotHanded.NO_WORKER, sock)
            self._waiting.clear()

    # Agents.

    def _agent(self, flag: str, sock: socket.socket) -> None:
        try:
            source = source_at(sock)
        except OSError:  # the client has disconnected
            sock.close()
            return
        if self._looking.is_full_for(source):
            self._refuse(NotHanded.CROWD, sock)
            return
        crowded_out = self._looking.must_leave()
        if crowded_out is not None:
            self._looking.remove(crowded_out)
            self._count(NotHanded.CROWD)
            crowded_out.close()
        look = HelloPeek(
            self._loop, self._poller, sock, timeout_s=HANDSHAKE_S,
            seen=partial(self._seen, flag), lost=self._lost,
        )  # fmt: skip
        self._looking.add(look, source)

    def _seen(self, flag: str, look: HelloPeek, hello: ClientHello, events: int) -> None:
        self._looking.remove(look)
        sock = look.sock
        self._poller.release(sock)
        wanted = self._ids.get(asked_for(hello.alpn))
        # Not handed to another worker: the agent asked for this one, and will try again.
        chosen = self._next(sock) if wanted is None else wanted if wanted.running else None
        try:
            if chosen is not None and chosen.give(flag, sock):
                sock.close()
                return
        except OSError:
            sock.close()
            return
        self._refuse(
            NotHanded.NO_WORKER if wanted is None
            else NotHanded.TOO_MANY if wanted.running
            else NotHanded.NOT_RUNNING,
            sock,
        )  # fmt: skip

    def _next(self, sock: socket.socket) -> Worker | None:
        try:
            source = str(sock.getpeername()[0])
        except OSError:
            source = ""  # the agent is gone, which the worker will notice
        return self._turns.choose(source, [worker for worker in self._workers if worker.running])

    def _lost(self, look: HelloPeek, late: bool) -> None:
        self._looking.remove(look)
        self._metrics.not_handed[NotHanded.NO_HELLO] += 1

    def _refuse(self, why: NotHanded, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            reset(sock)
        self._count(why)

    def _count(self, why: NotHanded) -> None:
        self._metrics.not_handed[why] += 1
        self._once.log(
            ("refused", why), _QUIET_S, _log, logging.WARNING, "connection refused: no worker",
            reason=why.value,
        )  # fmt: skip

    # The end.

    def drain(self, *, elsewhere: bool) -> None:
        """Stop accepting clients, and agents as well if they can go ``elsewhere``.

        Like a single server: with other servers behind the same address, agents that look for them
        would keep reaching this one.
        """
        for listener in self._frontends:
            listener.stop()
        if elsewhere:
            for listener in self._agents:
                listener.stop()
        self.hand_waiting()

    def close(self) -> None:
        """Stop accepting, and drop the connections that wait."""
        for listener in self.listeners:
            listener.stop()
        for _, sock, _ in self._bound:
            if sock.family == socket.AF_UNIX and not isinstance(sock, PassedSocket):
                # A listener that was opened would have removed the file.
                Listener(self._loop, self._poller, sock, socket.socket.close).stop()
            else:
                sock.close()
        self._bound.clear()
        for look in list(self._looking):
            self._looking.remove(look)
            look.close()
        for _, sock in self._waiting:
            sock.close()
        self._waiting.clear()


class Candidate(Protocol):
    """The interface of a worker that choosing needs."""

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def ready(self) -> bool:
        """Whether it could serve a client now."""

    @property
    def load(self) -> int:
        """Its load, as far as is known."""


C = TypeVar("C", bound=Candidate)


def least_loaded(running: Sequence[C]) -> C | None:
    """Choose for a client, among the ready workers if there are any; None without workers."""
    ready = [worker for worker in running if worker.ready]
    return min(ready or running, key=lambda worker: worker.load, default=None)


class InTurn:
    """Chooses for an agent that asks for no worker: the workers in turn for each address.

    konnectivity's agents reconnect until they have found as many servers as they were told of, so
    every worker comes once before any comes twice. The order changes each time: with a fixed order,
    two agents behind one address could keep getting the same workers.
    """

    def __init__(self, shuffle: Callable[[list[int]], None]) -> None:
        self._shuffle = shuffle
        self._left: OrderedDict[str, list[int]] = OrderedDict()

    def choose(self, source: str, running: Sequence[C]) -> C | None:
        """Choose a worker; None without any."""
        by_index = {worker.index: worker for worker in running}
        if not by_index:
            return None
        left = [index for index in self._left.pop(source, ()) if index in by_index]
        if not left:
            left = list(by_index)
            self._shuffle(left)
        chosen = left.pop()
        self._left[source] = left
        if len(self._left) > MOST_SOURCES:
            self._left.popitem(last=False)
        return by_index[chosen]
