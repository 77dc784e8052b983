"""Names of a plan: what each certificate has to be for, and what is reached without a proxy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from isthmus.hosting.endpoints import API_DNS_NAME
from isthmus.hosting.model import ControlPlaneService, HostedCluster, Platform, PublishPlan
from isthmus.programs.apiserver_proxy.plan import ADVERTISED
from isthmus.programs.sidecar.settings_presets import ETCD, KUBE_APISERVER, NAMESPACE, PRESETS
from isthmus.values import is_address

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
