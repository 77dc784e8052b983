"""Looks names up for a sidecar.

dial/rules_name_order.py decides whom to ask and takes the results. kube/services.py knows Services,
net/tunnel_dns.py asks the guest cluster's DNS through the tunnel, and this pod's resolver asks the
management cluster's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache

from isthmus.dial.rules_name_order import (
    Inquiry,
    NameRules,
    Outcome,
    Resolution,
    Source,
    Step,
    Way,
    chosen,
)
from isthmus.dial.rules_service_names import Service, ServiceName, guest_questions
from isthmus.errors import KubeError
from isthmus.kube.services import ServiceWatch
from isthmus.logs import OncePer, log
from isthmus.net.dns_messages import DnsError
from isthmus.net.resolver import Resolver
from isthmus.net.tunnel_dns import FoundAddresses, TunnelDns
from isthmus.programs.sidecar.rules_tunnel_health import TunnelAttempt, TunnelHealth
from isthmus.values import HostPort, is_address

MANAGEMENT_DNS_S = 10.0
DNS_PORT = 53
_DNS_PORT_NAME = "dns-tcp"
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.names")
#: Results which show that something came back through the tunnel.
_CAME_BACK = (Outcome.FOUND, Outcome.NO_SUCH_NAME, Outcome.ANSWERED_ERROR)
#: The results of asking Services, which may also be that they cannot be listed.
_EXISTS = {Outcome.HEADLESS: True, Outcome.NO_SUCH_NAME: False}


class NameCounts:
    """Counts lookups by source and result, and dials by way."""

    def __init__(self) -> None:
        self.asked: dict[tuple[Source, Outcome], int] = {}
        self.ways = dict.fromkeys(Way, 0)

    def count(self, step: Step) -> None:
        """Count one step."""
        key = (step.source, step.outcome)
        self.asked[key] = self.asked.get(key, 0) + 1


class SidecarNames:
    """Resolves names according to a sidecar's rules."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: NameRules,
        *,
        services: ServiceWatch | None,
        dns: TunnelDns,
        dns_services: Sequence[ServiceName],
        resolver: Resolver,
        health: TunnelHealth | None = None,
    ) -> None:
        """``services`` may be None only if the rules never use them."""
        self._loop = loop
        self.rules = rules
        self.services = services
        self._dns = dns
        self._dns_services = tuple(dns_services)
        self._resolver = resolver
        self.health = health if health is not None else TunnelHealth()
        self.counts = NameCounts()
        self._once = OncePer()

    def known(self, name: str) -> Resolution | None:
        """The answer, if it needs no query."""
        if is_address(name):
            answer = _of_address(name)
            self.counts.count(answer.steps[0])
            return answer
        inquiry = Inquiry(name, self.rules)
        while isinstance(ahead := inquiry.ahead, Source):
            step = self._at_once(inquiry, ahead)
            if step is None:
                return None
            inquiry.took(step)
        self._count(inquiry)
        return ahead

    async def resolve(self, name: str) -> Resolution:
        """The answer, with all queries that it needs; each has a time limit."""
        inquiry = Inquiry(name, self.rules)
        attempt: TunnelAttempt | None = None
        try:
            while isinstance(ahead := inquiry.ahead, Source):
                match ahead:
                    case Source.SERVICE:
                        step = await self._ask_services(inquiry)
                    case Source.GUEST_DNS:
                        attempt = self._begin()
                        step = await self._ask_guest(inquiry, attempt)
                    case _:
                        step = await self._ask_management(inquiry)
                        self._judge(inquiry, step, attempt)
                inquiry.took(step)
        finally:
            if attempt is not None:
                self.health.dropped(attempt)
        self._count(inquiry)
        return ahead

    def forget(self, resolution: Resolution) -> None:
        """Forget an answer that was of no use, so that the next dial asks again."""
        for each in self._questions(resolution.host, resolution.steps):
            self._dns.forget(each)

    def _count(self, inquiry: Inquiry) -> None:
        for step in inquiry.steps:
            self.counts.count(step)

    def _at_once(self, inquiry: Inquiry, source: Source) -> Step | None:
        services = self.services
        if source is Source.SERVICE and services is not None and services.listed:
            assert inquiry.service is not None
            return _service_step(inquiry.service, services.known(inquiry.service))
        if source is not Source.GUEST_DNS or services is None or not self.health.works:
            return None
        for each in self._dns_services:
            service = services.known(each)
            if service is not None and service.addresses:
                return self._remembered(inquiry, self._server(service))
        return None

    def _remembered(self, inquiry: Inquiry, server: HostPort) -> Step | None:
        found = None
        for name in self._questions(inquiry.name, inquiry.steps):
            found = self._dns.known(server, name)
            if found is None or found.addresses:
                break
        return _guest_step(server, found) if found is not None else None

    # Services.

    async def _ask_services(self, inquiry: Inquiry) -> Step:
        at = inquiry.service
        assert at is not None
        assert self.services is not None
        try:
            return _service_step(at, await self.services.find(at))
        except KubeError as exc:
            return Step(source=Source.SERVICE, outcome=Outcome.FAILED, detail=str(exc))

    # The guest cluster's DNS.

    def _begin(self) -> TunnelAttempt | None:
        """Begin an attempt; None if health is not tracked, or the tunnel must not be tried now."""
        if not self.rules.management_dns:
            return None
        return self.health.begin(now=self._loop.time())

    async def _ask_guest(self, inquiry: Inquiry, attempt: TunnelAttempt | None) -> Step:
        if attempt is None and self.rules.management_dns:
            since_s = self.health.failing_s(now=self._loop.time())
            text = f"the tunnel has not worked for {since_s:.0f} s; it is retried periodically"
            return Step(source=Source.GUEST_DNS, outcome=Outcome.SKIPPED, detail=text)
        fresh = attempt is not None and attempt.retry
        step, remembered = await self._guest_step(inquiry, fresh=fresh)
        if step.outcome in _CAME_BACK:
            if attempt is not None and not remembered and self.health.worked(attempt):
                log(_log, logging.INFO, "the tunnel to the guest cluster's DNS works again")
        else:
            self._once.log(
                "guest", _QUIET_S, _log, logging.WARNING, "the guest cluster's DNS fails",
                name=inquiry.name, reason=step.detail,
            )  # fmt: skip
        return step

    async def _guest_step(self, inquiry: Inquiry, *, fresh: bool) -> tuple[Step, bool]:
        """Ask; the answer, and whether it came from the cache."""
        try:
            server = await self._find_server()
            found = None
            for name in self._questions(inquiry.name, inquiry.steps):
                found = await self._dns.lookup(server, name, fresh=fresh)
                if found.addresses:
                    break
        except KubeError as exc:
            return _guest_failed(str(exc)), False
        except DnsError as exc:
            return _guest_failed(str(exc), answered=exc.answered), False
        assert found is not None
        return _guest_step(server, found), found.remembered

    def _questions(self, name: str, steps: Sequence[Step]) -> tuple[str, ...]:
        """The names to ask for; the result of asking Services, if any, is noted."""
        said = [step.outcome for step in steps if step.source is Source.SERVICE]
        exists = _EXISTS.get(said[-1]) if said else None
        return guest_questions(name, self.rules.cluster_domain, exists=exists)

    async def _find_server(self) -> HostPort:
        """The current address of the guest cluster's DNS, from its Service.

        Raises:
            KubeError: there is no such Service, or the API does not answer.
        """
        assert self.services is not None
        for at in self._dns_services:
            service = await self.services.find(at)
            if service is not None and service.addresses:
                return self._server(service)
        named = " or ".join(map(str, self._dns_services))
        raise KubeError(f"the guest cluster has no Service {named} with an address")

    def _server(self, service: Service) -> HostPort:
        address = chosen(service.addresses, self.rules.prefer_ipv4)[0]
        return HostPort(address, service.tcp_port(_DNS_PORT_NAME, DNS_PORT))

    # The management cluster's DNS.

    async def _ask_management(self, inquiry: Inquiry) -> Step:
        name = inquiry.name
        source = Source.MANAGEMENT_DNS
        try:
            async with asyncio.timeout(MANAGEMENT_DNS_S):
                found = await self._resolver.addresses(HostPort(name, 1))
        except TimeoutError:
            text = f"no answer within {MANAGEMENT_DNS_S:g} s"
            return Step(source=source, outcome=Outcome.FAILED, detail=text)
        except OSError as exc:
            return Step(source=source, outcome=Outcome.NO_SUCH_NAME, detail=str(exc))
        addresses = tuple(str(at[0]) for _, at in found if is_address(str(at[0])))
        outcome = Outcome.FOUND if addresses else Outcome.NO_SUCH_NAME
        return Step(source=source, outcome=outcome, addresses=addresses)

    def _judge(self, inquiry: Inquiry, step: Step, attempt: TunnelAttempt | None) -> None:
        """Count a name that is found here, and failed there, as a failure of the tunnel."""
        if attempt is None or step.outcome is not Outcome.FOUND:
            return
        guest = inquiry.steps[-1]
        if guest.outcome is not Outcome.FAILED:
            return  # the guest's DNS answered that it does not know the name: the tunnel works
        if self.health.failed(attempt, now=self._loop.time()):
            log(
                _log,
                logging.WARNING,
                "the tunnel to the guest cluster's DNS does not work, names go to the management"
                " cluster's and connections go directly",
                reason=guest.detail,
            )


@lru_cache(maxsize=1024)
def _of_address(address: str) -> Resolution:
    """The answer for an address, which needs no rule; most dials are to addresses."""
    answer = Inquiry(address, NameRules()).ahead
    assert isinstance(answer, Resolution)
    return answer


def _service_step(at: ServiceName, service: Service | None) -> Step:
    source = Source.SERVICE
    if service is None:
        return Step(source=source, outcome=Outcome.NO_SUCH_NAME, detail=f"no Service {at}")
    if service.external_name:
        text = f"Service {at} is an alias of {service.external_name}"
        return Step(source=source, outcome=Outcome.ALIAS, detail=text, alias=service.external_name)
    if service.headless:
        return Step(source=source, outcome=Outcome.HEADLESS, detail=f"Service {at} has no address")
    return Step(
        source=source,
        outcome=Outcome.FOUND,
        detail=f"Service {at}",
        addresses=service.addresses,
    )


def _guest_step(server: HostPort, found: FoundAddresses) -> Step:
    outcome = Outcome.FOUND if found.addresses else Outcome.NO_SUCH_NAME
    text = f"{server} has no address for it" if not found.addresses else f"by {server}"
    if found.remembered:
        text += ", remembered"
    return Step(source=Source.GUEST_DNS, outcome=outcome, detail=text, addresses=found.addresses)


def _guest_failed(why: str, *, answered: bool = False) -> Step:
    outcome = Outcome.ANSWERED_ERROR if answered else Outcome.FAILED
    return Step(source=Source.GUEST_DNS, outcome=outcome, detail=why)
