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
from isthmus.hosting.models import MODELS, V1ALPHA1, V1BETA1
from isthmus.hosting.plan import make_plan
from tests.unit.hosting.clusters import cluster

_STRATEGIES = (Strategy.LOAD_BALANCER, Strategy.NODE_PORT, Strategy.ROUTE)


@cache
def every_plan() -> dict[str, PublishPlan]:
    """By a name that says which it is: platform, access, strategies of the services, version."""
    found = {}
    for model, platform, access, api, others in product(
        MODELS.values(), Platform, EndpointAccess, _STRATEGIES, _STRATEGIES
    ):
        if platform not in model.with_access and access is not EndpointAccess.PUBLIC:
            continue  # they have one topology
        if model is V1ALPHA1 and platform not in (Platform.AWS, Platform.AGENT):
            continue  # the others are as Agent is
        services = dict.fromkeys(
            (ControlPlaneService.OAUTH_SERVER, ControlPlaneService.KONNECTIVITY), others
        )
        services[ControlPlaneService.API_SERVER] = api
        ignition = others if others is not Strategy.LOAD_BALANCER else Strategy.ROUTE
        services[ControlPlaneService.IGNITION] = ignition
        if model is V1ALPHA1:
            services[ControlPlaneService.OAUTH_SERVER] = ignition
            services[ControlPlaneService.OVN_SB_DB] = ignition
            bucket = platform is Platform.AWS
            services[ControlPlaneService.OIDC] = Strategy.S3 if bucket else Strategy.NONE
        url = "https://bucket.example.com"
        given = cluster(platform, access, services, model=model, issuer_url=url)
        plan = make_plan(given)
        if not plan.errors:
            name = "-".join((platform.value, access.value, api.value, others.value))
            found[name if model is V1BETA1 else f"{name}-{model.version}"] = plan
    return found
