"""The routes of the SNI router at every address of a plan that is shared by names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from isthmus.hosting.endpoints import through_of
from isthmus.hosting.model import ControlPlaneService, PlannedEndpoint, PublishPlan, Strategy
from isthmus.hosting.objects_metrics import metrics_backend
from isthmus.hosting.shapes import METRICS_PROXY, key
from isthmus.hosting.visibility import SHARED_INGRESS
from isthmus.programs.sni_router.settings_routes import API_VERSION, KIND
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

#: The program that goes by names.
ROUTER_PROGRAM = "sni-router"
_SERVICE = "Service/"
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")
_ROUTE_NAMES: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kube-apiserver",
    ControlPlaneService.KONNECTIVITY: "konnectivity-server",
    ControlPlaneService.OAUTH_SERVER: "oauth-openshift",
    ControlPlaneService.IGNITION: "ignition-server",
    ControlPlaneService.OVN_SB_DB: "ovnkube-sbdb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRoute:
    """Where connections for some names of one service go; None: the metrics of them all."""

    service: ControlPlaneService | None
    #: What logs and metrics call it.
    name: str
    backend: HostPort
    hosts: tuple[str, ...] = ()
    #: The id of the cluster, for connections whose names say nothing.
    tlv: str = ""
    allowed_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAddress:
    """An address that is shared by names.

    ``through`` is who has it. ``default`` names the route of clients that send no name, or one
    that only pods know: kube-apiserver's, where nobody else can be meant.
    """

    through: str
    routes: tuple[NamedRoute, ...]
    default: str = ""

    @property
    def name(self) -> str:
        """A short name of small letters, digits and dashes."""
        text = self.through.removeprefix(_SERVICE).lower()
        return _NOT_IN_A_NAME.sub("-", text).strip("-")


def shared_addresses(plan: PublishPlan) -> tuple[SharedAddress, ...]:
    """Every address that names share, in the order of the endpoints.

    Names that nobody knows yet are left out.
    """
    grouped: dict[str, dict[ControlPlaneService, list[PlannedEndpoint]]] = {}
    for each in plan.endpoints:
        if each.sni and each.service in _ROUTE_NAMES:
            grouped.setdefault(each.through or each.by, {}).setdefault(each.service, []).append(
                each
            )
    return tuple(_shared(plan, through, found) for through, found in grouped.items())


def _shared(
    plan: PublishPlan, through: str, found: Mapping[ControlPlaneService, list[PlannedEndpoint]]
) -> SharedAddress:
    routes = [
        NamedRoute(
            service=service,
            name=_route_name(plan, through, _ROUTE_NAMES[service]),
            hosts=tuple(dict.fromkeys(each.sni for each in endpoints)),
            backend=backend(plan, service),
            allowed_cidrs=_allowed(plan, through),
        )
        for service, endpoints in found.items()
    ]
    # Pods ask for kubernetes.default.svc, or for an address: through the node's proxy, that is
    # what a router sees. One of many clusters has to be told in another way.
    api = next((it for it in routes if it.service is ControlPlaneService.API_SERVER), None)
    if api and through == SHARED_INGRESS and plan.cluster.cluster_id:
        of_pods = replace(api, name=f"{api.name}.pods", hosts=(), tlv=plan.cluster.cluster_id)
        routes.append(of_pods)
    default = api.name if api and through.startswith(_SERVICE) else ""
    return SharedAddress(through=through, routes=tuple(routes), default=default)


def _route_name(plan: PublishPlan, through: str, name: str) -> str:
    """A name of its own in the one table of a router of many clusters."""
    return name if through.startswith(_SERVICE) else f"{plan.cluster.control_plane}.{name}"


def _allowed(plan: PublishPlan, through: str) -> tuple[str, ...]:
    """The CIDR blocks that the router itself has to see to: a shared ingress, for all names.

    Where a Service of the plan's is in front, its load balancer does, and the router may see other
    sources than that.
    """
    return plan.cluster.allowed_cidrs if through == SHARED_INGRESS else ()


def with_metrics(plan: PublishPlan, shared: SharedAddress) -> SharedAddress:
    """The address with the name of the control plane's metrics, if that is shared there too."""
    for each in plan.objects:
        host = each["spec"].get("host", "") if key(each) == f"Route/{METRICS_PROXY}" else ""
        if host and through_of(plan.cluster, each) == shared.through:
            at = metrics_backend(plan.cluster)
            route = NamedRoute(
                service=None,
                name=_route_name(plan, shared.through, METRICS_PROXY),
                hosts=(host,),
                backend=at,
                allowed_cidrs=_allowed(plan, shared.through),
            )
            return replace(shared, routes=(*shared.routes, route))
    return shared


def backend(plan: PublishPlan, service: ControlPlaneService) -> HostPort:
    """Where a service is in the management cluster: its Service, by the whole name."""
    for each in plan.endpoints:
        if each.service is service and each.strategy is Strategy.NONE and each.target:
            return HostPort(f"{each.address}.cluster.local", each.port)
    raise ValueError(f"nothing in the management cluster leads to {service.value}")


def routes_document(
    shared: SharedAddress, backends: Mapping[ControlPlaneService, HostPort] | None = None
) -> str:
    """The configuration of the router; ``backends`` stand in for those of the plan."""
    found: dict[ControlPlaneService | None, HostPort] = dict((backends or {}).items())
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    document["routes"] = [
        {
            "name": each.name,
            **({"tlv": [each.tlv]} if each.tlv else {"hosts": list(each.hosts)}),
            "backends": [str(found.get(each.service, each.backend))],
            **({"allowedCIDRs": list(each.allowed_cidrs)} if each.allowed_cidrs else {}),
        }
        for each in shared.routes
    ]
    if shared.default:
        document["default"] = shared.default
    return to_yaml([document])
