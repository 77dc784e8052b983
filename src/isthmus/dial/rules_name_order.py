"""In which order a sidecar resolves a name, and how it then dials; decisions only.

The order is that of HyperShift's sidecars: a cloud API is dialed directly, then come the Services
of the guest cluster, then the guest cluster's DNS or, without that, the DNS of this pod, which is
the management cluster's; the latter also while the guest's DNS is unreachable. An ``Inquiry``
returns the next source and is told the result; programs/sidecar/dialer_names.py queries them.

The answer includes how to dial. A name that the management cluster's DNS answered instead of
the guest's is dialed directly; answers of Services and the guest's DNS never are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from isthmus.dial.rules_service_names import CloudApis, ServiceName, service_name
from isthmus.errors import DialFailure
from isthmus.values import HostPort, is_address

#: The most addresses of a name that are tried.
MOST_ADDRESSES = 8
#: An ExternalName may be the name of another Service.
_MOST_ALIASES = 8


class Source(Enum):
    """The sources of an answer, including those without a query."""

    ADDRESS = "address"
    CLOUD_API = "cloud API"
    RESOLVER_OFF = "resolver off"
    SERVICE = "Service"
    GUEST_DNS = "guest DNS"
    MANAGEMENT_DNS = "management DNS"
    AGENT = "agent"


class Outcome(Enum):
    """The result of a query."""

    FOUND = "found"
    ALIAS = "another name"
    HEADLESS = "headless"
    NO_SUCH_NAME = "no such name"
    ANSWERED_ERROR = "answered with an error"
    FAILED = "failed"
    SKIPPED = "not asked"
    DECIDED = "decided"


class Way(Enum):
    """How the connection is made."""

    TUNNEL = "through the tunnel"
    DIRECT = "directly"
    PROXIED = "directly, by the management proxy if there is one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A query and its result; ``detail`` is for display.

    ``alias`` is the name that an ExternalName stands for.
    """

    source: Source
    outcome: Outcome
    detail: str = ""
    addresses: tuple[str, ...] = ()
    alias: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The answer: ``addresses`` to try in order, or, without any, ``host`` itself to be dialed.

    With a ``failure`` there is nothing to dial, and ``detail`` says why.
    """

    name: str
    host: str
    way: Way
    steps: tuple[Step, ...]
    addresses: tuple[str, ...] = ()
    failure: DialFailure | None = None
    detail: str = ""

    @property
    def source(self) -> Source:
        """The source of the answer."""
        return self.steps[-1].source


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """The flags. ``cloud`` is None if cloud APIs are treated like any other name.

    ``must_resolve`` is https-proxy's: a name never goes to the agent.
    """

    cloud: CloudApis | None = None
    enabled: bool = True
    guest_dns: bool = False
    management_dns: bool = False
    must_resolve: bool = False
    prefer_ipv4: bool = False
    cluster_domain: str = "cluster.local"


class Inquiry:
    """The resolution of one name: ``ahead`` is the next source, or the answer."""

    def __init__(self, name: str, rules: NameRules) -> None:
        self.asked = name
        #: The current name, which an ExternalName replaces.
        self.name = name
        #: The Service that the name may refer to, if any.
        self.service: ServiceName | None = None
        self.steps: list[Step] = []
        self._rules = rules
        self._aliases = 0
        self._headless = False
        self.ahead: Source | Resolution = self._first()

    @property
    def is_fallback(self) -> bool:
        """Whether the management cluster's DNS replaces the guest's."""
        return any(step.source is Source.GUEST_DNS for step in self.steps)

    def took(self, step: Step) -> Source | Resolution:
        """Record the result of the source in ``ahead``; returns the new ``ahead``."""
        assert step.source is self.ahead
        addresses = chosen(step.addresses, self._rules.prefer_ipv4)
        if addresses != step.addresses:
            step = replace(step, addresses=addresses)
        self.steps.append(step)
        match step.source:
            case Source.SERVICE:
                self.ahead = self._after_service(step)
            case Source.GUEST_DNS:
                self.ahead = self._after_guest(step)
            case _:
                self.ahead = self._after_management(step)
        return self.ahead

    def _first(self) -> Source | Resolution:
        rules = self._rules
        if is_address(self.name):
            self._decide(Source.ADDRESS)
            return self._answer(Way.TUNNEL, (self.name,))
        suffix = rules.cloud.suffix_of(self.name) if rules.cloud is not None else ""
        if suffix:
            self._decide(Source.CLOUD_API, f"ends in {suffix}")
            return self._answer(Way.PROXIED)
        if not rules.enabled:
            self._decide(Source.RESOLVER_OFF, "as --disable-resolver says")
            return Source.MANAGEMENT_DNS if rules.must_resolve else self._unchanged()
        self.service = service_name(self.name, rules.cluster_domain)
        return Source.SERVICE if self.service is not None else self._dns()

    def _dns(self) -> Source:
        if self._rules.guest_dns or self._headless:
            return Source.GUEST_DNS
        return Source.MANAGEMENT_DNS

    def _after_service(self, step: Step) -> Source | Resolution:
        match step.outcome:
            case Outcome.FOUND:
                return self._answer(Way.TUNNEL, step.addresses)
            case Outcome.ALIAS:
                return self._follow(step.alias)
            case Outcome.HEADLESS:
                self._headless = True  # only the guest's DNS knows its pods
            case _:
                pass
        return self._dns()

    def _follow(self, alias: str) -> Source | Resolution:
        self._aliases += 1
        if self._aliases > _MOST_ALIASES:
            return self._fail(f"more than {_MOST_ALIASES} ExternalNames, one after the other")
        try:
            HostPort(alias, 1)
        except ValueError as exc:
            return self._fail(f"the ExternalName of {self.name}: {exc}")
        self.name = alias
        return self._first()

    def _after_guest(self, step: Step) -> Source | Resolution:
        if step.outcome is Outcome.FOUND:
            return self._answer(Way.TUNNEL, step.addresses)
        return Source.MANAGEMENT_DNS if self._rules.management_dns else self._fail()

    def _after_management(self, step: Step) -> Resolution:
        if step.outcome is Outcome.FOUND:
            return self._answer(Way.DIRECT if self.is_fallback else Way.TUNNEL, step.addresses)
        guest = next((s for s in self.steps if s.source is Source.GUEST_DNS), None)
        if guest is None or guest.outcome is Outcome.SKIPPED or self._rules.must_resolve:
            return self._fail()
        # The name is unknown here; the node of the agent may know it.
        return self._unchanged()

    def _unchanged(self) -> Resolution:
        self._decide(Source.AGENT, "resolves it")
        return self._answer(Way.TUNNEL)

    def _decide(self, source: Source, detail: str = "") -> None:
        self.steps.append(Step(source=source, outcome=Outcome.DECIDED, detail=detail))

    def _answer(self, way: Way, addresses: tuple[str, ...] = ()) -> Resolution:
        return Resolution(
            name=self.asked,
            host=self.name,
            way=way,
            steps=tuple(self.steps),
            addresses=addresses,
        )

    def _fail(self, why: str = "") -> Resolution:
        said = [
            f"{step.source.value}: {step.detail or step.outcome.value}"
            for step in self.steps
            if step.source in (Source.GUEST_DNS, Source.MANAGEMENT_DNS)
        ]
        return Resolution(
            name=self.asked,
            host=self.name,
            way=Way.TUNNEL,
            steps=tuple(self.steps),
            failure=DialFailure.UNRESOLVED,
            detail=why or "; ".join(said),
        )


def chosen(addresses: Iterable[str], prefer_ipv4: bool) -> tuple[str, ...]:
    """The addresses to try: each once, only IPv4 where that is preferred and there is any."""
    unique = tuple(dict.fromkeys(addresses))
    preferred = tuple(each for each in unique if ":" not in each) if prefer_ipv4 else ()
    return (preferred or unique)[:MOST_ADDRESSES]
