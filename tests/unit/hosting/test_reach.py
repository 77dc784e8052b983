"""What nodes and users must be able to reach, and which of several ways they take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.errors import ConfigError
from isthmus.hosting.endpoints import Reacher, needs, way, with_addresses
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Viewpoint,
)
from isthmus.hosting.models import V1ALPHA1
from isthmus.hosting.plan import make_plan
from tests.unit.hosting.clusters import LB, NODE_PORT, ROUTE, cluster, published
from tests.unit.hosting.every_plan import every_plan

API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION


def plan_of(access: EndpointAccess, api: object = LB, **said: object) -> PublishPlan:
    return make_plan(cluster(Platform.AWS, access, services={API: api}, **said))  # type: ignore[dict-item]


def reached(plan: PublishPlan, who: Reacher) -> dict[ControlPlaneService, tuple[Viewpoint, str]]:
    return {each.service: (each.stands, each.at) for each in needs(plan) if each.who is who}


def test_public_nodes_and_users_take_the_same_names() -> None:
    plan = plan_of(EndpointAccess.PUBLIC)
    assert reached(plan, Reacher.NODE) == {
        API: (Viewpoint.GUEST_VPC, "apiserver.example.com:6443"),
        TUNNEL: (Viewpoint.GUEST_VPC, "konnectivity.example.com:443"),
        IGNITION: (Viewpoint.GUEST_VPC, "ignition.example.com:443"),
        OAUTH: (Viewpoint.GUEST_VPC, "oauthserver.example.com:443"),
    }
    assert reached(plan, Reacher.USER) == {
        API: (Viewpoint.INTERNET, "apiserver.example.com:6443"),
        OAUTH: (Viewpoint.INTERNET, "oauthserver.example.com:443"),
    }


# Reference: private upstreams are api.NAME.hypershift.local, 6443 for a load balancer, else 443.
@pytest.mark.parametrize(("api", "port"), [(LB, 6443), (ROUTE, 443)])
@pytest.mark.parametrize("access", [EndpointAccess.PUBLIC_AND_PRIVATE, EndpointAccess.PRIVATE])
def test_nodes_with_a_network_of_their_own_take_its_names(
    access: EndpointAccess, api: object, port: int
) -> None:
    found = reached(plan_of(access, api), Reacher.NODE)
    assert found[API][1] == f"api.demo.hypershift.local:{port}"
    assert found[TUNNEL][1] == "konnectivity-server.apps.demo.hypershift.local:443"


def test_users_come_from_the_guests_network_when_nothing_is_public() -> None:
    found = reached(plan_of(EndpointAccess.PRIVATE, ROUTE), Reacher.USER)
    assert found[API] == (Viewpoint.GUEST_VPC, "apiserver.example.com:443")
    both = reached(plan_of(EndpointAccess.PUBLIC_AND_PRIVATE, ROUTE), Reacher.USER)
    assert both[API] == (Viewpoint.INTERNET, "apiserver.example.com:443")


@pytest.mark.parametrize("name", every_plan())
def test_everything_that_nodes_need_is_to_be_seen_from_there(name: str) -> None:
    plan = every_plan()[name]
    found = [each for each in needs(plan) if each.who is Reacher.NODE]
    ovn = {ControlPlaneService.OVN_SB_DB} if plan.cluster.model is V1ALPHA1 else set()
    assert {each.service for each in found} == {API, TUNNEL, IGNITION, OAUTH} | ovn
    for each in found:
        assert each.endpoint is not None and Viewpoint.GUEST_VPC in each.endpoint.visible_from


def test_a_way_that_nobody_has_is_said() -> None:
    plan = plan_of(EndpointAccess.PUBLIC)
    inside = tuple(each for each in plan.endpoints if Viewpoint.GUEST_VPC not in each.visible_from)
    alone = replace(plan, endpoints=inside)
    assert way(alone, API, Viewpoint.GUEST_VPC) is None
    assert {each.at for each in needs(alone)} == {"nowhere"}


def endpoint(plan: PublishPlan, name: str) -> PlannedEndpoint:
    return next(each for each in plan.endpoints if each.name == name)


def test_an_address_that_became_known_is_filled_in() -> None:
    plan = plan_of(EndpointAccess.PUBLIC, published(API, LB, hostname=""))
    assert "Service/kube-apiserver will have" in reached(plan, Reacher.NODE)[API][1]
    for text, at in (("lb.example.net", "lb.example.net:6443"), ("192.0.2.7:7443", None)):
        known = with_addresses(plan, {"kube-apiserver": text})
        assert reached(known, Reacher.NODE)[API][1] == (at or text)
    assert endpoint(known, "oauth") == endpoint(plan, "oauth")


def test_a_port_that_became_known_is_filled_in() -> None:
    services = {
        each: published(each, NODE_PORT, node_port=0) for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    plan = make_plan(cluster(Platform.AGENT, services=dict(services)))
    known = with_addresses(plan, {"konnectivity-server": "192.0.2.7:31234"})
    assert reached(known, Reacher.NODE)[TUNNEL][1] == "192.0.2.7:31234"
    with pytest.raises(ConfigError, match=r"^konnectivity-server=192\.0\.2\.7: no port"):
        with_addresses(plan, {"konnectivity-server": "192.0.2.7"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kube-apiservr": "192.0.2.7"}, "there is no endpoint 'kube-apiservr'"),
        ({"kube-apiserver": "not a host"}, "kube-apiserver=not a host: not a host name"),
        ({"kube-apiserver": "lb:99999"}, "port out of range"),
    ],
)
def test_a_wrong_address_is_one_sentence(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_addresses(plan_of(EndpointAccess.PUBLIC), given)
