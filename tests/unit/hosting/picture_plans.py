"""Plans to draw: the worked examples, and some that show what those do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isthmus.hosting.document import read
from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    EndpointAccess,
    HostedCluster,
    PlanFinding,
    Platform,
    Publishing,
    PublishPlan,
    Strategy,
    Weight,
)
from isthmus.hosting.models import V1BETA1
from isthmus.hosting.plan import make_plan

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"


def example(name: str) -> PublishPlan:
    path = EXAMPLES / f"{name}.yaml"
    return make_plan(read(path.read_text(encoding="utf-8"), path.name))


def published(service: ControlPlaneService, strategy: Strategy, hostname: str = "") -> Publishing:
    return Publishing(service=service, strategy=strategy, hostname=hostname)


ROUTES = tuple(
    published(service, Strategy.ROUTE, f"{service.value.lower()}.summer.example.com")
    for service in (
        ControlPlaneService.API_SERVER,
        ControlPlaneService.OAUTH_SERVER,
        ControlPlaneService.KONNECTIVITY,
        ControlPlaneService.IGNITION,
    )
)
SUMMER = HostedCluster(
    model=V1BETA1,
    name="summer",
    namespace="clusters",
    control_plane="clusters-summer",
    platform=Platform.AWS,
    access=EndpointAccess.PUBLIC_AND_PRIVATE,
    has_access=True,
    services=(*ROUTES, published(ControlPlaneService.OVN_SB_DB, Strategy.NONE)),
    service_cidrs=("172.31.0.0/16",),
    cluster_cidrs=("10.132.0.0/14",),
    machine_cidrs=("10.0.0.0/16",),
    advertise_address="172.20.0.1",
    allowed_cidrs=tuple(f"198.51.{number}.0/24" for number in range(40)),
)
LONG = replace(
    SUMMER,
    name="a" * 63,
    control_plane="b" * 63,
    access=EndpointAccess.PRIVATE,
    services=tuple(
        replace(each, hostname=".".join((each.service.value[:2].lower() * 30,) * 4))
        if each.hostname
        else each
        for each in SUMMER.services
    ),
    machine_cidrs=tuple(f"10.{number}.128.0/20" for number in range(100, 119)),
)
KUBEVIRT = replace(
    SUMMER,
    platform=Platform.KUBEVIRT,
    access=EndpointAccess.PUBLIC,
    has_access=False,
    services=(
        published(ControlPlaneService.API_SERVER, Strategy.LOAD_BALANCER),
        *(replace(each, hostname="") for each in ROUTES[1:]),
    ),
    allowed_cidrs=(),
)
NASTY = "\"><script>alert('&')</script>\x00\x1b"
WRONG = PublishPlan(
    cluster=replace(SUMMER, name=NASTY),
    findings=tuple(
        PlanFinding(
            rule=f"rule-{number}",
            weight=Weight.ERROR,
            says=f"this is wrong with {NASTY}, and it takes some words to say so",
            place=DocumentPlace(line=number),
        )
        for number in range(1, 10)
    ),
)

#: Those that were looked at.
KEPT = {
    **{path.stem: example(path.stem) for path in sorted(EXAMPLES.glob("*.yaml"))},
    "public-and-private": make_plan(SUMMER),
    **{
        f"v1alpha1-{path.stem}": example(f"v1alpha1/{path.stem}")
        for path in sorted(EXAMPLES.glob("v1alpha1/*.yaml"))
    },
}
PLANS = {
    **KEPT,
    "long": make_plan(LONG),
    "kubevirt": make_plan(KUBEVIRT),
    "shared-ingress": make_plan(
        replace(SUMMER, platform=Platform.AZURE, access=EndpointAccess.PUBLIC, shared_ingress=True)
    ),
    "swift": make_plan(
        replace(
            SUMMER,
            platform=Platform.AZURE,
            access=EndpointAccess.PRIVATE,
            azure_private_type="Swift",
            swift=True,
        )
    ),
    "wrong": WRONG,
}
