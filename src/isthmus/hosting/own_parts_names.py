"""Names of a plan: of certificates, of what needs no proxy, and routes of SNI routers.

A router is at every address of a plan that is shared by names.
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

#: The endpoint of the ``kubernetes`` service where a document says none.
ADVERTISED_V6 = "fd00::1"
_EVERYTHING = frozenset({"0.0.0.0/0", "::/0"})
_METADATA = "169.254.169.254"
_ETCD_HOST = "etcd-client"
_AZURE_HOST = "168.63.129.16"
# us-east-1 is older than the names of regions.
_FIRST_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateNames:
    """A serving certificate: who shows it, and the subject alternative names that it needs."""

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
    """The address of the ``kubernetes`` service in each service network: the first."""
    return tuple(str(ip_network(cidr, strict=False)[1]) for cidr in cluster.service_cidrs)


def certificates(plan: PublishPlan) -> tuple[CertificateNames, ...]:
    """The certificates of everything that is published, as far as names are known."""
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
        # kube-apiserver shows one that the document names, to those who ask for this name.
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
    """What nodes, and sidecars on their behalf, reach without the cluster's proxy, sorted.

    HyperShift's list, and what the document adds to it. Azure's own host is on it in every cloud of
    Azure's: HyperShift leaves it out of the public one, and no proxy leads there.
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
    """What each component of the control plane reaches without the sidecar beside it, sorted."""
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
