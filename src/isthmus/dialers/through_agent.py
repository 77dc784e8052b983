"""The dialer through agents: choose a link, ask, and ask another if that one was lost."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Protocol

from isthmus.core.agents import Agents
from isthmus.core.policy import Decision
from isthmus.errors import DialFailure
from isthmus.links.server_side import AgentLink
from isthmus.net.deadlines import Deadlines
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import DialId, HostPort, Identity
from isthmus.wire.asking import Asking
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

MOST_TRIES = 3


class Dialing(Protocol):
    """Who wants the answer of a dial."""

    @property
    def connection_id(self) -> str:
        """What the request is called; the agent calls it the same."""

    @property
    def asking(self) -> Asking:
        """What the client said, as far as it is believed."""

    def pass_on(self) -> Asking:
        """Somebody is asked now: what to tell them, the trace included."""

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AgentLink | None) -> None:
        """The target is reached; the stream may be joined. None: by a way without agents."""

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """It is not."""


class AgentDial:
    """One dial under way."""

    __slots__ = (
        "_dialer",
        "_link",
        "_lost_at_once",
        "_stream",
        "_tried",
        "address",
        "agents",
        "answered",
        "decision",
        "id",
        "requester",
        "started_at",
        "target",
        "who",
    )

    def __init__(
        self,
        dialer: AgentDialer,
        dial_id: DialId,
        target: HostPort,
        requester: Identity,
        who: Dialing,
    ) -> None:
        self._dialer = dialer
        self.id = dial_id
        self.target = target
        self.requester = requester
        self.who: Dialing | None = who
        self.agents = dialer.agents  # among whom to choose
        self.decision: Decision | None = None  # None: there is neither policy nor network
        self.started_at = time.monotonic()
        self._tried: list[AgentLink] = []
        self.answered = False  # by an agent, rather than by our own deadline
        self.address = ""  # what was reached, if the agent says so
        self._stream: BaseEnd | None = None
        self._lost_at_once = False
        self._link: AgentLink | None = None

    def attempt(self) -> None:
        """Ask the best link that was not asked yet."""
        dialer, who = self._dialer, self.who
        assert who is not None  # or nobody would go on
        left_s = self.started_at + dialer.timeout_s - time.monotonic()
        while len(self._tried) < MOST_TRIES:
            link = self.agents.choose(self.target, self._tried)
            if link is None:
                break
            self._link = link
            self._stream = link.open_dial(
                self.target,
                dial_id=self.id,
                timeout_s=max(left_s, 0.001),
                requester=self.requester,
                told=self._told,
                connection_id=who.connection_id,
                asking=who.pass_on(),
            )
            if self._stream is not None and not self._lost_at_once:
                return
            self._lost_at_once = False
            self._stream = None
            self._tried.append(link)
        if any(link.full for link in self.agents):
            self._fail(DialFailure.TOO_MANY, "every link is full")
        elif self._tried:
            self._fail(DialFailure.AGENT_LOST, "")
        else:
            network = self.decision.network if self.decision is not None else ""
            self._fail(DialFailure.NO_AGENT, f"none in network {network}" if network else "")

    def cancel(self) -> None:
        """Nobody waits any more: take the dial back."""
        if self.who is not None:
            self._settle()
            self._drop_stream(Ending.CANCELLED)

    def expire(self) -> None:
        """The deadline passed."""
        self.give_up(DialFailure.TIMED_OUT, "the agent did not answer in time", Ending.TIMED_OUT)

    def give_up(self, failure: DialFailure, detail: str, reason: Ending = Ending.CANCELLED) -> None:
        """Fail from our side, whatever the agent says later."""
        if self.who is not None:
            who = self._settle()
            self._drop_stream(reason)
            who.dial_failed(self, failure, detail)

    def _told(self, result: DialResult | None) -> None:
        if self.who is None:
            return
        stream, link = self._stream, self._link
        if stream is None or link is None:
            self._lost_at_once = True  # before it was even asked; attempt() goes on
            return
        if result is None:
            # Reset before the answer: nothing was done, so another may be asked.
            self._tried.append(link)
            self._stream = None
            stream.abort(Ending.CANCELLED)  # if it only half-closed
            self.attempt()
            return
        self.answered = True
        failure = failure_of(result)
        if failure is None:
            self.address = result.address
            self._settle().dialed(self, stream, link)
        else:
            stream.write_eof()
            self._fail(failure, result.detail)

    def _drop_stream(self, reason: Ending) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort(reason)

    def _fail(self, failure: DialFailure, detail: str) -> None:
        self._settle().dial_failed(self, failure, detail)

    def _settle(self) -> Dialing:
        who, self.who = self.who, None
        assert who is not None  # a dial is settled once
        self._dialer.pending.remove(self)
        return who


class AgentDialer:
    """Dials targets through the agents that are linked."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, agents: Agents[AgentLink], *, timeout_s: float
    ) -> None:
        self.agents = agents
        self.timeout_s = timeout_s
        self.pending: Deadlines[AgentDial] = Deadlines(loop, timeout_s, lambda dial: dial.expire())
        self._ids = itertools.count(1)

    def dial(self, target: HostPort, requester: Identity, who: Dialing) -> AgentDial:
        """Start a dial; the answer may come before this returns."""
        dial = AgentDial(self, self.next_id(), target, requester, who)
        self.pending.add(dial)
        dial.attempt()
        return dial

    def next_id(self) -> DialId:
        """Number a dial."""
        return DialId(next(self._ids))
