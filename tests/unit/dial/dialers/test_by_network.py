"""The dialer of dialers: which way a dial goes, and no way round the networks."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

import pytest

from isthmus.dial.dialers import through_agent
from isthmus.dial.dialers.by_network import ByNetwork, InsideOnly, WayDial, passed_on
from isthmus.dial.dialers.direct import DirectDialer
from isthmus.dial.dialers.through_agent import AgentDial, AgentDialer
from isthmus.dial.rules_connectivity import NetworkConnection, NetworkProtocol
from isthmus.dial.rules_policy import Decision, Effect, Match, Policy, PolicyRule
from isthmus.dial.settings_networks import AgentsByNetwork, ClusterNetwork, Networks
from isthmus.errors import DialFailure
from isthmus.net.connect import Failed, literal
from isthmus.net.poller import Poller
from isthmus.net.resolver import Cancel, Found, Resolver, nothing
from isthmus.settings.identifiers import Identifiers
from isthmus.testing.ends import MemoryEnd
from isthmus.text.patterns import Pattern
from isthmus.tunnel.budget import UNBOUNDED, Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import AgentId, DialRequest, HostPort, Identity, RequestMetadata

WHO = Identity("kube-apiserver", ("masters",))


def network(name: str, cidr: str, via: NetworkConnection | None = None) -> ClusterNetwork:
    return ClusterNetwork(name=name, cidrs=(ip_network(cidr),), via=via)


DIRECT = NetworkConnection(protocol=NetworkProtocol.DIRECT)
EAST = network("east", "10.1.0.0/16")
WEST = network("west", "10.2.0.0/16")
NEAR = network("near", "127.0.0.0/8", DIRECT)


@dataclass(eq=False)
class Link:
    """A link that notes what is dialed through it, and never answers."""

    agent_id: AgentId
    network: str = ""
    identifiers: Identifiers = field(default_factory=Identifiers)
    can_open: bool = True
    takes_dials: bool = True
    stuck: bool = False
    full: bool = False
    weight: float = 0.0
    zone: str = ""
    dialed: list[str] = field(default_factory=list)

    def open_dial(self, request: DialRequest, **_: object) -> BaseEnd:
        self.dialed.append(str(request.target))
        return MemoryEnd()


@dataclass
class Asker:
    """Who asks: keeps the one answer."""

    answers: list[Any] = field(default_factory=list)

    def pass_on(self, request: DialRequest) -> DialRequest:
        return request

    def payer(self) -> Account:
        return UNBOUNDED.account("asker")

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: object) -> None:
        self.answers.append((stream, link))

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        self.answers.append((failure, detail))


class FakeWay:
    """A way whose dials the test answers."""

    def __init__(self) -> None:
        self.target: HostPort | None = None
        self.cancelled = 0
        self.at_once: Callable[[Any], None] | None = None

    def dial(self, target: HostPort, *, timeout_s: float, reached: Any, failed: Failed) -> FakeWay:
        assert 0 < timeout_s <= 10
        self.target, self.reached, self.failed = target, reached, failed
        if self.at_once is not None:
            self.at_once(self)
        return self

    def cancel(self) -> None:
        self.cancelled += 1


class Bed:
    def __init__(self, *networks: ClusterNetwork, policy: Policy | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        self.policy = policy
        self.denied: list[Decision] = []
        known = Networks(networks) if networks else None
        self.agents: Any = None
        if known is not None:
            self.agents = AgentsByNetwork(
                ("default",), lambda n: 0, networks=known, strayed=lambda link, why: None
            )
        self.dialer = AgentDialer(loop, self.agents, timeout_s=10.0)
        self.way = FakeWay()
        self.router = ByNetwork(
            self.dialer,
            agents=self.agents,
            ways={it.name: self.way for it in networks if it.via is not None},
            policy=lambda: self.policy,
            denied=self.denied.append,
        )

    def dial(self, target: str, asked: str = "") -> tuple[AgentDial, Asker]:
        who = Asker()
        request = DialRequest(
            HostPort.parse(target), WHO, "test", "id-1", RequestMetadata(network=asked)
        )
        return self.router.dial(request, who), who


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_another_agent_is_asked_when_the_first_has_gone_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(through_agent, "_LOOK_S", 0.01)

    async def test() -> None:
        bed = Bed(EAST)
        links = [Link(AgentId("a"), "east"), Link(AgentId("b"), "east")]
        for link in links:
            bed.agents.add(link)
        dial, _ = bed.dial("10.1.0.7:80")
        (asked,) = [link for link in links if link.dialed]
        asked.takes_dials, asked.stuck = False, True
        async with asyncio.timeout(10):
            while not all(link.dialed for link in links):
                await asyncio.sleep(0.001)
        dial.cancel()

    run(test)


def test_a_dial_goes_to_the_agents_of_its_network_only() -> None:
    async def test() -> None:
        bed = Bed(EAST, WEST)
        east, west = Link(AgentId("e"), "east"), Link(AgentId("w"), "west")
        bed.agents.add(east)
        bed.agents.add(west)
        for number in range(20):
            bed.dial(f"10.1.0.{number}:1")
        dial, _ = bed.dial("10.2.0.1:1")
        assert len(east.dialed) == 20
        assert west.dialed == ["10.2.0.1:1"]
        assert dial.decision == Decision(allowed=True, network="west")
        # Without its own agent a network is not reached by another's, not even as a second try.
        bed.agents.remove(east)
        dial, who = bed.dial("10.1.0.1:1")
        assert who.answers == [(DialFailure.NO_AGENT, "none in network east")]
        assert west.dialed == ["10.2.0.1:1"]
        assert not bed.denied

    run(test)


@pytest.mark.parametrize("target", ["10.1.0.7:80", "127.0.0.1:80"])
def test_a_deadline_that_has_passed_is_its_own_reason(target: str) -> None:
    async def test() -> None:
        bed = Bed(EAST, NEAR)
        link = Link(AgentId("a"), "east")
        bed.agents.add(link)
        bed.dialer.timeout_s = 0.0
        _, who = bed.dial(target)
        text = "the deadline of the dial had passed before it began"
        assert who.answers == [(DialFailure.TIMED_OUT, text)]
        assert not link.dialed and bed.way.target is None

    run(test)


def test_what_is_denied_is_not_dialed() -> None:
    async def test() -> None:
        bed = Bed(EAST, WEST, NEAR)
        link = Link(AgentId("e"), "east")
        bed.agents.add(link)
        for target, asked in (
            ("10.9.0.1:1", ""),
            ("10.1.0.1:1", "west"),
            ("db:1", ""),
            ("db:1", "x"),
        ):
            dial, who = bed.dial(target, asked)
            ((failure, why),) = who.answers
            assert failure is DialFailure.DENIED
            assert dial.decision is not None
            assert why == dial.decision.why
            assert dial.answered
            dial.cancel()  # too late, and harmless
        assert len(bed.denied) == 4
        assert {it.rule for it in bed.denied} == {"(network)"}
        assert link.dialed == [] and bed.way.target is None
        assert len(bed.dialer.pending) == 0

    run(test)


def test_the_policy_is_asked_for_every_dial() -> None:
    async def test() -> None:
        allow = Match(requesters=(Pattern("certificate:kube-*"),), networks=(Pattern("east"),))
        rule = PolicyRule(name="only", effect=Effect.ALLOW, match=allow, where="p:1")
        bed = Bed(EAST, WEST, policy=Policy(rules=(rule,), source="p"))
        link = Link(AgentId("e"), "east")
        bed.agents.add(link)
        dial, _ = bed.dial("10.1.0.1:1")
        assert dial.decision == Decision(allowed=True, network="east", rule="only", where="p:1")
        dial, who = bed.dial("10.2.0.1:1")
        assert who.answers == [(DialFailure.DENIED, "no rule allows it")]
        assert [(it.network, it.rule) for it in bed.denied] == [("west", "(default)")]
        bed.policy = None
        dial, who = bed.dial("10.2.0.1:1")
        assert who.answers == [(DialFailure.NO_AGENT, "none in network west")]

    run(test)


def test_a_way_without_agents() -> None:
    async def test() -> None:
        bed = Bed(NEAR, EAST)
        dial, who = bed.dial("127.0.0.1:80")
        assert isinstance(dial, WayDial)
        assert (bed.way.target, len(bed.dialer.pending)) == (HostPort("127.0.0.1", 80), 1)
        end = MemoryEnd()
        bed.way.reached(end)
        assert who.answers == [(end, None)]
        assert len(bed.dialer.pending) == 0
        dial.cancel()
        assert bed.way.cancelled == 0

    run(test)


def test_a_way_that_answers_at_once() -> None:
    async def test() -> None:
        bed = Bed(NEAR)
        end = MemoryEnd()
        bed.way.at_once = lambda way: way.reached(end)
        _, who = bed.dial("127.0.0.1:80")
        assert who.answers == [(end, None)]
        bed.way.at_once = lambda way: way.failed(DialFailure.REFUSED, "it says")
        dial, who = bed.dial("127.0.0.1:80")
        assert who.answers == [(DialFailure.REFUSED, "it says")]
        assert dial.answered
        assert len(bed.dialer.pending) == 0

    run(test)


def test_a_dial_that_is_cancelled_or_given_up_is_taken_back() -> None:
    async def test() -> None:
        bed = Bed(NEAR)
        dial, who = bed.dial("127.0.0.1:80")
        dial.cancel()
        dial.cancel()
        assert (bed.way.cancelled, who.answers) == (1, [])
        late = MemoryEnd()
        bed.way.reached(late)  # by a way that does not keep its word
        assert late.aborted is Ending.CANCELLED
        bed.way.failed(DialFailure.REFUSED, "")
        assert who.answers == []
        dial, who = bed.dial("127.0.0.1:80")
        dial.give_up(DialFailure.AGENT_LOST, "server stops")
        assert (bed.way.cancelled, who.answers) == (2, [(DialFailure.AGENT_LOST, "server stops")])
        dial, who = bed.dial("127.0.0.1:80")
        dial.expire()
        assert who.answers == [(DialFailure.TIMED_OUT, "no answer in time")]
        assert not dial.answered
        assert len(bed.dialer.pending) == 0

    run(test)


def test_a_finished_dial_is_freed_at_once() -> None:
    async def test() -> None:
        bed = Bed(NEAR)
        bed.way.at_once = lambda way: way.failed(DialFailure.REFUSED, "")
        gc.disable()
        try:
            dial, who = bed.dial("127.0.0.1:80")
            gone = weakref.ref(who)
            bed.way.reached = bed.way.failed = None
            del dial, who
            assert gone() is None
        finally:
            gc.enable()

    run(test)


# Directly, with names.


class Answers(Resolver):
    """A resolver whose answers a test gives: each lookup takes the next."""

    answers: list[list[str]]

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        found([literal(address, target.port) for address in self.answers.pop(0)])
        return nothing


class Checked(InsideOnly, Answers):
    """The check of InsideOnly over the answers of a test."""


def inside(*answers: list[str], cidrs: tuple[str, ...] = ("127.0.0.0/8",)) -> Checked:
    nets = tuple(map(ip_network, cidrs))
    made = Checked(asyncio.get_running_loop(), ClusterNetwork(name="near", cidrs=nets, via=DIRECT))
    made.answers = list(answers)
    return made


def looked_up(resolver: Resolver) -> list[Any]:
    got: list[Any] = []
    resolver.lookup(
        HostPort("db.example", 80),
        lambda addresses: got.append([it[1][0] for it in addresses]),
        lambda failure, why: got.append((failure, why)),
    )
    return got


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (["127.0.0.1"], ["127.0.0.1"]),
        (["192.0.2.1", "127.0.0.1", "::1"], ["127.0.0.1"]),
        (["::ffff:127.0.0.1"], ["::ffff:127.0.0.1"]),
    ],
)
def test_only_addresses_inside_are_found(answer: list[str], kept: list[str]) -> None:
    async def test() -> None:
        assert looked_up(inside(answer)) == [kept]

    run(test)


def test_a_name_that_leads_outside_is_denied() -> None:
    async def test() -> None:
        ((failure, why),) = looked_up(inside(["192.0.2.1", "::ffff:192.0.2.1", "fd00::1"]))
        assert failure is DialFailure.DENIED
        assert why.startswith("db.example is 192.0.2.1, ")
        assert why.endswith("outside of network near (127.0.0.0/8)")

    run(test)


def test_what_was_checked_is_what_is_connected_to() -> None:
    """A resolver that says something else the second time is not asked a second time."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        with socket.create_server(("127.0.0.1", 0)) as good:
            port = good.getsockname()[1]
            resolver = inside(["127.0.0.1"], ["192.0.2.1"])
            reached: asyncio.Future[BaseEnd] = loop.create_future()
            DirectDialer(loop, poller, resolver).dial(
                HostPort("db.example", port),
                timeout_s=10,
                reached=reached.set_result,
                failed=lambda *why: reached.set_exception(AssertionError(why)),
            )
            end = await reached
            assert resolver.answers == [["192.0.2.1"]]
            end.abort(Ending.CANCELLED)
        while len(poller):
            await asyncio.sleep(0)
        poller.shut_down()

    run(test)


# What the next server is told.


def test_the_next_server_hears_who_asked() -> None:
    asked = RequestMetadata(network="east", object="pods/web", traceparent="t")
    told = passed_on(asked, WHO)
    assert told == RequestMetadata(
        user="certificate:kube-apiserver", object="pods/web", traceparent="t"
    )
    named = RequestMetadata(network="east", user="alice", groups=("dev",))
    assert passed_on(named, WHO) == RequestMetadata(user="alice", groups=("dev",))
    assert passed_on(asked, Identity("a\nb")).user == ""
