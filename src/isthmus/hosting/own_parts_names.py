"""Names of a plan: in certificates, in NO_PROXY, and in routes of SNI routers.

There is a router at every address that several names share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from typing import Any

from isthmus.hosting.endpoints import API_DNS_NAME, through_of
from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Strategy,
)
from isthmus.hosting.objects import metrics_backend
from isthmus.hosting.shapes import METRICS_PROXY, key
from isthmus.hosting.visibility import SHARED_INGRESS
from isthmus.programs.apiserver_proxy.plan import ADVERTISED
from isthmus.programs.sidecar.settings_presets import ETCD, KUBE_APISERVER, NAMESPACE, PRESETS
from isthmus.programs.sni_router.settings_routes import API_VERSION, KIND
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort, is_address

#: The endpoint of the ``kubernetes`` Service if a document sets none.
ADVERTISED_V6 = "fd00::1"
_EVERYTHING = frozenset({"0.0.0.0/0", "::/0"})
_METADATA = "169.254.169.254"
_ETCD_HOST = "etcd-client"
_AZURE_HOST = "168.63.129.16"
# us-east-1 is older than region names.
_FIRST_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateNames:
    """A serving certificate: its owner, and the subject alternative names it needs."""

    name: str
    shown_by: str
    names: tuple[str, ...]
    addresses: tuple[str, ...] = ()


def advertise_address(cluster: HostedCluster) -> str:
    """The address that a node has for kube-apiserver: the document's, or HyperShift's own."""
    if cluster.advertise_address:
        return cluster.advertise_address
    first = next(iter(cluster.service_cidrs), "")
    return ADVERTISED_V6 if ":" in first else ADVERTISED


def service_addresses(cluster: HostedCluster) -> tuple[str, ...]:
    """The address of the ``kubernetes`` Service in each service network: the first one."""
    return tuple(str(ip_network(cidr, strict=False)[1]) for cidr in cluster.service_cidrs)


def certificates(plan: PublishPlan) -> tuple[CertificateNames, ...]:
    """The certificates of all published services, with the known names."""
    cluster, published = plan.cluster, {each.service for each in plan.endpoints}
    found = [
        _certificate(
            plan,
            "kube-apiserver",
            ControlPlaneService.API_SERVER,
            ["localhost", *_inside("kubernetes", "default"), *_inside("openshift", "default")],
            _in_namespace(cluster, "kube-apiserver"),
            [f"api.{cluster.name}.hypershift.local", "127.0.0.1", "::1"],
            service_addresses(cluster),
            [advertise_address(cluster)],
        ),
        _certificate(
            plan,
            "konnectivity-server",
            None,
            ["localhost"],
            _in_namespace(cluster, "konnectivity-server-local"),
            ["127.0.0.1"],
        ),
        _certificate(
            plan,
            "konnectivity-cluster",
            ControlPlaneService.KONNECTIVITY,
            _in_namespace(cluster, "konnectivity-server"),
        ),
        _certificate(
            plan,
            "oauth-openshift",
            ControlPlaneService.OAUTH_SERVER,
            _in_namespace(cluster, "oauth-openshift"),
        ),
        _certificate(
            plan,
            "ignition-server",
            ControlPlaneService.IGNITION,
            _in_namespace(cluster, "ignition-server"),
            _in_namespace(cluster, "ignition-server-proxy"),
        ),
        _certificate(
            plan,
            "ovnkube-sbdb",
            ControlPlaneService.OVN_SB_DB,
            _in_namespace(cluster, "ovnkube-master-external"),
        ),
    ]
    if cluster.api_dns_name:
        # kube-apiserver presents a named certificate of the document for this name.
        found.append(
            CertificateNames(
                name=API_DNS_NAME,
                shown_by=ControlPlaneService.API_SERVER.value,
                names=(cluster.api_dns_name,),
            )
        )
    needed = {
        "ovnkube-sbdb": ControlPlaneService.OVN_SB_DB in published,
        "oauth-openshift": ControlPlaneService.OAUTH_SERVER in published,
        "ignition-server": ControlPlaneService.IGNITION in published,
    }
    return tuple(each for each in found if needed.get(each.name, True))


def _certificate(
    plan: PublishPlan, name: str, service: ControlPlaneService | None, *wanted: Iterable[str]
) -> CertificateNames:
    outside = [
        text
        for each in plan.endpoints
        if each.service is service and each.name != API_DNS_NAME
        for text in (each.address, each.sni)
    ]
    texts = dict.fromkeys(text for group in (*wanted, outside) for text in group if text)
    return CertificateNames(
        name=name,
        shown_by=service.value if service else "the server, to kube-apiserver and sidecars",
        names=tuple(text for text in texts if not is_address(text)),
        addresses=tuple(dict.fromkeys(str(ip_address(text)) for text in texts if is_address(text))),
    )


def _inside(name: str, namespace: str) -> list[str]:
    return [name, *(f"{name}.{namespace}{end}" for end in ("", ".svc", ".svc.cluster.local"))]


def _in_namespace(cluster: HostedCluster, name: str) -> list[str]:
    space = cluster.control_plane
    return [name, *(f"{name}.{space}{end}" for end in (".svc", ".svc.cluster.local"))]


def no_proxy(cluster: HostedCluster) -> tuple[str, ...]:
    """Hosts that nodes, and sidecars for them, reach without the cluster's proxy, sorted.

    HyperShift's list plus the document's entries. Azure's own host is included in all Azure clouds:
    HyperShift omits it in the public one, but no proxy leads there.
    """
    found = {"127.0.0.1", "localhost", ".svc", ".cluster.local", ".hypershift.local"}
    found |= set(cluster.machine_cidrs) - _EVERYTHING
    found |= {*cluster.service_cidrs, *cluster.cluster_cidrs, *cluster.no_proxy}
    if cluster.platform in (Platform.AWS, Platform.AZURE):
        found.add(_METADATA)
    if cluster.platform is Platform.AZURE:
        found.add(_AZURE_HOST)
    if cluster.platform is Platform.AWS and cluster.region:
        inside = cluster.region != _FIRST_REGION
        found.add(f".{cluster.region}.compute.internal" if inside else ".ec2.internal")
    return tuple(sorted(found))


def components_no_proxy(cluster: HostedCluster) -> dict[str, tuple[str, ...]]:
    """Hosts that each control plane component reaches without its sidecar, sorted."""
    return {
        name: tuple(
            sorted(
                {
                    KUBE_APISERVER,
                    *(
                        text.replace(ETCD, _ETCD_HOST).replace(NAMESPACE, cluster.control_plane)
                        for text in preset.no_proxy
                    ),
                }
            )
        )
        for name, preset in PRESETS.items()
    }


#: The program that routes by name.
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
    """A route for some names of one service; None is the metrics of all services."""

    service: ControlPlaneService | None
    #: Its name in logs and metrics.
    name: str
    backend: HostPort
    hosts: tuple[str, ...] = ()
    #: The id of the cluster, for connections whose names do not identify it.
    tlv: str = ""
    allowed_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAddress:
    """An address that several names share.

    ``through`` is the object with the address. ``default`` names the route of clients that send no
    name, or one that only pods know: kube-apiserver's, if no other can be meant.
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
    """All addresses that several names share, in the order of the endpoints.

    Unknown names are left out.
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
    # Pods ask for kubernetes.default.svc or for an address, and a router behind the node's proxy
    # sees just that. With several clusters the name does not identify one.
    api = next((it for it in routes if it.service is ControlPlaneService.API_SERVER), None)
    if api and through == SHARED_INGRESS and plan.cluster.cluster_id:
        of_pods = replace(api, name=f"{api.name}.pods", hosts=(), tlv=plan.cluster.cluster_id)
        routes.append(of_pods)
    default = api.name if api and through.startswith(_SERVICE) else ""
    return SharedAddress(through=through, routes=tuple(routes), default=default)


def _route_name(plan: PublishPlan, through: str, name: str) -> str:
    """A unique name in the common table of a router of several clusters."""
    return name if through.startswith(_SERVICE) else f"{plan.cluster.control_plane}.{name}"


def _allowed(plan: PublishPlan, through: str) -> tuple[str, ...]:
    """The CIDR blocks that the router must enforce: at a shared ingress, for all names.

    If a Service of the plan is in front, its load balancer enforces them, and the router may see
    other sources.
    """
    return plan.cluster.allowed_cidrs if through == SHARED_INGRESS else ()


def with_metrics(plan: PublishPlan, shared: SharedAddress) -> SharedAddress:
    """The address with the name of the control plane's metrics, if the name shares it."""
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
    """The address of a service in the management cluster: the full name of its Service."""
    for each in plan.endpoints:
        if each.service is service and each.strategy is Strategy.NONE and each.target:
            return HostPort(f"{each.address}.cluster.local", each.port)
    raise ValueError(f"nothing in the management cluster leads to {service.value}")


def routes_document(
    shared: SharedAddress, backends: Mapping[ControlPlaneService, HostPort] | None = None
) -> str:
    """The configuration of the router; ``backends`` replace those of the plan."""
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
