"""One connection that the agent's node opens to the control plane, until its tunnel stands.

It was accepted at a local port whose destination is fixed (KEP-2025). A server is chosen, asked to
dial, and joined; when it is lost, does not answer, or cannot reach the destination, another one is
asked. Nothing hangs, and nothing ends in a clean FIN that means failure: a connection that cannot
be served is reset. All of them, and the choice of a server, are node_connections.py.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from isthmus.dial.frontends.backend import new_connection_id
from isthmus.errors import DialFailure
from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.links.agent_side import ServerLink
from isthmus.links.dials import class_of
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import BaseEnd, Early, Ending
from isthmus.tunnel.stream import Stream
from isthmus.values import DialRequest, HostPort, Identity
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

if TYPE_CHECKING:
    from isthmus.frame.observe.tracing import DialTrace
    from isthmus.programs.agent.node_connections import NodeConnections

#: How such tunnels are called where frontends are named.
FRONTEND = "node"
#: A client that leaves sooner wanted nothing, as a probe; one that leaves later was failed.
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
        self.end: SocketEnd | None = None  # None as well once it is settled
        self.failure: tuple[DialFailure, str] | None = None  # the last that a server answered
        self.patient = True  # it may still wait for a server to come
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
        """A server is being asked."""
        return self._stream is not None

    # Asking.

    def attempt(self) -> None:
        """Ask the best server that was not asked yet; without one, wait or give up."""
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
        """Take the answer to one attempt; None: its link was lost, so nothing was done."""
        if number != self._number or self.end is None:
            return  # of an attempt that was given up
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
            if isinstance(stream, Stream):  # konnectivity's packets say no class
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
        """The server that is asked says nothing: ask another."""
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
        assert end is not None  # or nobody would have been told
        if self.trace is not None:
            self.trace.reached(self._table.agent_id, address)
        self._table.joined(self, end, stream, link)

    # Giving up.

    def abort(self, reason: Ending) -> None:
        """The client is gone: take its dial back."""
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
        """No server came in time; one that is being asked may still answer."""
        self.patient = False
        if not self.asks:
            self.give_up_waiting()

    def expire(self) -> None:
        """The time for all of it is over, whoever is being asked."""
        if self._link is not None and self._table.is_overdue(self._asked_at):
            self._table.silent(self._link)  # as when its own time had ended a moment before
        if self.failure is not None:
            self.give_up(*self.failure)
        else:
            self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """Say what it waited for in vain, and reset it."""
        if self._tried:
            self.reset(NodeResult.UNANSWERED, "no server answered in time", Ending.TIMED_OUT)
        elif self._table.is_full:
            self.reset(NodeResult.TOO_MANY, "every link is full", Ending.TIMED_OUT)
        else:
            reason = "no server is connected that carries node traffic"
            self.reset(NodeResult.NO_SERVER, reason, Ending.TIMED_OUT)

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """The servers said why not: reset it."""
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
        self._number += 1  # whatever it says from now on is not heard
        self._table.attempts.remove(self)
        self._link = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort(reason)
