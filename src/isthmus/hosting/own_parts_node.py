"""A node's own way to kube-apiserver: what ``isthmus apiserver-proxy`` does there, by a plan."""

from __future__ import annotations

from isthmus.hosting.model import Endpoint, From, HostedCluster, Plan, Platform
from isthmus.hosting.own_parts_konnectivity import Choices
from isthmus.hosting.own_parts_names import advertise_address
from isthmus.hosting.visibility import SHARED_INGRESS, is_private
from isthmus.manifests.apiserver_proxy import (
    CONFIG,
    ProxyManifestPlan,
    apiserver_proxy_manifest,
)
from isthmus.manifests.settings import STATIC_POD
from isthmus.manifests.settings_apiserver_proxy import ApiserverProxyManifestSettings
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.apiserver_proxy.plan import CheckPlan, ProxyPlan, ThroughPlan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.apiserver_proxy.settings_file import write
from isthmus.settings.parsing import load
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

#: The authorities of kube-apiserver's certificate, beside the configuration.
CA = "/etc/kubernetes/apiserver-proxy-config/ca.crt"
#: What a shared ingress tells clusters apart by, and where it listens for nodes.
CLUSTER_ID_TLV = 0x20
SHARED_INGRESS_PORT = 6443
_IBM_PATH = "/livez?exclude=etcd&exclude=log"


def proxy_plan(plan: Plan, endpoint: Endpoint, *, ca: str = CA) -> ProxyPlan:
    """What the proxy of each node does; the endpoint must have an address."""
    cluster = plan.cluster
    shared = endpoint.through == SHARED_INGRESS
    port = SHARED_INGRESS_PORT if shared else endpoint.port
    upstream = HostPort(endpoint.address, port)
    path = _IBM_PATH if cluster.platform is Platform.IBMCLOUD else CheckPlan().path
    return ProxyPlan(
        listen=((advertise_address(cluster), cluster.api_port),),
        upstreams=(upstream,),
        check=CheckPlan(path=path, ca=ca),
        proxy_protocol=(Tlv(CLUSTER_ID_TLV, cluster.cluster_id.encode()),) if shared else None,
        through=_through(cluster, endpoint),
    )


def _through(cluster: HostedCluster, endpoint: Endpoint) -> ThroughPlan | None:
    """The cluster's proxy, for nodes that have no private way to kube-apiserver.

    As HyperShift's: an address that is not the internet's is not a private way.
    """
    private = is_private(cluster) and From.INTERNET not in endpoint.visible_from
    if not cluster.https_proxy or private:
        return None
    return ThroughPlan(
        proxy=ProxyAddress.parse(cluster.https_proxy, variable="httpsProxy"),
        no_proxy=cluster.no_proxy,
        networks=(*cluster.service_cidrs[:1], *cluster.cluster_cidrs[:1]),
    )


def node_files(plan: Plan, choices: Choices, endpoint: Endpoint) -> dict[str, str]:
    """The proxy's configuration, and the static pod that runs it.

    Raises:
        ConfigError: a choice is wrong; one sentence.
    """
    manifest = ApiserverProxyManifestSettings(form=STATIC_POD, image=choices.image)
    manifest.validate()
    flags = {"config": (CONFIG,)}
    settings = load(ApiserverProxySettings, flags, {})
    settings.validate()
    pod = ProxyManifestPlan(manifest=manifest, settings=settings, given=flags)
    return {
        "apiserver-proxy.yaml": write(proxy_plan(plan, endpoint)),
        "kube-apiserver-proxy.yaml": apiserver_proxy_manifest(pod),
    }
