"""Connections from an agent's node to the control plane, and the choice of their servers.

A connection is accepted at a local port with a fixed destination (KEP-2025; node_traffic.py). A
server is chosen, asked to dial, and joined; if it is lost, does not answer, or cannot reach the
destination, another one is asked. No connection hangs, and none ends in a clean FIN after a
failure: a connection that cannot be served is reset.
"""

from __future__ import annotations

import itertools
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from isthmus.dial.frontends.backend import new_connection_id, peer_address
from isthmus.errors import DialFailure
from isthmus.frame.model.snapshot import NodeFailureView
from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.frame.part import Ground
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.agent_side import ServerLink
from isthmus.links.dials import class_of
from isthmus.logs import log
from isthmus.net.deadlines import Deadlines
from isthmus.net.descriptors import descriptors
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.tunnel.end import BaseEnd, Early, Ending
from isthmus.tunnel.stream import Stream
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import NOTHING, AgentId, DialId, DialOutcome, DialRequest, HostPort, Identity
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

if TYPE_CHECKING:
    from isthmus.frame.observe.tracing import DialTrace

MOST_WAITING = 1024
MOST_CONNECTIONS = 16_384
#: How long a server that does not answer is avoided while another can be asked.
SILENT_S = 60.0
#: The same for a server that supports answers: it may hang, and then has the least load of all.
LATE_S = 30.0
_QUIET_S = 60.0
_SAY_AGAIN_S = 3600.0
_MOST_FAILURES = 100
_log = logging.getLogger("isthmus.agent")


class Carries(Enum):
    """Whether a server carries node traffic, as announced."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def carries(link: ServerLink) -> Carries:
    """Whether the server announced the gate; konnectivity's own announces nothing."""
    if link.features is None:
        return Carries.UNKNOWN
    return Carries.YES if CLUSTER_TO_MASTER in link.features else Carries.NO


class NodeConnections:
    """All connections from the node, and the choice of servers."""

    def __init__(
        self,
        ground: Ground[AgentSettings, AgentMetrics],
        links: Callable[[], Iterable[ServerLink]],
        tunnels: TunnelTable,
    ) -> None:
        loop, settings = ground.loop, ground.settings
        # To find a server, and for the answer of each. The total limit is the longer of the
        # two, however many servers are asked.
        wait_s, dial_timeout_s = settings.node_traffic.target_wait_s, settings.dial_timeout_s
        self._ground = ground
        self._loop = loop
        self._poller = ground.poller
        self.budget = ground.budget
        self._links = links
        self._tunnels = tunnels
        self._once = ground.once
        self.agent_id = AgentId(ground.id)
        self._silent: dict[int, float] = {}  # link ids, and since when they are avoided
        self._late: dict[int, float] = {}  # the same for servers that support answers
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
        # Each takes a descriptor: half remain for links, ports and the control plane's dials.
        self.most = min(MOST_CONNECTIONS, max(2, descriptors() // 2))
        self.metrics = ground.metrics.node
        self.dial_timeout_s = dial_timeout_s
        self.open = 0

    @property
    def waiting(self) -> int:
        """The number without a tunnel yet."""
        return len(self._pending)

    # Their life.

    def accept(self, destination: HostPort, sock: socket.socket) -> None:
        """Handle a connection accepted for a destination."""
        if self.waiting >= MOST_WAITING or self.waiting + self.open >= self.most:
            self.refuse(destination, sock, NodeResult.TOO_MANY)
            return
        connection = NodeConnection(self, destination, _requester(sock))
        connection.patient = not self._leaving
        connection.end = SocketEnd(sock, self._poller, connection)
        self._pending.add(connection)
        self._waits.add(connection)
        self._ends.add(connection)
        tracing = self._ground.tracing
        if tracing is not None:
            connection.trace = tracing.begin(
                NOTHING, connection_id=connection.request.connection_id, frontend=FRONTEND,
                requester=connection.request.requester.name,
            )  # fmt: skip
            connection.trace.target(destination)
        connection.attempt()

    def refuse(self, destination: HostPort, sock: socket.socket, result: NodeResult) -> None:
        """Reset a connection without processing it."""
        connection = NodeConnection(self, destination, _requester(sock))
        SocketEnd(sock, self._poller).abort(Ending.CANCELLED)
        self.failed(connection, result, result.value)

    def links_changed(self) -> None:
        """Let waiting connections try again."""
        present = {link.id for link in self._links()}
        self._silent = {each: at for each, at in self._silent.items() if each in present}
        self._late = {each: at for each, at in self._late.items() if each in present}
        for connection in [each for each in self._pending if not each.asks]:
            connection.attempt()

    def forget(self, connection: NodeConnection) -> None:
        """Remove a connection that no longer waits."""
        self._waits.remove(connection)
        self._ends.remove(connection)
        self.attempts.remove(connection)
        self._pending.discard(connection)

    def joined(
        self, connection: NodeConnection, end: SocketEnd, stream: BaseEnd, link: ServerLink
    ) -> None:
        """The destination was reached: join."""
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
        """Count a reset client, and log the reason at a limited rate."""
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
                age_s=time.monotonic(),  # converted to an age for display
                connection_id=request.connection_id,
            )
        )
        self._once.log(
            ("node", result, request.target), _QUIET_S, _log, logging.WARNING,
            "reset a connection from the node", destination=str(request.target),
            reason=reason, client=request.requester.name, connection=request.connection_id,
        )  # fmt: skip

    def denied(self) -> str:
        """A message if every recent connection was denied; otherwise empty."""
        return self._denials.trouble(now=time.monotonic())

    def failures(self) -> tuple[NodeFailureView, ...]:
        """The last failures, newest first."""
        now = time.monotonic()
        return tuple(replace(each, age_s=now - each.age_s) for each in self._failures)

    def time_for(self, connection: NodeConnection) -> float:
        """The time limit of a server asked now, in seconds; always positive."""
        left_s = connection.accepted_at + self._most_s - time.monotonic()
        return max(0.001, min(self.dial_timeout_s, left_s))

    def next_id(self) -> DialId:
        """The next dial id."""
        return DialId(next(self._ids))

    # The servers.

    def choose(self, tried: Iterable[ServerLink]) -> ServerLink | None:
        """The least loaded link that may carry it; silent, stuck and unknown ones come last."""
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
        """Whether there is a server, but its link is at its limit."""
        return any(link.full for link in self._links() if carries(link) is not Carries.NO)

    def is_silent(self, link: ServerLink) -> bool:
        """Whether it did not answer the last request."""
        return link.id in self._silent

    def silent(self, link: ServerLink) -> None:
        """A server did not answer in time: prefer others for a while."""
        self.metrics.unanswered += 1
        if carries(link) is not Carries.UNKNOWN:
            self._late[link.id] = self._loop.time()
            return  # an Isthmus server, which supports answers: nothing else to conclude
        self._silent[link.id] = self._loop.time()
        self._once.log(
            ("silent", link.server_id), _SAY_AGAIN_S, _log, logging.WARNING,
            "the server did not answer a connection from the node: konnectivity's own server"
            " does not carry node traffic, only an Isthmus server with the feature gate"
            f" {CLUSTER_TO_MASTER} does",
            server_id=link.server_id, address=link.peer_address, within_s=self.dial_timeout_s,
        )  # fmt: skip

    def is_overdue(self, asked_at: float) -> bool:
        """Whether a server asked then has used up its time."""
        return time.monotonic() - asked_at >= self.dial_timeout_s

    def heard(self, link: ServerLink) -> None:
        """A server answered."""
        self._silent.pop(link.id, None)
        self._late.pop(link.id, None)

    # The end.

    def leave(self) -> None:
        """The agent drains: stop waiting for servers, because no new links are made."""
        self._leaving = True
        for connection in [each for each in self._pending if not each.asks]:
            connection.reset(NodeResult.DRAINED, NodeResult.DRAINED.value, Ending.DRAINED)
        for connection in self._pending:
            connection.patient = False

    def close(self) -> None:
        """Reset all connections without a tunnel."""
        for connection in list(self._pending):
            connection.reset(NodeResult.DRAINED, NodeResult.DRAINED.value, Ending.DRAINED)
        self._waits.take_all()
        self._ends.take_all()
        self.attempts.take_all()
        log(_log, logging.DEBUG, "connections from the node are over", open=self.open)


def _requester(sock: socket.socket) -> Identity:
    """The client by its address, which is not authenticated."""
    return Identity(peer_address(sock) or "unknown", kind="address")


IN_A_ROW = 5
WITHIN_S = 120.0


class Denials:
    """Detects that everything a node dials is denied, which means a misconfiguration.

    One denial says little: a client may have requested a forbidden destination. Five dials in a
    row, all denied within two minutes, mean that the node is cut off; one that was not
    denied, or two minutes without any, clear this.
    """

    def __init__(self, *, in_a_row: int = IN_A_ROW, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._denied: deque[tuple[float, str]] = deque(maxlen=in_a_row)

    def denied(self, destination: str, *, now: float) -> None:
        """A server denied this destination."""
        self._denied.append((now, destination))

    def other(self) -> None:
        """A dial was not denied, whatever its result."""
        self._denied.clear()

    def trouble(self, *, now: float) -> str:
        """A message if every recent dial was denied; otherwise empty."""
        row = self._denied
        if len(row) < (row.maxlen or 0) or now - row[0][0] > self._within_s:
            return ""
        names = ", ".join(dict.fromkeys(destination for _, destination in row))
        return (
            f"the server denied the last {len(row)} connections of the node, to {names}: check"
            " --allowed-destination and the feature gate at the server"
        )


#: The frontend name of such tunnels.
FRONTEND = "node"
#: A client that leaves sooner was a probe; one that leaves later counts as failed.
GIVES_UP_S = 1.0


class NodeConnection(Early):
    """One local connection until its tunnel stands: the early peer of its end."""

    __slots__ = (
        "_asked_at",
        "_link",
        "_number",
        "_stream",
        "_table",
        "_tried",
        "accepted_at",
        "end",
        "failure",
        "patient",
        "request",
        "trace",
    )

    def __init__(self, table: NodeConnections, destination: HostPort, requester: Identity) -> None:
        super().__init__()
        self._table = table
        self.request = DialRequest(destination, requester, FRONTEND, new_connection_id())
        self.accepted_at = time.monotonic()
        self.end: SocketEnd | None = None  # None once it is settled
        self.failure: tuple[DialFailure, str] | None = None  # the last answer of a server
        self.patient = True  # it may still wait for a server to connect
        self.trace: DialTrace | None = None
        self._tried: list[ServerLink] = []
        self._link: ServerLink | None = None
        self._stream: BaseEnd | None = None
        self._number = 0
        self._asked_at = 0.0

    def __repr__(self) -> str:
        state = "over" if self.end is None else f"asks {self._link}" if self.asks else "waits"
        return f"<NodeConnection {self.request.connection_id} to {self.request.target} {state}>"

    @property
    def asks(self) -> bool:
        """Whether a server is being asked."""
        return self._stream is not None

    # Requests to servers.

    def attempt(self) -> None:
        """Ask the best server not asked yet; without one, wait or give up."""
        table = self._table
        while (link := table.choose(self._tried)) is not None:
            self._tried.append(link)
            self._link = link
            self._number += 1
            account = table.budget.account(self.request.requester)
            stream = link.open_dial(
                self._asks_for(),
                dial_id=table.next_id(),
                timeout_s=table.time_for(self),
                told=partial(self._told, self._number),
                account=account,
            )
            account.close()
            if stream is not None and self._link is link:
                self._stream = stream
                self._asked_at = time.monotonic()
                table.attempts.add(self)
                return
        if self.failure is not None:
            self.give_up(*self.failure)
        elif not self.patient:
            self.give_up_waiting()

    def _asks_for(self) -> DialRequest:
        request, trace = self.request, self.trace
        return request if trace is None else request._replace(asking=trace.ask(request.asking))

    def _told(self, number: int, result: DialResult | None) -> None:
        """Handle the answer to one attempt; None: its link was lost, so nothing was done."""
        if number != self._number or self.end is None:
            return  # of an abandoned attempt
        self._number += 1
        self._table.attempts.remove(self)
        stream, self._stream = self._stream, None
        link, self._link = self._link, None
        if stream is None or link is None:
            return  # lost before it was even asked; attempt() goes on
        if result is None:
            self._table.metrics.lost += 1
            self._in_vain("server_lost")
            stream.abort(Ending.CANCELLED)  # if it only half-closed
            self.attempt()
            return
        self._table.heard(link)
        failure = failure_of(result)
        if failure is None:
            if isinstance(stream, Stream):  # konnectivity's packets carry no class
                stream.traffic = class_of(result.traffic_class)
            self._joined(stream, link, result.address)
            return
        stream.write_eof()
        self._table.metrics.dial_failed(failure)
        self._in_vain(failure.name.lower())
        self.failure = failure, result.detail
        if failure is DialFailure.DENIED:
            self.give_up(failure, result.detail)
        else:
            self.attempt()

    def unanswered(self) -> None:
        """The server did not answer: ask another."""
        link = self._link
        self._drop_stream(Ending.TIMED_OUT)
        self._in_vain("timed_out")
        if link is not None:
            self._table.silent(link)
        self.attempt()

    def _in_vain(self, error: str) -> None:
        if self.trace is not None:
            self.trace.asked_in_vain(error)

    def _joined(self, stream: BaseEnd, link: ServerLink, address: str) -> None:
        end = self._settle()
        assert end is not None  # otherwise the request would have been cancelled
        if self.trace is not None:
            self.trace.reached(self._table.agent_id, address)
        self._table.joined(self, end, stream, link)

    # Giving up.

    def abort(self, reason: Ending) -> None:
        """The client is gone: cancel its dial."""
        super().abort(reason)
        if self.end is not None:
            self._settle()
            self._drop_stream(Ending.CANCELLED)
            if self.trace is not None:
                self.trace.cancelled()
            waited_s = time.monotonic() - self.accepted_at
            self._table.metrics.ended(
                NodeResult.GAVE_UP if waited_s >= GIVES_UP_S else NodeResult.LEFT
            )

    def waited_enough(self) -> None:
        """No server connected in time; a pending request may still be answered."""
        self.patient = False
        if not self.asks:
            self.give_up_waiting()

    def expire(self) -> None:
        """The total time is over."""
        if self._link is not None and self._table.is_overdue(self._asked_at):
            self._table.silent(self._link)  # as if its own time had ended just before
        if self.failure is not None:
            self.give_up(*self.failure)
        else:
            self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """Reset it with the reason why no server was found."""
        if self._tried:
            self.reset(NodeResult.UNANSWERED, "no server answered in time", Ending.TIMED_OUT)
        elif self._table.is_full:
            self.reset(NodeResult.TOO_MANY, "every link is full", Ending.TIMED_OUT)
        else:
            reason = "no server is connected that carries node traffic"
            self.reset(NodeResult.NO_SERVER, reason, Ending.TIMED_OUT)

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """Reset it with the servers' reason."""
        result = NodeResult.DENIED if failure is DialFailure.DENIED else NodeResult.FAILED
        text = f"{failure.value}: {detail}" if detail else failure.value
        self.reset(result, text, Ending.CANCELLED)

    def reset(self, result: NodeResult, reason: str, ending: Ending) -> None:
        """Reset the client, so that it sees an error and not an end of file."""
        end = self._settle()
        self._drop_stream(Ending.CANCELLED)
        if end is not None:
            end.abort(ending)
            if self.trace is not None:
                failed = self.failure[0].name if self.failure is not None else result.name
                self.trace.given_up(failed.lower(), reason)
            self._table.failed(self, result, reason)

    def _settle(self) -> SocketEnd | None:
        end, self.end = self.end, None
        self._table.forget(self)
        return end

    def _drop_stream(self, reason: Ending) -> None:
        self._number += 1  # later answers are ignored
        self._table.attempts.remove(self)
        self._link = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort(reason)
