"""The fields that a HostedCluster of hypershift.openshift.io/v1alpha1 can have.

The fields of v1beta1 without later additions, and with those that v1beta1 removed: single ranges
instead of lists of networks, separate roles and credentials of AWS, configuration as whole objects.
As of the version's last release, whose documents have all fields of those of 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isthmus.hosting.document_fields import ANY, DOCUMENT, Tree

#: The single range that each list of networks replaced, by the list's field.
SINGLE_CIDRS: Final[Mapping[str, str]] = {
    "spec.networking.machineNetwork": "spec.networking.machineCIDR",
    "spec.networking.clusterNetwork": "spec.networking.podCIDR",
    "spec.networking.serviceNetwork": "spec.networking.serviceCIDR",
}

_SPEC: Final[Mapping[str, Any]] = DOCUMENT["spec"]  # type: ignore[assignment]
_SERVICES: Final = _SPEC["services"][0]


def _only(tree: Mapping[str, Any], *names: str) -> dict[str, Tree]:
    return {name: tree[name] for name in names}


_PLATFORMS: Final[Mapping[str, Any]] = _SPEC["platform"]
_AWS: Final = {
    **_only(_PLATFORMS["aws"], "region", "endpointAccess", "resourceTags"),
    **_only(_PLATFORMS["aws"], "additionalAllowedPrincipals", "cloudProviderConfig"),
    **_only(_PLATFORMS["aws"], "serviceEndpoints", "rolesRef"),
    "roles": [dict.fromkeys(("arn", "namespace", "name"), ANY)],
    "kubeCloudControllerCreds": {"name": ANY},
    "nodePoolManagementCreds": {"name": ANY},
    "controlPlaneOperatorCreds": {"name": ANY},
}
_AZURE: Final = {
    "credentials": {"name": ANY},
    **dict.fromkeys(("location", "resourceGroup", "vnetName", "vnetID", "subnetName"), ANY),
    **dict.fromkeys(("subscriptionID", "machineIdentityID", "securityGroupName"), ANY),
}
_CONFIGURATION: Final = {
    **_only(_SPEC["configuration"], "apiServer", "authentication", "featureGate", "image"),
    **_only(_SPEC["configuration"], "ingress", "network", "oauth", "proxy", "scheduler"),
    "items": ANY,
    "secretRefs": [{"name": ANY}],
    "configMapRefs": [{"name": ANY}],
}
_AUTOSCALING: Final = _only(
    _SPEC["autoscaling"],
    "maxNodesTotal",
    "maxPodGracePeriod",
    "maxNodeProvisionTime",
    "podPriorityThreshold",
)
_PUBLISHED: Final = {
    "service": ANY,
    "servicePublishingStrategy": {
        **_only(_SERVICES["servicePublishingStrategy"], "type", "nodePort", "route"),
        "loadBalancer": {"hostname": ANY},
    },
}

#: The whole document.
DOCUMENT_V1ALPHA1: Final[Mapping[str, Tree]] = {
    **DOCUMENT,
    "spec": {
        **_only(_SPEC, "release", "clusterID", "infraID", "channel"),
        **_only(_SPEC, "controllerAvailabilityPolicy", "infrastructureAvailabilityPolicy"),
        "platform": {
            **_only(_PLATFORMS, "type", "agent", "ibmcloud", "kubevirt", "powervs"),
            "aws": _AWS,
            "azure": _AZURE,
        },
        "dns": _SPEC["dns"],
        "networking": {
            **_only(_SPEC["networking"], "machineNetwork", "clusterNetwork", "serviceNetwork"),
            **_only(_SPEC["networking"], "networkType", "apiServer"),
            **dict.fromkeys(("machineCIDR", "podCIDR", "serviceCIDR"), ANY),
        },
        "autoscaling": _AUTOSCALING,
        "etcd": {
            "managementType": ANY,
            "managed": {"storage": ANY},
            "unmanaged": _only(_SPEC["etcd"]["unmanaged"], "endpoint", "tls"),
        },
        "services": [_PUBLISHED],
        **_only(_SPEC, "pullSecret", "sshKey", "issuerURL", "serviceAccountSigningKey"),
        "configuration": _CONFIGURATION,
        **_only(_SPEC, "auditWebhook", "imageContentSources", "additionalTrustBundle"),
        **_only(_SPEC, "secretEncryption", "fips", "pausedUntil", "olmCatalogPlacement"),
        **_only(_SPEC, "nodeSelector"),
    },
}
