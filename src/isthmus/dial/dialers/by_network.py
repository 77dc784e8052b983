"""The server's routing dialer: chooses the network, applies the policy, then uses its dialer.

Only created if networks or a policy are configured; dial/settings_networks.py and
dial/rules_policy.py decide on network and permission. A network's dialer connects directly,
through another server, or is a custom one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.dial.dialers.through_agent import AgentDial, AgentDialer, DialOwner
from isthmus.dial.dialers.through_server import Reached, ServerDialer
from isthmus.dial.rules_policy import (
    BY_AUDIT,
    BY_NETWORK,
    Decision,
    Policy,
    Question,
    class_of,
    decide,
)
from isthmus.dial.settings_networks import AgentsByNetwork, ClusterNetwork
from isthmus.errors import DialFailure
from isthmus.links.server_side import AgentLink
from isthmus.net.connect import SPENT, Address, Dialing, Failed
from isthmus.net.resolver import Cancel, Found, Resolver
from isthmus.tunnel.budget import OVER_SHARE
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import NORMAL, DialRequest, HostPort, Identity, RequestMetadata, TrafficClass
from isthmus.wire.request_metadata import MAX_VALUE_BYTES

_MOST_SHOWN = 3


class EndDialer(Protocol):
    """A dialer that produces an end."""

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection; the callbacks may be called before this returns."""


class InsideOnly(Resolver):
    """Resolves names to addresses in one network only.

    Exactly the checked addresses are connected to: a second lookup could return others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, network: ClusterNetwork) -> None:
        super().__init__(loop)
        self._network = network

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        """See Resolver; a name with no address in the network is denied."""

        def checked(addresses: Sequence[Address]) -> None:
            inside = [it for it in addresses if self._network.holds(_host(it))]
            if inside or not addresses:
                found(inside)
                return
            shown = ", ".join(dict.fromkeys(map(_host, addresses[:_MOST_SHOWN])))
            failed(
                DialFailure.DENIED, f"{target.host} is {shown}, outside of network {self._network}"
            )

        return super().lookup(target, checked, failed, client)


def _nobody(host: str) -> Sequence[str]:
    return ()


def _host(address: Address) -> str:
    return address[1][0].partition("%")[0]


def passed_on(asking: RequestMetadata, requester: Identity) -> RequestMetadata:
    """The metadata for the next server: the user, our client's identity, and the trace.

    Without the network, whose name here has no meaning there.
    """
    who = str(requester)
    if asking.user or asking.groups or not who.isprintable() or len(who.encode()) > MAX_VALUE_BYTES:
        return replace(asking, network="")
    return replace(asking, network="", user=who)


class WayDial(AgentDial):
    """One dial without agents; otherwise like a dial through agents.

    ``denied`` is called for a name that resolved outside of its network.
    """

    __slots__ = ("_denied", "_under_way", "way")

    def __init__(
        self,
        dialer: AgentDialer,
        request: DialRequest,
        who: DialOwner,
        *,
        way: EndDialer | None = None,
        denied: Callable[[Decision], None],
    ) -> None:
        super().__init__(dialer, request, who)
        self.way = way
        self._denied = denied
        self._under_way: Dialing | None = None

    def attempt(self) -> None:
        """Dial within the remaining time."""
        way, who = self.way, self.who
        assert way is not None and who is not None  # otherwise there is nothing to try
        account = who.payer()
        refused = account.may_not_open
        account.close()
        if refused:
            self._fail(DialFailure.TOO_MANY, OVER_SHARE)
            return
        target, requester = self.request.target, self.request.requester
        left_s = self.started_at + self._dialer.timeout_s - time.monotonic()
        if left_s <= 0:
            self._fail(DialFailure.TIMED_OUT, SPENT)
            return
        dial: Dialing
        if isinstance(way, ServerDialer):
            dial = way.dial(
                target, timeout_s=left_s, reached=self._reached, failed=self._way_failed,
                asking=passed_on(who.pass_on(self.request).asking, requester),
            )  # fmt: skip
        elif isinstance(way, DirectDialer):
            dial = way.dial(
                target, timeout_s=left_s, reached=self._reached, failed=self._way_failed,
                client=requester,
            )  # fmt: skip
        else:
            dial = way.dial(
                target, timeout_s=left_s, reached=self._reached, failed=self._way_failed
            )
        if self.who is not None:
            self._under_way = dial

    def expire(self) -> None:
        """The dialer exceeded its deadline."""
        self.give_up(DialFailure.TIMED_OUT, "no answer in time", Ending.TIMED_OUT)

    def deny(self, decision: Decision) -> None:
        """Refuse the dial, before or during an attempt."""
        self.decision = decision
        self.answered = True
        self._denied(decision)
        self._fail(DialFailure.DENIED, decision.why)

    def turn_away(self, decision: Decision) -> None:
        """Refuse the dial because its requester is over a limit."""
        self.decision = decision
        self.answered = True
        self._fail(DialFailure.TOO_MANY, decision.why)

    def _reached(self, end: BaseEnd) -> None:
        if self.who is None:  # a dialer that violates its contract
            end.abort(Ending.CANCELLED)
            return
        self._under_way = None
        self.answered = True
        self._settle().dialed(self, end, None)

    def _way_failed(self, failure: DialFailure, detail: str) -> None:
        if self.who is None:
            return
        self._under_way = None
        self.answered = True
        # Another server's denial is its own decision; a denial by a lookup here is ours.
        if failure is DialFailure.DENIED and isinstance(self.way, DirectDialer):
            assert self.decision is not None  # otherwise there would be no dialer
            self.deny(replace(self.decision, allowed=False, rule=BY_NETWORK, why=detail))
        else:
            self._fail(failure, detail)

    def _drop_stream(self, reason: Ending) -> None:
        dial, self._under_way = self._under_way, None
        if dial is not None:
            dial.cancel()


class ByNetwork:
    """Dials targets in their networks, as far as the policy allows.

    Without ``agents``, and so without networks, only the policy applies, and every dial
    goes through ``dialer``. ``ways`` has a dialer for every network with a ``via``.
    ``admit`` is called for allowed dials and returns the denial if the requester is over a limit.
    ``unaudited`` returns why no dial is possible because it could not be audited.
    """

    def __init__(
        self,
        dialer: AgentDialer,
        *,
        agents: AgentsByNetwork[AgentLink] | None,
        ways: Mapping[str, EndDialer],
        policy: Callable[[], Policy | None],
        denied: Callable[[Decision], None],
        admit: Callable[[DialOwner, DialRequest, str], Decision | None] | None = None,
        unaudited: Callable[[], str] | None = None,
    ) -> None:
        self._admit = admit
        self._unaudited = unaudited
        self._dialer = dialer
        self._networks = agents.networks if agents is not None else None
        self._agents = agents
        self._ways = ways
        self._policy = policy
        self._denied = denied

    @property
    def has_ways(self) -> bool:
        """Whether a network is reached without agents."""
        return bool(self._ways)

    def decide(self, target: HostPort, requester: Identity, asked: str) -> Decision:
        """Find the target's network, and whether it may be dialed there."""
        if self._unaudited is not None and (why := self._unaudited()):
            return Decision(allowed=False, rule=BY_AUDIT, why=why)
        return decide(
            self._networks,
            self._policy(),
            target=target,
            requester=requester,
            asked=asked,
            claimed=self._agents.standing_for if self._agents is not None else _nobody,
        )

    def dial(self, request: DialRequest, who: DialOwner) -> AgentDial:
        """Start a dial, or deny it; the answer may arrive before this returns."""
        decision = self.decide(request.target, request.requester, request.asking.network)
        dialer = self._dialer
        way = self._ways.get(decision.network)
        dial: AgentDial
        if not decision.allowed:
            denial = WayDial(dialer, request, who, denied=self._denied)
            denial.deny(decision)
            return denial
        if self._admit is not None:
            refusal = self._admit(who, request, decision.network)
            if refusal is not None:
                denial = WayDial(dialer, request, who, denied=self._denied)
                denial.turn_away(refusal)
                return denial
        if way is not None:
            dial = WayDial(dialer, request, who, way=way, denied=self._denied)
        else:
            traffic = self._class_of(request, decision.network)
            if traffic is not NORMAL:
                request = request._replace(traffic=traffic)
            dial = AgentDial(dialer, request, who)
            if self._agents is not None:
                dial.agents = self._agents.within(decision.network)
        dial.decision = decision
        dialer.begin(dial)
        return dial

    def place(self, dial: AgentDial) -> Decision:
        """Decide on a dial relayed by another server, and choose its agents.

        The other server has decided as well: both must allow the dial. It goes only to agents.
        """
        request = dial.request
        decision = dial.decision = self.decide(
            request.target, request.requester, request.asking.network
        )
        if not decision.allowed:
            self._denied(decision)
        elif self._agents is not None:
            dial.agents = self._agents.within(decision.network)
        return decision

    def _class_of(self, request: DialRequest, network: str) -> TrafficClass:
        policy = self._policy()
        if policy is None or not policy.classes:
            return NORMAL
        asked = Question(requester=request.requester, network=network, target=request.target)
        return class_of(policy, asked, request.asking.object)
