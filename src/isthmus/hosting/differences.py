"""Where today's HyperShift shows something else than its design of 2022 said it would."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.hosting.model import Plan, Service, Strategy
from isthmus.hosting.visibility import DESIGNED, WITH_ACCESS, Lists, listed

_SHOWN: Mapping[tuple[bool, bool], str] = {
    (False, False): "to nobody",
    (True, False): "to everybody",
    (False, True): "to the guest's own network",
    (True, True): "to everybody, and to the guest's own network by a way of its own",
}

_LISTED = frozenset(one for each in DESIGNED.values() for one in each.public | each.private)

_WHY: Mapping[Service, str] = {
    Service.API_SERVER: "its strategy decides",
    Service.OIDC: "the entry has no effect any more",
    Service.OAUTH_SERVER: (
        "as soon as a cluster is private it has Routes of the private router, and where it is not"
        " public it has no others"
    ),
    Service.KONNECTIVITY: "its strategy decides: a load balancer of it is always public",
    Service.IGNITION: "nodes cannot start without it",
    Service.OVN_SB_DB: "the entry has no effect any more",
}


def differences(plan: Plan) -> tuple[str, ...]:
    """A sentence for each service that is shown to others than the design says.

    The design has topologies only: of a platform without any it says nothing.
    """
    if plan.cluster.platform not in WITH_ACCESS:
        return ()
    then, now = DESIGNED[plan.cluster.access], listed(plan.endpoints)
    return tuple(
        f"{service.value} {_meant(then, service)},"
        f" and is shown {_SHOWN[_in(now, service)]}: {_why(plan, service)}."
        for service in Service
        if _in(then, service) != _in(now, service)
    )


def _meant(then: Lists, service: Service) -> str:
    if service not in _LISTED:
        return "was not listed"
    return f"was to be shown {_SHOWN[_in(then, service)]}"


def _in(lists: Lists, service: Service) -> tuple[bool, bool]:
    return service in lists.public, service in lists.private


def _why(plan: Plan, service: Service) -> str:
    publishing = plan.cluster.publishing(service)
    if publishing is not None and publishing.strategy is Strategy.NODE_PORT:
        return "its node port is where the nodes of the management cluster are"
    return _WHY[service]
