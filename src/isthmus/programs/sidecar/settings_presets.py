"""HyperShift's configuration of each hosted control plane component that has a sidecar.

Tables: the sidecars, their flags, and the variables of the component itself. render_manifest.py
writes them as manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SOCKS5, HTTPS, DUAL = "socks5", "https", "dual"
MODES = (SOCKS5, HTTPS, DUAL)

#: Variables of the main container: proxies for HTTP clients, for gRPC clients, those of the
#: management cluster to pass on, or none.
HTTP_VARIABLES, GRPC_VARIABLES, HANDED_ON, NO_VARIABLES = "http", "grpc", "management", "none"
VARIABLES = (HTTP_VARIABLES, GRPC_VARIABLES, HANDED_ON, NO_VARIABLES)

KUBE_APISERVER = "kube-apiserver"
_AUDIT = "audit-webhook"
#: Placeholders in ``no_proxy`` for values that differ in each control plane.
ETCD, NAMESPACE = "{etcd}", "{namespace}"
#: The catalogs of OLM, if they run in the management cluster.
CATALOGS = ("certified-operators", "community-operators", "redhat-operators")

Flags = Mapping[str, tuple[str, ...]]
_TRUE = ("true",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One component; flags are by attribute, as typed."""

    mode: str
    socks5: Flags = field(default_factory=dict)
    https: Flags = field(default_factory=dict)
    variables: str = HTTP_VARIABLES
    no_proxy: tuple[str, ...] = ()
    #: The volume of its pod with the guest cluster's kubeconfig.
    kubeconfig_volume: str = "kubeconfig"
    uses_catalogs: bool = False


_GUEST_DNS: Flags = {"resolve_from_guest_cluster_dns": _TRUE}
_CLOUD: Flags = {"connect_directly_to_cloud_apis": _TRUE}
_OLM = Preset(mode=SOCKS5, variables=GRPC_VARIABLES, uses_catalogs=True)

PRESETS: Mapping[str, Preset] = {
    "openshift-apiserver": Preset(mode=HTTPS, no_proxy=(ETCD, _AUDIT)),
    "openshift-oauth-apiserver": Preset(mode=SOCKS5, socks5=_GUEST_DNS, no_proxy=(ETCD, _AUDIT)),
    "oauth-openshift": Preset(
        mode=DUAL,
        socks5={**_GUEST_DNS, "resolve_from_management_cluster_dns": _TRUE},
        https=_CLOUD,
        no_proxy=(_AUDIT, f"oauth-openshift.{NAMESPACE}.svc.cluster.local"),
    ),
    "ingress-operator": Preset(mode=HTTPS, https=_CLOUD, kubeconfig_volume="admin-kubeconfig"),
    "cluster-network-operator": Preset(
        mode=SOCKS5,
        socks5={"disable_resolver": _TRUE},
        variables=HANDED_ON,
        kubeconfig_volume="hosted-etc-kube",
    ),
    "catalog-operator": _OLM,
    "olm-operator": _OLM,
    "packageserver": _OLM,
}
