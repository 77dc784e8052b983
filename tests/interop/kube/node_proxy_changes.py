"""Changes of the set of every kind of Service, each a call of the API or a few."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kube.api import Api
from kube.node_proxy_objects import FAMILIES, FAR, LOCAL, THREE, At, Objects, Port, slice_of
from kube.node_proxy_writing import Call, delete, replace, run_calls, services_path, write

Change = Callable[[Api, Objects], None]
_NEW = At(number=90, local=True)
_ENDING = At(number=1, local=True, ready=False, serving=True, terminating=True)


def _endpoints(api: Api, service: str, *ats: At) -> None:
    replace(api, slices=[slice_of(service, family, ats) for family in FAMILIES])


def _patch(api: Api, service: str, **spec: object) -> None:
    path = f"{services_path('default')}/{service}"
    run_calls(api, [Call("PATCH", path, {"spec": spec})])


def add_endpoints(api: Api, objects: Objects) -> None:
    """Put one more behind Services of some kinds, and the first behind another."""
    for service in ("one", "three", "np", "lb", "lb-ranges", "sticky", "itp", "itp-far", "none"):
        _endpoints(api, service, *THREE, _NEW)


def remove_endpoints(api: Api, objects: Objects) -> None:
    """Take some away, and the last from others."""
    for service in ("three", "np", "lb", "lb-etp", "sticky", "itp", "np-sticky"):
        _endpoints(api, service, FAR)
    for service in ("one", "lb-ranges", "np-etp", "ext"):
        _endpoints(api, service)


def end_endpoints(api: Api, objects: Objects) -> None:
    """Have one terminate where it is the only local one, and where others are."""
    for service in ("ext-local", "np-both", "lb-etp-ranges", "sliced"):
        _endpoints(api, service, _ENDING, FAR)


def delete_services(api: Api, objects: Objects) -> None:
    """Delete Services with and without their slices."""
    gone = {"named", "udp", "np-udp", "lb-own-ranges", "sticky-hour", "lb-etp-none"}
    services = [one for one in objects.services if one["metadata"]["name"] in gone]
    slices = [one for one in objects.slices if one["metadata"]["name"].startswith("np-udp-")]
    delete(api, services, slices)


def delete_slices(api: Api, objects: Objects) -> None:
    """Delete the only slice of a Service, and one of two."""
    gone = ("many-ipv4", "many-ipv6", "sliced-ipv4-2", "sliced-ipv6-2")
    delete(api, slices=[one for one in objects.slices if one["metadata"]["name"] in gone])


def change_types(api: Api, objects: Objects) -> None:
    """Make a node port of a cluster IP and the other way round, and a balancer of a node port."""
    ports = [Port(node_port=30100).of_service()]
    _patch(api, "zones", type="NodePort", ports=ports)
    plain = [Port().of_service() | {"nodePort": None}]
    _patch(api, "np-both", type="ClusterIP", ports=plain, externalTrafficPolicy=None)
    _patch(api, "np-itp", type="LoadBalancer")
    _patch(api, "lb-any", type="ClusterIP", ports=plain, loadBalancerSourceRanges=None,
           externalTrafficPolicy=None, allocateLoadBalancerNodePorts=None)  # fmt: skip


def change_policies(api: Api, objects: Objects) -> None:
    """Change traffic policies, affinity, source ranges, ports and external addresses."""
    _patch(api, "np-etp-far", externalTrafficPolicy="Cluster")
    _patch(api, "np-etp", internalTrafficPolicy="Local")
    _patch(api, "sticky-itp", sessionAffinity="None", sessionAffinityConfig=None)
    _patch(api, "zones-some", sessionAffinity="ClientIP")
    _patch(api, "lb-several", loadBalancerSourceRanges=["198.51.100.0/24", "2001:db8:2::/48"])
    _patch(api, "lb-etp-far-ranges", loadBalancerSourceRanges=None)
    _patch(api, "only-v4", ports=[Port(port=8888).of_service()])
    _patch(api, "ext-two", externalIPs=["203.0.113.5", "2001:db8::4"])


def balancer_addresses(api: Api, objects: Objects) -> None:
    """Give a balancer its address, take another's, and change one's mode."""
    for service, ingress in {
        "lb-pending": [{"ip": "203.0.113.77"}, {"ip": "2001:db8::77"}],
        "lb-vip": [],
        "lb-proxy": [{"ip": "203.0.113.17", "ipMode": "VIP"}],
    }.items():
        path = f"{services_path('default')}/{service}/status"
        status = {"status": {"loadBalancer": {"ingress": ingress}}}
        run_calls(api, [Call("PATCH", path, status)])


def create_again(api: Api, objects: Objects) -> None:
    """Create what was deleted, with another address and endpoint."""
    made = Objects(numbers=itertools.count(0x800))
    made.add("named", (LOCAL, _NEW), ports=(Port(name="http", target=9999),))
    write(api, made.services, [])
    replace(api, slices=made.slices)


CHANGES: tuple[Change, ...] = (
    add_endpoints, remove_endpoints, end_endpoints, delete_services, delete_slices, change_types,
    change_policies, balancer_addresses, create_again,
)  # fmt: skip
