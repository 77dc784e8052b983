"""Every plan that has no errors, over platforms, topologies and strategies; made once."""

from __future__ import annotations

from functools import cache
from itertools import product

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    Platform,
    PublishPlan,
    Strategy,
)
from isthmus.hosting.models import V1BETA1
from isthmus.hosting.plan import make_plan
from tests.unit.hosting.clusters import cluster

_STRATEGIES = (Strategy.LOAD_BALANCER, Strategy.NODE_PORT, Strategy.ROUTE)


@cache
def every_plan() -> dict[str, PublishPlan]:
    """By a name that says which it is: platform, access, and the strategies of the services."""
    found = {}
    for platform, access, api, others in product(
        Platform, EndpointAccess, _STRATEGIES, _STRATEGIES
    ):
        if platform not in V1BETA1.with_access and access is not EndpointAccess.PUBLIC:
            continue  # they have one topology
        services = dict.fromkeys(
            (ControlPlaneService.OAUTH_SERVER, ControlPlaneService.KONNECTIVITY), others
        )
        services[ControlPlaneService.API_SERVER] = api
        ignition = others if others is not Strategy.LOAD_BALANCER else Strategy.ROUTE
        services[ControlPlaneService.IGNITION] = ignition
        plan = make_plan(cluster(platform, access, services=dict(services)))
        if not plan.errors:
            name = "-".join((platform.value, access.value, api.value, others.value))
            found[name] = plan
    return found
