"""The dialer through agents: asks one link, and another one if that was lost or does not answer.

While no agent of our own can serve a dial, other servers may relay it to theirs
(``PeerLinks``). A tunnel that lost its link before any byte has flowed is dialed again by
the same rules, within the same time: ``Again``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Protocol

from isthmus.dial.rules_agents import Agents
from isthmus.dial.rules_policy import Decision
from isthmus.errors import DialFailure
from isthmus.links.agent_side import PeerLink
from isthmus.links.server_side import AgentLink
from isthmus.net.connect import SPENT
from isthmus.net.deadlines import Deadlines
from isthmus.tunnel.budget import OVER_SHARE, Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import (
    DIRECTLY,
    AgentId,
    DialId,
    DialOutcome,
    DialRequest,
    ServerId,
)
from isthmus.wire.link import failure_of
from isthmus.wire.link_pb2 import DialResult

MOST_TRIES = 3
#: How long after a link lost its connection dials wait for it, and how often they look.
WAIT_S = 3.0
_LOOK_FOR_LINK_S = 0.1
#: How often pending dials are checked: a link has one tick per second.
_LOOK_S = 1.0
#: Answers of another server that mean that nothing was done and another may be asked.
_NOT_DONE = frozenset({DialFailure.NO_AGENT, DialFailure.AGENT_LOST})

AnyLink = AgentLink | PeerLink


class DialOwner(Protocol):
    """The owner of a dial, which receives its result."""

    def pass_on(self, request: DialRequest) -> DialRequest:
        """The request for the next attempt, including the trace."""

    def payer(self) -> Account:
        """Open the account that pays for the tunnel; the caller closes it."""

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """The target was reached; the stream may be joined. ``link`` None: without an agent.

        ``dial.outcome`` says by which program.
        """

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """The dial failed."""


class AgentDial:
    """One pending dial."""

    __slots__ = (
        "_asked",
        "_dialer",
        "_link",
        "_lost_at_once",
        "_stream",
        "_tried",
        "agents",
        "answered",
        "decision",
        "id",
        "outcome",
        "relays",
        "request",
        "started_at",
        "who",
    )

    def __init__(self, dialer: AgentDialer, request: DialRequest, who: DialOwner) -> None:
        self._dialer = dialer
        self.id = DialId(next(dialer.ids))
        self.request = request
        self.who: DialOwner | None = who
        self.agents = dialer.agents  # the agents to choose from
        self.decision: Decision | None = None  # None without policy and networks
        self.started_at = time.monotonic()
        self.relays = dialer.relays  # servers to ask if no agent can serve; None: none
        self._tried: list[AgentLink] = []
        self._asked: list[PeerLink] = []  # servers that could not help
        self.answered = False  # by an agent, rather than by our own deadline
        self.outcome = DIRECTLY  # replaced by the agent's answer
        self._stream: BaseEnd | None = None
        self._lost_at_once = False
        self._link: AnyLink | None = None

    @property
    def asked_in_vain(self) -> int:
        """The number of other servers that could not help."""
        return len(self._asked)

    def others_take_dials(self, link: AnyLink) -> bool:
        """Whether an agent that was not tried, other than by this link, takes dials now."""
        tried = [*self._tried, link] if isinstance(link, AgentLink) else self._tried
        other = self.agents.choose(self.request.target, tried)
        return other is not None and other.takes_dials

    def attempt(self) -> None:
        """Ask the best link not asked yet."""
        who = self.who
        assert who is not None  # otherwise the dial would be settled
        left_s = self.started_at + self._dialer.timeout_s - time.monotonic()
        if left_s <= 0:
            self._fail(DialFailure.TIMED_OUT, SPENT)
            return
        account = who.payer()
        if account.budget.used_bytes >= account.budget.total_bytes and account.may_not_open:
            account.close()
            self._fail(DialFailure.TOO_MANY, OVER_SHARE)
            return
        while (link := self._choose()) is not None:
            self._link = link
            request = who.pass_on(self.request)
            if self.decision is not None and isinstance(link, PeerLink):
                asking = replace(request.asking, network=self.decision.network)
                request = request._replace(asking=asking)
            self._stream = link.open_dial(
                request, dial_id=self.id, timeout_s=left_s, told=self._told, account=account
            )
            if self._stream is not None and not self._lost_at_once:
                account.close()
                return
            self._lost_at_once = False
            self._stream = None
            self._not_this(link)
        account.close()
        self._nobody_left()

    def _choose(self) -> AnyLink | None:
        """An agent; or another server, if no agent can be asked."""
        own = None
        if len(self._tried) < MOST_TRIES:
            own = self.agents.choose(self.request.target, self._tried)
        if self.relays is None or (own is not None and own.takes_dials):
            return own
        return self.relays.choose(self._asked) or own

    def _not_this(self, link: AnyLink) -> None:
        """This link did nothing: do not ask it again."""
        if isinstance(link, PeerLink):
            self._asked.append(link)
        else:
            self._tried.append(link)
            self._dialer.retried()

    def _nobody_left(self) -> None:
        if self._may_wait():
            return
        if any(link.full for link in self.agents):
            self._fail(DialFailure.TOO_MANY, "every link is full")
        elif self._tried:
            self._fail(DialFailure.AGENT_LOST, "")
        else:
            network = self.decision.network if self.decision is not None else ""
            detail = f"none in network {network}" if network else ""
            if self._asked:
                detail = f"{detail or 'none here'}, and other servers could not help"
            self._fail(DialFailure.NO_AGENT, detail)

    def _may_wait(self) -> bool:
        """Wait for an agent that has just lost its connection, if there is no other."""
        now = self._dialer.loop.time()
        waiting = [
            link
            for link in self.agents
            if link.suspended_at is not None and now - link.suspended_at < WAIT_S
        ]
        if not waiting:
            return False
        self._tried = [link for link in self._tried if link not in waiting]
        self._dialer.loop.call_later(_LOOK_FOR_LINK_S, self._look_again)
        return True

    def _look_again(self) -> None:
        if self.who is not None and self._stream is None:
            self.attempt()

    def look_elsewhere(self) -> None:
        """Ask another link if the asked one has gone silent since, and another is usable.

        Whether the target is being connected to is unknown; nothing was sent to it, so at worst
        it sees a connection that ends at once.
        """
        link, who = self._link, self.who
        if who is None or self._stream is None or link is None or not link.stuck:
            return
        most = MOST_TRIES - isinstance(link, AgentLink)
        if len(self._tried) >= most or not self.others_take_dials(link):
            return
        self.who = None  # the result of dropping the stream is not an answer
        self._drop_stream(Ending.CANCELLED)
        self.who = who
        self._not_this(link)
        self.attempt()

    def cancel(self) -> None:
        """Cancel the dial: the result is no longer wanted."""
        if self.who is not None:
            self._settle()
            self._drop_stream(Ending.CANCELLED)

    def expire(self) -> None:
        """The deadline passed."""
        self.give_up(DialFailure.TIMED_OUT, "the agent did not answer in time", Ending.TIMED_OUT)

    def give_up(self, failure: DialFailure, detail: str, reason: Ending = Ending.CANCELLED) -> None:
        """Fail from our side, ignoring later answers."""
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
            self._not_this(link)
            self._stream = None
            stream.abort(Ending.CANCELLED)  # if it only half-closed
            self.attempt()
            return
        failure = failure_of(result)
        if failure in _NOT_DONE and isinstance(link, PeerLink):
            self._not_this(link)
            self._stream = None
            stream.write_eof()
            self.attempt()
            return
        self.answered = True
        by = link.agent_id if isinstance(link, AgentLink) else AgentId(result.agent_id)
        relay = link.server_id if isinstance(link, PeerLink) else DIRECTLY.relay
        if failure is None:
            self.outcome = DialOutcome(by, link.id, relay, result.address)
            self._settle().dialed(self, stream, link)
        else:
            self.outcome = DialOutcome(relay=relay)
            stream.write_eof()
            self._fail(failure, result.detail)

    def _drop_stream(self, reason: Ending) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort(reason)

    def _fail(self, failure: DialFailure, detail: str) -> None:
        self._settle().dial_failed(self, failure, detail)

    def _settle(self) -> DialOwner:
        who, self.who = self.who, None
        assert who is not None  # a dial is settled once
        self._dialer.pending.remove(self)
        return who


class Again(AgentDial):
    """The dial of a tunnel whose link was lost before any byte had flowed, in the time left."""

    __slots__ = ("_timer",)

    def __init__(self, first: AgentDial, lost: AnyLink, who: DialOwner) -> None:
        dialer = first._dialer
        super().__init__(dialer, first.request, who)
        self.agents = first.agents
        self.decision = first.decision
        self.relays = first.relays
        self.started_at = first.started_at
        self._tried, self._asked = first._tried, first._asked
        self._not_this(lost)
        self._timer = dialer.loop.call_later(self.left_s, self.expire)

    @property
    def left_s(self) -> float:
        """The remaining time of the first dial."""
        return self.started_at + self._dialer.timeout_s - time.monotonic()

    def _settle(self) -> DialOwner:
        self._timer.cancel()
        return super()._settle()


def may_dial_again(first: AgentDial) -> bool:
    """Whether there is time left, and a link that was not tried."""
    left_s = first.started_at + first._dialer.timeout_s - time.monotonic()
    return left_s > 0 and len(first._tried) < MOST_TRIES


def _unheard() -> None:
    """Do nothing: the default of ``retried``."""


class AgentDialer:
    """Dials targets through the linked agents.

    ``relays`` are other servers to ask while no agent can serve; ``retried()`` is called for every
    link that was lost during a dial.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, agents: Agents[AgentLink], *, timeout_s: float
    ) -> None:
        self.loop = loop
        self.agents = agents
        self.relays: PeerLinks | None = None
        self.retried: Callable[[], None] = _unheard
        self.timeout_s = timeout_s
        self.pending: Deadlines[AgentDial] = Deadlines(loop, timeout_s, lambda dial: dial.expire())
        self._looks = False
        self.ids = itertools.count(1)

    def dial(self, request: DialRequest, who: DialOwner) -> AgentDial:
        """Start a dial; the answer may arrive before this returns."""
        dial = AgentDial(self, request, who)
        self.begin(dial)
        return dial

    def begin(self, dial: AgentDial) -> None:
        """Start a dial created elsewhere; the answer may arrive before this returns."""
        self.pending.add(dial)
        dial.attempt()
        if not self._looks and len(self.pending):
            self._looks = True
            self.loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Check for dials whose agent has gone silent; reschedule while any are pending."""
        for dial in self.pending:
            dial.look_elsewhere()
        self._looks = len(self.pending) > 0
        if self._looks:
            self.loop.call_later(_LOOK_S, self._look)


class PeerLinks:
    """The links to other servers, by their ids; at most one to each."""

    def __init__(self) -> None:
        self._links: dict[ServerId, PeerLink] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(list(self._links.values()))

    @property
    def ready(self) -> bool:
        """Whether a server could relay a dial now, as far as known."""
        return any(link.can_relay for link in self._links.values())

    def has(self, server_id: ServerId) -> bool:
        """Whether there is a link to this server."""
        return server_id in self._links

    def add(self, link: PeerLink) -> None:
        self._links[link.server_id] = link

    def remove(self, link: PeerLink) -> None:
        if self._links.get(link.server_id) is link:
            del self._links[link.server_id]

    def choose(self, asked: Collection[PeerLink]) -> PeerLink | None:
        """The least loaded link whose server has agents, except those in ``asked``."""
        usable = [link for link in self._links.values() if link.can_relay and link not in asked]
        return min(usable, key=lambda link: link.weight, default=None)
