"""Every address that a node or a user must be able to reach, and by which of the endpoints.

Who can reach what is decided by endpoints.py; here is only which way is taken where there are
several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from isthmus.errors import ConfigError
from isthmus.hosting.model import Endpoint, From, Plan, Service
from isthmus.hosting.visibility import is_private
from isthmus.values import HostPort

#: What the names that only the guest's own network knows end in.
INTERNAL = ".hypershift.local"


class Who(Enum):
    """Who has to reach something."""

    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that must be reached; ``endpoint`` None says that there is no way to it."""

    who: Who
    service: Service
    stands: From
    why: str
    endpoint: Endpoint | None

    @property
    def at(self) -> str:
        """Where it is, or which object will know."""
        if self.endpoint is None:
            return "nowhere"
        return where_is(self.endpoint)


_NODES: Mapping[Service, str] = {
    Service.API_SERVER: "kubelets, and pods by the node's own address",
    Service.KONNECTIVITY: "agents, for kube-apiserver's way back",
    Service.IGNITION: "machines that start for the first time",
    Service.OAUTH_SERVER: "pods that log users in, such as the console",
}
_USERS: Mapping[Service, str] = {
    Service.API_SERVER: "kubectl, and whatever has a kubeconfig",
    Service.OAUTH_SERVER: "users that log in",
}


def way(plan: Plan, service: Service, stands: From) -> Endpoint | None:
    """The endpoint that somebody takes who stands there; None where none is to be seen.

    Nodes take the name of their own network where there is one, as HyperShift's do; everybody
    else the name that is meant for people.
    """
    inside = stands is not From.INTERNET and is_private(plan.cluster)
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if stands in each.visible_from]

    def least(endpoint: Endpoint) -> tuple[bool, int]:
        internal = endpoint.address.endswith(INTERNAL)
        return internal is not inside, len(endpoint.visible_from)

    return min(seen, key=least, default=None)


def needs(plan: Plan) -> tuple[Need, ...]:
    """All that nodes and users must be able to reach, the nodes' first.

    A user who finds nothing on the internet has to come from the guest's network.
    """
    published = {each.service for each in plan.endpoints}
    found = [
        Need(
            who=Who.NODE,
            service=service,
            stands=From.GUEST_VPC,
            why=why,
            endpoint=way(plan, service, From.GUEST_VPC),
        )
        for service, why in _NODES.items()
        if service in published
    ]
    for service, why in _USERS.items():
        if service in published:
            outside = way(plan, service, From.INTERNET)
            stands = From.GUEST_VPC if outside is None else From.INTERNET
            endpoint = outside or _for_people(plan, service)
            found.append(
                Need(who=Who.USER, service=service, stands=stands, why=why, endpoint=endpoint)
            )
    return tuple(found)


def _for_people(plan: Plan, service: Service) -> Endpoint | None:
    """What a user takes in the guest's network: a name of the document's, if there is one."""
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if From.GUEST_VPC in each.visible_from]
    return min(seen, key=lambda each: each.address.endswith(INTERNAL), default=None)


def where_is(endpoint: Endpoint) -> str:
    """An endpoint's address for those who read it."""
    if endpoint.target is not None:
        return str(endpoint.target)
    port = f" port {endpoint.port}" if endpoint.port else ""
    return f"{endpoint.address or 'an address'}{port} that {endpoint.by} will have"


def with_addresses(plan: Plan, given: Mapping[str, str]) -> Plan:
    """The plan with addresses that became known: by the name of an endpoint, HOST or HOST:PORT.

    Raises:
        ConfigError: there is no such endpoint, or the address is none.
    """
    known = {each.name for each in plan.endpoints}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"there is no endpoint {name!r}, but there are {', '.join(sorted(known))}"
            )
    return replace(
        plan,
        endpoints=tuple(
            _at(each, given[each.name]) if each.name in given else each for each in plan.endpoints
        ),
    )


def _at(endpoint: Endpoint, text: str) -> Endpoint:
    try:
        at = HostPort(text, endpoint.port) if endpoint.port else HostPort.parse(text)
    except ValueError:
        try:
            at = HostPort.parse(text)
        except ValueError as error:
            raise ConfigError(f"{endpoint.name}={text}: {error}") from None
    return replace(endpoint, address=at.host, port=at.port)
