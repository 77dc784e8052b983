"""The connections from an agent's node to the control plane, and the choice of their servers.

One of them, until its tunnel stands, is node_connection.py; the ports are
node_listeners.py.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum

from isthmus.dial.frontends.peers import peer_address
from isthmus.dial.rules_denials import Denials
from isthmus.frame.model.snapshot import NodeFailureView
from isthmus.frame.observe.node_traffic import NodeMetrics, NodeResult
from isthmus.frame.observe.tracing import Tracing
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.agent_side import ServerLink
from isthmus.logs import OncePer, log
from isthmus.net.deadlines import Deadlines
from isthmus.net.descriptors import descriptors
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.agent.node_connection import FRONTEND, NodeConnection
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.tunnel.budget import UNBOUNDED, Budget
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import NOTHING, AgentId, DialId, DialOutcome, HostPort, Identity

MOST_WAITING = 1024
MOST_CONNECTIONS = 16_384
#: How long a server that answers nothing is left alone while another can be asked.
SILENT_S = 60.0
#: The same for one that knows how to answer: it may be frozen, and then has the least to do of all.
LATE_S = 30.0
_QUIET_S = 60.0
_SAY_AGAIN_S = 3600.0
_MOST_FAILURES = 100
_log = logging.getLogger("isthmus.agent")


class Carries(Enum):
    """Whether a server carries node traffic, as far as it said."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def carries(link: ServerLink) -> Carries:
    """Ask what the server said of its gates; konnectivity's own says nothing."""
    if link.features is None:
        return Carries.UNKNOWN
    return Carries.YES if CLUSTER_TO_MASTER in link.features else Carries.NO


class NodeConnections:
    """Every connection from the node, and the choice of the servers that are asked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        *,
        links: Callable[[], Iterable[ServerLink]],
        tunnels: TunnelTable,
        metrics: NodeMetrics,
        once: OncePer,
        agent_id: AgentId,
        wait_s: float,
        dial_timeout_s: float,
        tracing: Callable[[], Tracing | None] = lambda: None,
        budget: Budget = UNBOUNDED,
    ) -> None:
        """``wait_s`` is for finding a server, ``dial_timeout_s`` for the answer of each.

        All of it has as long as the longer of the two, however many servers are asked.
        """
        self._loop = loop
        self._poller = poller
        self.budget = budget
        self._links = links
        self._tunnels = tunnels
        self._once = once
        self._tracing = tracing
        self.agent_id = agent_id
        self._silent: dict[int, float] = {}  # link ids, and when they were left alone
        self._late: dict[int, float] = {}  # the same of servers that know how to answer
        self._ids = itertools.count(1)
        self._pending: set[NodeConnection] = set()
        self._failures: deque[NodeFailureView] = deque(maxlen=_MOST_FAILURES)
        self._denials = Denials()
        self._leaving = False
        self._waits: Deadlines[NodeConnection] = Deadlines(
            loop, wait_s, NodeConnection.waited_enough
        )
        self._most_s = max(wait_s, dial_timeout_s)
        self._ends: Deadlines[NodeConnection] = Deadlines(loop, self._most_s, NodeConnection.expire)
        self.attempts: Deadlines[NodeConnection] = Deadlines(
            loop, dial_timeout_s, NodeConnection.unanswered
        )
        # Each takes a descriptor: half of them are for links, ports and the control plane's dials.
        self.most = min(MOST_CONNECTIONS, max(2, descriptors() // 2))
        self.metrics = metrics
        self.dial_timeout_s = dial_timeout_s
        self.open = 0

    @property
    def waiting(self) -> int:
        """How many have no tunnel yet."""
        return len(self._pending)

    # Their life.

    def accept(self, destination: HostPort, sock: socket.socket) -> None:
        """Take a connection that was accepted for a destination."""
        if self.waiting >= MOST_WAITING or self.waiting + self.open >= self.most:
            self.refuse(destination, sock, NodeResult.TOO_MANY)
            return
        connection = NodeConnection(self, destination, _requester(sock))
        connection.patient = not self._leaving
        connection.end = SocketEnd(sock, self._poller, connection)
        self._pending.add(connection)
        self._waits.add(connection)
        self._ends.add(connection)
        tracing = self._tracing()
        if tracing is not None:
            connection.trace = tracing.begin(
                NOTHING, connection_id=connection.request.connection_id, frontend=FRONTEND,
                requester=connection.request.requester.name,
            )  # fmt: skip
            connection.trace.target(destination)
        connection.attempt()

    def refuse(self, destination: HostPort, sock: socket.socket, result: NodeResult) -> None:
        """Reset a connection that is not even begun with."""
        connection = NodeConnection(self, destination, _requester(sock))
        SocketEnd(sock, self._poller).abort(Ending.CANCELLED)
        self.failed(connection, result, result.value)

    def links_changed(self) -> None:
        """Let those that wait for a server look again."""
        present = {link.id for link in self._links()}
        self._silent = {each: at for each, at in self._silent.items() if each in present}
        self._late = {each: at for each, at in self._late.items() if each in present}
        for connection in [each for each in self._pending if not each.asks]:
            connection.attempt()

    def forget(self, connection: NodeConnection) -> None:
        """It waits no more, for whatever reason."""
        self._waits.remove(connection)
        self._ends.remove(connection)
        self.attempts.remove(connection)
        self._pending.discard(connection)

    def joined(
        self, connection: NodeConnection, end: SocketEnd, stream: BaseEnd, link: ServerLink
    ) -> None:
        """The destination is reached: join."""
        took_s = time.monotonic() - connection.accepted_at
        self.metrics.joined(took_s, connection.request.connection_id)
        self._denials.other()
        self.open += 1
        self._tunnels.open(
            connection.request,
            DialOutcome(self.agent_id, link.id),
            client=end,
            far=stream,
            on_ended=self._ended,
        )

    def _ended(self, tunnel: Tunnel, lived_s: float) -> None:
        self.open -= 1

    def failed(self, connection: NodeConnection, result: NodeResult, reason: str) -> None:
        """A client was reset: count it, and say why, not too often."""
        request = connection.request
        self.metrics.ended(result)
        if result is NodeResult.DENIED:
            self._denials.denied(str(request.target), now=time.monotonic())
        elif result not in (NodeResult.OUTSIDE, NodeResult.DRAINED):
            self._denials.other()
        self._failures.appendleft(
            NodeFailureView(
                client=request.requester.name,
                destination=str(request.target),
                result=result.name.lower(),
                reason=reason,
                age_s=time.monotonic(),  # becomes an age when it is shown
                connection_id=request.connection_id,
            )
        )
        self._once.log(
            ("node", result, request.target), _QUIET_S, _log, logging.WARNING,
            "reset a connection from the node", destination=str(request.target),
            reason=reason, client=request.requester.name, connection=request.connection_id,
        )  # fmt: skip

    def denied(self) -> str:
        """Say that every recent connection was denied; empty when that is not so."""
        return self._denials.trouble(now=time.monotonic())

    def failures(self) -> tuple[NodeFailureView, ...]:
        """Those that were reset last, newest first."""
        now = time.monotonic()
        return tuple(replace(each, age_s=now - each.age_s) for each in self._failures)

    def time_for(self, connection: NodeConnection) -> float:
        """How long a server that is asked now has, in seconds; at least a little."""
        left_s = connection.accepted_at + self._most_s - time.monotonic()
        return max(0.001, min(self.dial_timeout_s, left_s))

    def next_id(self) -> DialId:
        """Number a dial."""
        return DialId(next(self._ids))

    # The servers.

    def choose(self, tried: Iterable[ServerLink]) -> ServerLink | None:
        """The least loaded link that may carry it; silent, stuck and unsure ones come last."""
        able = [
            link
            for link in self._links()
            if link.can_open and carries(link) is not Carries.NO and link not in tried
        ]
        if not able:
            return None
        now = self._loop.time()
        return min(able, key=lambda link: (self._avoid(link, now), link.weight))

    def _avoid(self, link: ServerLink, now: float) -> int:
        silent = now - self._silent.get(link.id, -math.inf) < SILENT_S
        late = now - self._late.get(link.id, -math.inf) < LATE_S
        stuck = late or not link.takes_dials
        return 4 * silent + 2 * stuck + (carries(link) is Carries.UNKNOWN)

    @property
    def is_full(self) -> bool:
        """There is a server, and its link carries all that it can."""
        return any(link.full for link in self._links() if carries(link) is not Carries.NO)

    def is_silent(self, link: ServerLink) -> bool:
        """It did not answer when it was last asked."""
        return link.id in self._silent

    def silent(self, link: ServerLink) -> None:
        """A server did not answer in time: others first, for a while."""
        self.metrics.unanswered += 1
        if carries(link) is not Carries.UNKNOWN:
            self._late[link.id] = self._loop.time()
            return  # one of ours, which knows how to answer: no reason to think more
        self._silent[link.id] = self._loop.time()
        self._once.log(
            ("silent", link.server_id), _SAY_AGAIN_S, _log, logging.WARNING,
            "the server did not answer a connection from the node: konnectivity's own server"
            " carries none, only a server of Isthmus with the feature gate"
            f" {CLUSTER_TO_MASTER} does",
            server_id=link.server_id, address=link.peer_address, within_s=self.dial_timeout_s,
        )  # fmt: skip

    def is_overdue(self, asked_at: float) -> bool:
        """A server that was asked then had the time that each of them has."""
        return time.monotonic() - asked_at >= self.dial_timeout_s

    def heard(self, link: ServerLink) -> None:
        """A server answered."""
        self._silent.pop(link.id, None)
        self._late.pop(link.id, None)

    # The end.

    def leave(self) -> None:
        """The agent drains: nobody waits for a server any more, as no new link is made."""
        self._leaving = True
        for connection in [each for each in self._pending if not each.asks]:
            connection.reset(NodeResult.DRAINED, NodeResult.DRAINED.value, Ending.DRAINED)
        for connection in self._pending:
            connection.patient = False

    def close(self) -> None:
        """Reset whatever has no tunnel yet."""
        for connection in list(self._pending):
            connection.reset(NodeResult.DRAINED, NodeResult.DRAINED.value, Ending.DRAINED)
        self._waits.take_all()
        self._ends.take_all()
        self.attempts.take_all()
        log(_log, logging.DEBUG, "connections from the node are over", open=self.open)


def _requester(sock: socket.socket) -> Identity:
    """Who connects, as far as an address tells; nothing proves it."""
    return Identity(peer_address(sock) or "unknown", kind="address")
