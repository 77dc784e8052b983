"""The fields that a HostedCluster can have, and the readers of their texts.

A mistyped field is an error here. Kubernetes silently drops unknown fields: with a typing error
such as ``allowedCidrBlocks`` the apiserver is open to everyone.

These are the fields of hypershift.openshift.io/v1beta1 as of August 2026, including those behind
feature gates. In the tree a dictionary is a mapping with these keys, a list is a list of such
mappings, and ANY is a value, or a section without effect on publishing whose fields belong to
another API (OpenShift's config API, tolerations of pods, clouds).

A reader takes a text and returns its value, or raises a ValueError whose message follows the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final
from urllib.parse import urlsplit

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.text.addresses import cidr
from isthmus.values import HostPort, is_address

ANY: Final = None
#: A mapping of names to trees, a list of one mapping, or ANY.
Tree = Mapping[str, Any] | list[Mapping[str, Any]] | None

_REFERENCE: Final = {"name": ANY}
_RELEASE: Final = {"image": ANY}
_HOSTNAME: Final = {"hostname": ANY}

_METRICS: Final = ("Telemetry", "SRE", "All")

#: The words that a field can have, if the API has a fixed set of them.
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "spec.networking.networkType": ("OVNKubernetes", "OpenShiftSDN", "Calico", "Other"),
    "spec.networking.allocateNodeCIDRs": ("Enabled", "Disabled"),
    "spec.controllerAvailabilityPolicy": ("HighlyAvailable", "SingleReplica"),
    "spec.infrastructureAvailabilityPolicy": ("HighlyAvailable", "SingleReplica"),
    "spec.monitoring.metricsForwarding.mode": ("Forward", "None"),
    "spec.monitoring.metricsForwarding.metricsSet": _METRICS,
    "spec.monitoring.metricsSet": _METRICS,
    "spec.operatorConfiguration.kubeAPIServer.logLevel": ("Normal", "Debug", "Trace", "TraceAll"),
    "spec.platform.aws.ingressDNSManagement": ("Managed", "Unmanaged"),
    "spec.etcd.managementType": ("Managed", "Unmanaged"),
    "spec.olmCatalogPlacement": ("management", "guest"),
    "spec.secretEncryption.type": ("kms", "aescbc"),
}

#: Sections that must not be empty.
NOT_EMPTY: Final = (
    "spec.operatorConfiguration.clusterNetworkOperator.ovnKubernetesConfig",
    "spec.operatorConfiguration.clusterNetworkOperator.ovnKubernetesConfig.ipv4",
    "spec.operatorConfiguration.clusterNetworkOperator.ovnKubernetesConfig.ipv6",
    "spec.platform.azure.private.privateLink",
    "spec.platform.azure.private.swift",
)

_LABEL = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
_DOTTED_NAME = re.compile(r"(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}", re.ASCII)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)
_INFRA_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]{0,4})-([1-9][0-9]{0,4})", re.ASCII)
_MAX_NAME_CHARS = 253
#: The default range of node ports of Kubernetes.
DEFAULT_PORTS: Final = "30000-32767"


def _values(*names: str) -> dict[str, Tree]:
    """Fields whose contents are not checked."""
    return dict.fromkeys(names, ANY)


_METADATA: Final = _values(
    "name",
    "namespace",
    "annotations",
    "labels",
    "generateName",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "uid",
    "resourceVersion",
    "generation",
    "selfLink",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)

_SERVICE: Final = {
    "service": ANY,
    "servicePublishingStrategy": {
        "type": ANY,
        "nodePort": _values("address", "port"),
        "loadBalancer": {**_HOSTNAME, **_values("loadBalancerClass", "serviceAnnotations")},
        "route": _HOSTNAME,
    },
}

_NETWORKING: Final = {
    "machineNetwork": [{"cidr": ANY}],
    "clusterNetwork": [_values("cidr", "hostPrefix")],
    "serviceNetwork": [{"cidr": ANY}],
    "networkType": ANY,
    "apiServer": _values("advertiseAddress", "port", "allowedCIDRBlocks"),
    "allocateNodeCIDRs": ANY,
}

_AWS: Final = {
    **_values("region", "endpointAccess", "resourceTags", "additionalAllowedPrincipals"),
    **_values("multiArch", "terminationHandlerQueueURL", "managedDNS"),
    "ingressDNSManagement": ANY,
    "cloudProviderConfig": _values("subnet", "zone", "vpc"),
    "serviceEndpoints": [_values("name", "url")],
    "rolesRef": _values(
        "ingressARN",
        "imageRegistryARN",
        "storageARN",
        "networkARN",
        "kubeCloudControllerARN",
        "nodePoolManagementARN",
        "controlPlaneOperatorARN",
    ),
    "sharedVPC": _values("rolesRef", "localZoneID"),
}

_AZURE: Final = {
    **_values("cloud", "location", "resourceGroup", "vnetID", "subnetID", "subscriptionID"),
    **_values("securityGroupID", "tenantID", "containerRegistry", "topology"),
    "azureAuthenticationConfig": {
        "azureAuthenticationConfigType": ANY,
        "managedIdentities": _values("controlPlane", "dataPlane"),
        "workloadIdentities": _values(
            "imageRegistry",
            "ingress",
            "file",
            "disk",
            "nodePoolManagement",
            "cloudProvider",
            "network",
            "controlPlaneOperator",
        ),
    },
    "private": {
        "type": ANY,
        "privateLink": _values("natSubnetID", "additionalAllowedSubscriptions"),
        "swift": {"podNetworkInstance": ANY},
    },
}

_GCP: Final = {
    **_values("project", "region", "endpointAccess", "createDnsZones", "resourceLabels"),
    **_values("workloadIdentity"),
    "networkConfig": {"network": _REFERENCE, "privateServiceConnectSubnet": _REFERENCE},
}

_OPENSTACK: Final = _values(
    "identityRef",
    "managedSubnets",
    "router",
    "network",
    "subnets",
    "networkMTU",
    "externalNetwork",
    "disableExternalNetwork",
    "tags",
    "ingressFloatingIP",
)

_POWERVS: Final = {
    **_values("accountID", "cisInstanceCRN", "resourceGroup", "region", "zone"),
    **_values("subnet", "serviceInstanceID"),
    "vpc": _values("name", "region", "zone", "subnet"),
    "kubeCloudControllerCreds": _REFERENCE,
    "nodePoolManagementCreds": _REFERENCE,
    "ingressOperatorCloudCreds": _REFERENCE,
    "storageOperatorCloudCreds": _REFERENCE,
    "imageRegistryOperatorCloudCreds": _REFERENCE,
}

_PLATFORM: Final = {
    "type": ANY,
    "aws": _AWS,
    "agent": {"agentNamespace": ANY},
    "azure": _AZURE,
    "gcp": _GCP,
    "ibmcloud": {"providerType": ANY},
    "kubevirt": _values("baseDomainPassthrough", "generateID", "credentials", "storageDriver"),
    "openstack": _OPENSTACK,
    "powervs": _POWERVS,
}

_CONFIGURATION: Final = {
    "apiServer": {
        **_values("clientCA", "additionalCORSAllowedOrigins", "encryption"),
        **_values("tlsSecurityProfile", "tlsAdherence", "audit"),
        "servingCerts": {"namedCertificates": [_values("names", "servingCertificate")]},
    },
    "network": _values(
        "clusterNetwork",
        "serviceNetwork",
        "networkType",
        "externalIP",
        "serviceNodePortRange",
        "networkDiagnostics",
        "networkObservability",
    ),
    "proxy": _values("httpProxy", "httpsProxy", "noProxy", "readinessEndpoints", "trustedCA"),
    **_values("authentication", "featureGate", "image", "ingress", "oauth"),
    **_values("operatorhub", "scheduler"),
}

_OVN_SUBNETS: Final = _values("internalJoinSubnet", "internalTransitSwitchSubnet")

_OPERATORS: Final = {
    "clusterNetworkOperator": {
        "disableMultiNetwork": ANY,
        "ovnKubernetesConfig": {
            **_values("mtu", "v4InternalSubnet", "v6InternalSubnet"),
            "ipv4": _OVN_SUBNETS,
            "ipv6": _OVN_SUBNETS,
        },
    },
    **_values("clusterVersionOperator", "ingressOperator", "csiDriverOperator"),
    "kubeAPIServer": {"logLevel": ANY},
    **_values("etcd", "kubeControllerManager", "kubeScheduler"),
    **_values("openShiftAPIServer", "openShiftControllerManager", "openShiftOAuthAPIServer"),
    "oauthServer": ANY,
}

_ETCD: Final = {
    "managementType": ANY,
    "managed": _values("storage", "backup", "scheduling", "shards"),
    "unmanaged": _values("endpoint", "tls", "shards"),
}

_AUTOSCALING: Final = _values(
    "scaling",
    "scaleDown",
    "balancingIgnoredLabels",
    "maxNodesTotal",
    "maxPodGracePeriod",
    "maxNodeProvisionTime",
    "maxFreeDifferenceRatioPercent",
    "podPriorityThreshold",
    "expanders",
)

_SPEC: Final = {
    "release": _RELEASE,
    "controlPlaneRelease": _RELEASE,
    **_values("clusterID", "infraID", "updateService", "channel", "kubeAPIServerDNSName"),
    **_values("controllerAvailabilityPolicy", "infrastructureAvailabilityPolicy"),
    "controlPlaneAvailabilityZoneScheduling": _values("policy", "nonZonalPlacement"),
    "platform": _PLATFORM,
    "dns": _values("baseDomain", "baseDomainPrefix", "publicZoneID", "privateZoneID"),
    "networking": _NETWORKING,
    "autoscaling": _AUTOSCALING,
    "autoNode": {"provisionerConfig": _values("name", "karpenter")},
    "etcd": _ETCD,
    "services": [_SERVICE],
    "pullSecret": _REFERENCE,
    "sshKey": _REFERENCE,
    "issuerURL": ANY,
    "serviceAccountSigningKey": _REFERENCE,
    "configuration": _CONFIGURATION,
    "operatorConfiguration": _OPERATORS,
    "auditWebhook": _REFERENCE,
    "imageContentSources": [_values("source", "mirrors")],
    "additionalTrustBundle": _REFERENCE,
    "secretEncryption": _values("type", "kms", "aescbc"),
    **_values("fips", "pausedUntil", "olmCatalogPlacement", "nodeSelector", "tolerations"),
    "labels": ANY,
    "capabilities": _values("enabled", "disabled"),
    "monitoring": {"metricsForwarding": _values("mode", "metricsSet"), "metricsSet": ANY},
}

#: The whole document.
DOCUMENT: Final[Mapping[str, Tree]] = {
    "apiVersion": ANY,
    "kind": ANY,
    "metadata": _METADATA,
    "spec": _SPEC,
    "status": ANY,
}


def paths(tree: Tree = DOCUMENT, below: str = "") -> list[str]:
    """Every known field as a path, lists as ``[]``."""
    if isinstance(tree, list):
        return paths(tree[0], f"{below}[]")
    found = []
    for name, inside in (tree or {}).items():
        path = f"{below}.{name}" if below else name
        found += [path, *paths(inside, path)]
    return found


def hostname(text: str) -> str:
    """A host name with at least one dot, as HyperShift requires, and valid in DNS."""
    if not _DOTTED_NAME.fullmatch(text) or not _can_be_dialed(text):
        raise ValueError("is not a host name such as api.example.com")
    return text


def domain(text: str) -> str:
    """A domain, which may have only one label, or nothing."""
    spelled = _DOTTED_NAME.fullmatch(text) or _LABEL.fullmatch(text)
    if text and not (spelled and _can_be_dialed(text)):
        raise ValueError("is not a domain such as example.com")
    return text


def address(text: str) -> str:
    if not is_address(text):
        raise ValueError("is not an address such as 172.20.0.1 or fd00::1")
    _refuse_mapped(text)
    return text


def node_address(text: str) -> str:
    """An address or a host name."""
    if is_address(text) or text == "localhost":
        _refuse_mapped(text)
        return text
    try:
        return hostname(text)
    except ValueError:
        raise ValueError("is neither an address nor a host name such as kas.example.com") from None


def network(text: str) -> str:
    """A range of addresses with its prefix; the CRD lets 999.999.999.999/99 through."""
    if "/" not in text:
        raise ValueError("is not a network such as 10.0.0.0/16: its prefix is missing")
    found = cidr(text, host_bits=True)
    _refuse_mapped(text.partition("/")[0])
    return str(found)


def part_of_the_world(text: str) -> str:
    """A range that a NetworkPolicy can exclude from all addresses: it must be smaller."""
    found = network(text)
    if found.endswith("/0"):
        raise ValueError("is every address; name only the ranges of the management cluster")
    return found


def has_host_bits(text: str) -> bool:
    """Whether a network is written with host bits."""
    return ip_network(network(text)).network_address != ip_address(text.partition("/")[0])


def subnet_v4(text: str) -> str:
    """A range that OVN-Kubernetes can have for itself."""
    return _subnet(text, 4, 30)


def subnet_v6(text: str) -> str:
    """A range that OVN-Kubernetes can have for itself."""
    return _subnet(text, 6, 125)


def _subnet(text: str, version: int, longest: int) -> str:
    if not text:
        return ""
    found = ip_network(network(text))
    if found.version != version:
        raise ValueError(f"is not an IPv{version} network")
    if found.prefixlen > longest:
        raise ValueError(f"is too small: its prefix is at most /{longest}")
    if version == 4 and text.startswith("0."):
        raise ValueError("begins with 0, which no node can have")
    return str(found)


def _refuse_mapped(text: str) -> None:
    """Kubernetes takes no IPv4-mapped addresses: ::ffff:10.0.0.1 would be 10.0.0.1 to some only."""
    if ":" in text and IPv6Address(text).ipv4_mapped is not None:
        raise ValueError("is an IPv4 address in IPv6 notation; write it as IPv4")


def port_range(text: str) -> str:
    """Two ports, the lower one first; or nothing, which is the default."""
    if not text:
        return DEFAULT_PORTS
    parts = _RANGE.fullmatch(text)
    if parts is None or not int(parts[1]) <= int(parts[2]) < 65536:
        raise ValueError("is not a range of ports such as 30000-32767")
    return text


def proxy(text: str) -> str:
    """The URL of a proxy, with the scheme that HyperShift requires, or nothing."""
    try:
        if text:
            ProxyAddress.parse(text)
    except ConfigError:
        text = "?"
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("is not a proxy such as http://proxy.example.com:3128")
    return text


def object_name(text: str) -> str:
    """The name of a Kubernetes object: labels with dots between them (RFC 1123)."""
    if len(text) > _MAX_NAME_CHARS or not all(map(_NAME.fullmatch, text.split("."))):
        raise ValueError("is not a name of lower case letters, digits, '-' and '.'")
    return text


def namespace(text: str) -> str:
    """The name of a namespace: one label."""
    if not _NAME.fullmatch(text):
        raise ValueError("is not a namespace: at most 63 lower case letters, digits and '-'")
    return text


def uuid(text: str) -> str:
    """A UUID (RFC 9562) in upper or lower case, or nothing."""
    if text and not _UUID.fullmatch(text):
        raise ValueError("is not a UUID such as 123e4567-e89b-12d3-a456-426614174000")
    return text


def url(text: str) -> str:
    """A URL with a scheme and a host."""
    try:
        parts = urlsplit(text)
        complete = bool(parts.scheme and (parts.netloc or parts.path))
    except ValueError:
        complete = False
    if not complete:
        raise ValueError("is not a URL such as https://example.com")
    return text


def infra_id(text: str) -> str:
    """A name of lower case letters and digits, with dashes in the middle."""
    if len(text) > _MAX_NAME_CHARS or not _INFRA_ID.fullmatch(text):
        raise ValueError("is not a name of lower case letters, digits and '-'")
    return text


#: Texts that are checked but not used in a plan.
TEXTS: Final[Mapping[str, Callable[[str], str]]] = {
    "spec.infraID": infra_id,
    "spec.issuerURL": url,
    "spec.updateService": url,
}


def _can_be_dialed(host: str) -> bool:
    try:
        HostPort(host, 1)
    except ValueError:
        return False
    return not host.endswith(".")
