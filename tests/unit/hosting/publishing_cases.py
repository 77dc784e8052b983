"""Documents that break one rule each, as changes to documents that break none."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"
STRATEGY = "servicePublishingStrategy"
API, OAUTH, KONNECTIVITY, IGNITION = (f"spec.services[{index}]" for index in range(4))
NETWORKING = "spec.networking"
REMOVED = object()


def example(name: str) -> dict[str, Any]:
    """The HostedCluster of an example."""
    documents = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    return next(each for each in documents if each["kind"] == "HostedCluster")


def changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with other values at these paths."""
    document = deepcopy(document)
    for path, value in changes.items():
        *above, last = [
            int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)
        ]
        place: Any = document
        for part in above:
            place = place.setdefault(part, {}) if isinstance(part, str) else place[part]
        if value is REMOVED:
            del place[last]
        elif isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    return document


def entry(service: str, kind: str, **section: Any) -> dict[str, Any]:
    """An entry of spec.services."""
    return {"service": service, STRATEGY: {"type": kind, **section}}


def route(host: str = "") -> dict[str, Any]:
    """A strategy."""
    return {"type": "Route", "route": {"hostname": host} if host else {}}


def node_port(address: str, port: int = 0) -> dict[str, Any]:
    """A strategy."""
    section: dict[str, Any] = {"address": address}
    return {"type": "NodePort", "nodePort": section | ({"port": port} if port else {})}


BALANCER: dict[str, Any] = {"type": "LoadBalancer", "loadBalancer": {}}

WORKLOADS = (
    *("imageRegistry", "ingress", "file", "disk", "nodePoolManagement", "cloudProvider"),
    *("network", "controlPlaneOperator"),
)
AWS = example("public-loadbalancer")
PRIVATE = example("private-route")
BARE = example("nodeport-baremetal")
AZURE = changed(
    AWS,
    {
        "spec.platform": {
            "type": "Azure",
            "azure": {
                "location": "westeurope",
                "topology": "Public",
                "azureAuthenticationConfig": {
                    "azureAuthenticationConfigType": "WorkloadIdentities",
                    "workloadIdentities": {
                        name: {"clientID": "12345678-1234-5678-9012-123456789012"}
                        for name in WORKLOADS
                    },
                },
            },
        }
    },
)
TOPOLOGY = "spec.platform.azure.topology"
LINK = "spec.platform.azure.private"
LINKED = {"type": "PrivateLink", "privateLink": {"natSubnetID": "/subscriptions/1/subnets/nat"}}
SWIFT = {"type": "Swift", "swift": {"podNetworkInstance": "instance"}}
IDENTITIES = "spec.platform.azure.azureAuthenticationConfig"
MANAGED = {
    f"{IDENTITIES}.azureAuthenticationConfigType": "ManagedIdentities",
    f"{IDENTITIES}.managedIdentities": {"controlPlane": {}, "dataPlane": {}},
    f"{IDENTITIES}.workloadIdentities": REMOVED,
}
OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"
OVN = f"{OPERATOR}.ovnKubernetesConfig"
CERTIFICATES = "spec.configuration.apiServer.servingCerts.namedCertificates"
GCP = changed(PRIVATE, {"spec.platform": {"type": "GCP", "gcp": {"region": "europe-west3"}}})
KUBEVIRT = changed(AWS, {"spec.platform": {"type": "KubeVirt"}})
CLEAN = {
    "aws": AWS,
    "private": PRIVATE,
    "bare": BARE,
    "azure": AZURE,
    "gcp": GCP,
    "kubevirt": KUBEVIRT,
}


class Case(NamedTuple):
    """Changes to a clean document that break a rule, and the field that is told."""

    base: dict[str, Any]
    changes: dict[str, Any]
    field: str


CASES: dict[str, list[Case]] = {
    "required-services": [
        Case(AWS, {IGNITION: REMOVED}, "spec.services"),
        Case(BARE, {KONNECTIVITY: REMOVED}, "spec.services"),
        Case(
            changed(AWS, {"spec.platform": {"type": "IBMCloud"}, IGNITION: REMOVED}),
            {KONNECTIVITY: REMOVED},
            "spec.services",
        ),
    ],
    "service-once": [
        Case(AWS, {"spec.services[4]": entry("Konnectivity", "Route")}, "spec.services[4].service")
    ],
    "strategy-possible": [
        Case(BARE, {f"{API}.{STRATEGY}": {"type": "None"}}, f"{API}.{STRATEGY}.type"),
        Case(BARE, {f"{API}.{STRATEGY}": {"type": "S3"}}, f"{API}.{STRATEGY}.type"),
        Case(BARE, {f"{OAUTH}.{STRATEGY}": BALANCER}, f"{OAUTH}.{STRATEGY}.type"),
        Case(BARE, {f"{IGNITION}.{STRATEGY}": BALANCER}, f"{IGNITION}.{STRATEGY}.type"),
        Case(AWS, {f"{OAUTH}.{STRATEGY}": BALANCER}, f"{OAUTH}.{STRATEGY}.type"),
    ],
    "section-of-type": [
        Case(
            AWS,
            {f"{IGNITION}.{STRATEGY}.nodePort": {"address": "ignition.example.com", "port": 30100}},
            f"{IGNITION}.{STRATEGY}.nodePort",
        ),
        Case(AWS, {f"{API}.{STRATEGY}.route": {}}, f"{API}.{STRATEGY}.route"),
        Case(BARE, {f"{API}.{STRATEGY}.loadBalancer": {}}, f"{API}.{STRATEGY}.loadBalancer"),
    ],
    "node-port-section": [
        Case(BARE, {f"{API}.{STRATEGY}": {"type": "NodePort"}}, f"{API}.{STRATEGY}.nodePort")
    ],
    "control-plane-namespace": [Case(AWS, {"metadata.name": "a" * 55}, "metadata.name")],
    "s3-on-aws": [
        Case(BARE, {"spec.services[4]": entry("OIDC", "S3")}, f"spec.services[4].{STRATEGY}.type")
    ],
    "unused-service": [
        Case(AWS, {"spec.services[4]": entry("OIDC", "S3")}, "spec.services[4]"),
        Case(BARE, {"spec.services[4]": entry("OVNSbDb", "None")}, "spec.services[4]"),
    ],
    "filled-in-service": [
        Case(KUBEVIRT, {IGNITION: REMOVED}, "spec.services"),
        Case(KUBEVIRT, {"spec.services": REMOVED}, "spec.services"),
    ],
    "api-route-hostname": [
        Case(PRIVATE, {f"{API}.{STRATEGY}": route()}, f"{API}.{STRATEGY}.route.hostname"),
        Case(AWS, {f"{API}.{STRATEGY}": {"type": "Route"}}, f"{API}.{STRATEGY}.route.hostname"),
        Case(BARE, {f"{API}.{STRATEGY}": route()}, f"{API}.{STRATEGY}.route.hostname"),
    ],
    "hostname-once": [
        Case(
            AWS,
            {f"{OAUTH}.{STRATEGY}": route("API.spring.example.com")},
            f"{OAUTH}.{STRATEGY}.route.hostname",
        ),
        Case(
            PRIVATE,
            {f"{IGNITION}.{STRATEGY}": route("konnectivity.autumn.example.com")},
            f"{IGNITION}.{STRATEGY}.route.hostname",
        ),
    ],
    "named-certificate": [
        Case(
            AWS,
            {
                "spec.configuration.apiServer.servingCerts.namedCertificates": [
                    {"names": ["anything", "api.spring.example.com"]}
                ]
            },
            f"{API}.{STRATEGY}.loadBalancer.hostname",
        )
    ],
    "named-certificate-wider": [
        Case(
            base,
            {
                "spec.configuration.apiServer.servingCerts.namedCertificates": [
                    {"servingCertificate": {"name": "none"}},
                    {"names": [name, "*.example.com"]},
                ]
            },
            f"{API}.{STRATEGY}.{section}.hostname",
        )
        for base, name, section in (
            (AWS, "*.spring.example.com", "loadBalancer"),
            (PRIVATE, "api.autumn.example.com", "route"),
        )
    ],
    "hostname-reserved": [
        Case(
            AWS,
            {f"{API}.{STRATEGY}.loadBalancer.hostname": "api.spring.hypershift.local"},
            f"{API}.{STRATEGY}.loadBalancer.hostname",
        )
    ],
    "route-hostnames-mixed": [
        Case(
            AWS,
            {f"{API}.{STRATEGY}": route("a.example.com"), f"{OAUTH}.{STRATEGY}": route()},
            f"{OAUTH}.{STRATEGY}.route.hostname",
        )
    ],
    "private-api-hostname": [
        Case(GCP, {f"{API}.{STRATEGY}": route()}, f"{API}.{STRATEGY}.route.hostname")
    ],
    "node-port-once": [
        Case(
            BARE,
            {f"{OAUTH}.{STRATEGY}": node_port(address, 30643)},
            f"{OAUTH}.{STRATEGY}.nodePort.port",
        )
        for address in ("192.168.100.10", "192.168.100.11")
    ],
    "node-port-range": [
        Case(
            BARE,
            {f"{where}.{STRATEGY}.nodePort.port": 6443},
            f"{where}.{STRATEGY}.nodePort.port",
        )
        for where in (API, KONNECTIVITY)
    ],
    "node-port-in-services": [
        Case(
            BARE,
            {f"{API}.{STRATEGY}.nodePort.address": "172.31.0.10"},
            f"{API}.{STRATEGY}.nodePort.address",
        )
    ],
    "node-port-advertised": [
        Case(
            BARE,
            {f"{API}.{STRATEGY}.nodePort.address": "172.20.0.1"},
            f"{API}.{STRATEGY}.nodePort.address",
        )
    ],
    "node-port-in-pods": [
        Case(
            BARE,
            {f"{API}.{STRATEGY}.nodePort.address": "10.132.0.10"},
            f"{API}.{STRATEGY}.nodePort.address",
        )
    ],
    "node-port-nowhere": [
        Case(
            BARE,
            {f"{API}.{STRATEGY}.nodePort.address": address},
            f"{API}.{STRATEGY}.nodePort.address",
        )
        for address in ("127.0.0.1", "localhost", "fe80::1", "0.0.0.0", "224.0.0.1")
    ],
    "node-port-chosen-later": [
        Case(
            BARE,
            {f"{API}.{STRATEGY}": node_port("192.168.100.10", port)},
            f"{API}.{STRATEGY}.nodePort.port",
        )
        for port in (0, -1)
    ],
    "aws-route": [
        Case(AWS, {f"{KONNECTIVITY}.{STRATEGY}": BALANCER}, f"{KONNECTIVITY}.{STRATEGY}.type"),
        Case(
            AWS,
            {f"{IGNITION}.{STRATEGY}": node_port("192.0.2.1", 30000)},
            f"{IGNITION}.{STRATEGY}.type",
        ),
    ],
    "aws-api-server": [
        Case(AWS, {f"{API}.{STRATEGY}": node_port("192.0.2.1", 30000)}, f"{API}.{STRATEGY}.type")
    ],
    "platform-section": [
        Case(base, {path: REMOVED}, path)
        for base, path in (
            (AWS, "spec.platform.aws"),
            (AZURE, "spec.platform.azure"),
            (BARE, "spec.platform.agent"),
        )
    ],
    "azure-identities": [
        Case(
            AZURE, {f"{IDENTITIES}.workloadIdentities": REMOVED}, f"{IDENTITIES}.workloadIdentities"
        ),
        Case(
            AZURE,
            {f"{IDENTITIES}.managedIdentities": {"dataPlane": {}}},
            f"{IDENTITIES}.managedIdentities",
        ),
        Case(AZURE, {IDENTITIES: REMOVED}, f"{IDENTITIES}.azureAuthenticationConfigType"),
        Case(
            AZURE,
            {f"{IDENTITIES}.workloadIdentities.disk": REMOVED},
            f"{IDENTITIES}.workloadIdentities.disk",
        ),
    ],
    "azure-private-section": [
        Case(AZURE, {TOPOLOGY: "Private", LINK: {"type": "PrivateLink"}}, f"{LINK}.privateLink"),
        Case(AZURE, {TOPOLOGY: "Private", LINK: {**LINKED, **SWIFT}}, f"{LINK}.privateLink"),
        Case(AZURE, {TOPOLOGY: "Private", LINK: {**SWIFT, **LINKED}}, f"{LINK}.swift"),
    ],
    "azure-private-link-identity": [
        Case(
            AZURE,
            {
                TOPOLOGY: "Private",
                LINK: LINKED,
                f"{IDENTITIES}.workloadIdentities.controlPlaneOperator": REMOVED,
            },
            f"{IDENTITIES}.workloadIdentities.controlPlaneOperator",
        )
    ],
    "network-type-other": [
        Case(
            AWS,
            {f"{NETWORKING}.allocateNodeCIDRs": "Enabled"},
            f"{NETWORKING}.allocateNodeCIDRs",
        ),
        Case(
            AWS,
            {
                f"{NETWORKING}.networkType": "Calico",
                f"{OPERATOR}.disableMultiNetwork": True,
            },
            f"{OPERATOR}.disableMultiNetwork",
        ),
    ],
    "ovn-other-network": [
        Case(
            AWS,
            {f"{NETWORKING}.networkType": "OpenShiftSDN", f"{OVN}.mtu": 1400},
            OVN,
        )
    ],
    "ovn-subnets-overlap": [
        *(
            Case(AWS, {f"{OVN}.{field}": cidr}, f"{NETWORKING}.{other}Network[0].cidr")
            for field, cidr, other in (
                ("ipv4.internalJoinSubnet", "10.0.128.0/24", "machine"),
                ("ipv4.internalTransitSwitchSubnet", "10.128.0.0/9", "cluster"),
                ("v4InternalSubnet", "172.31.0.0/24", "service"),
            )
        ),
        Case(
            AWS,
            {
                f"{OVN}.ipv6": {
                    "internalJoinSubnet": "fd99::/64",
                    "internalTransitSwitchSubnet": "fd99::/64",
                }
            },
            f"{OVN}.ipv6.internalTransitSwitchSubnet",
        ),
        Case(
            KUBEVIRT,
            {f"{NETWORKING}.machineNetwork[0].cidr": "100.66.0.0/24"},
            f"{NETWORKING}.machineNetwork[0].cidr",
        ),
        Case(
            KUBEVIRT,
            {f"{OVN}.v6InternalSubnet": "fd99::/48"},
            f"{OVN}.v6InternalSubnet",
        ),
    ],
    "network-host-bits": [
        Case(AWS, {path: text}, path)
        for path, text in (
            (f"{NETWORKING}.machineNetwork[0].cidr", "10.0.0.1/16"),
            (f"{NETWORKING}.apiServer.allowedCIDRBlocks[0]", "198.51.100.7/24"),
            (f"{OVN}.v4InternalSubnet", "100.64.0.1/16"),
        )
    ],
    "named-certificate-internal": [
        Case(AWS, {CERTIFICATES: [{"names": [name]}]}, CERTIFICATES)
        for name in ("kubernetes.default.svc", "api.spring.hypershift.local")
    ],
    "api-dns-name-certificate": [
        Case(AWS, {"spec.kubeAPIServerDNSName": "k8s.example.net"}, "spec.kubeAPIServerDNSName")
    ],
    "azure-route": [
        Case(AZURE, {f"{KONNECTIVITY}.{STRATEGY}": BALANCER}, f"{KONNECTIVITY}.{STRATEGY}.type")
    ],
    "azure-oauth": [
        Case(
            AZURE,
            {**MANAGED, f"{OAUTH}.{STRATEGY}": BALANCER},
            f"{OAUTH}.{STRATEGY}.type",
        ),
        Case(
            AZURE,
            {f"{OAUTH}.{STRATEGY}": node_port("192.0.2.1", 30000)},
            f"{OAUTH}.{STRATEGY}.type",
        ),
    ],
    "azure-private-type": [
        Case(AZURE, {TOPOLOGY: topology}, f"{LINK}.type")
        for topology in ("Private", "PublicAndPrivate")
    ],
    "azure-public-private": [Case(AZURE, {LINK: LINKED}, LINK)],
    "azure-private-unused": [Case(AZURE, {LINK: LINKED, TOPOLOGY: REMOVED}, LINK)],
    "other-platform": [
        Case(BARE, {"spec.platform.aws": {"region": "x"}}, "spec.platform.aws"),
    ],
    "private-yet-public": [
        Case(GCP, {f"{KONNECTIVITY}.{STRATEGY}": BALANCER}, KONNECTIVITY),
        Case(GCP, {f"{API}.{STRATEGY}": node_port("192.0.2.1", 30000)}, API),
        Case(
            AZURE,
            {
                TOPOLOGY: "Private",
                LINK: LINKED,
                f"{API}.{STRATEGY}": node_port("192.0.2.1", 30000),
            },
            API,
        ),
    ],
    "load-balancer-provider": [
        Case(BARE, {f"{API}.{STRATEGY}": BALANCER}, f"{API}.{STRATEGY}.type")
    ],
    "networks-overlap": [
        Case(
            AWS,
            {f"{NETWORKING}.machineNetwork[0].cidr": "10.132.4.0/24"},
            f"{NETWORKING}.clusterNetwork[0].cidr",
        ),
        Case(
            AWS,
            {f"{NETWORKING}.clusterNetwork[0].cidr": "172.31.0.0/16"},
            f"{NETWORKING}.serviceNetwork[0].cidr",
        ),
        Case(
            AWS,
            {f"{NETWORKING}.clusterNetwork[1]": {"cidr": "10.133.0.0/16"}},
            f"{NETWORKING}.clusterNetwork[1].cidr",
        ),
    ],
    "service-network-size": [
        Case(
            AWS,
            {f"{NETWORKING}.serviceNetwork[0].cidr": "172.31.0.0/30"},
            f"{NETWORKING}.serviceNetwork[0].cidr",
        ),
        Case(
            AWS,
            {f"{NETWORKING}.serviceNetwork[0].cidr": "172.31.0.1/32"},
            f"{NETWORKING}.serviceNetwork[0].cidr",
        ),
    ],
    "networks-family": [
        Case(
            AWS,
            {f"{NETWORKING}.machineNetwork[0].cidr": "fd01::/64"},
            f"{NETWORKING}.machineNetwork[0].cidr",
        )
    ],
    "advertise-address-family": [
        Case(
            AWS,
            {f"{NETWORKING}.apiServer.advertiseAddress": "fd00::1"},
            f"{NETWORKING}.apiServer.advertiseAddress",
        )
    ],
    "advertise-address-inside": [
        Case(
            BARE,
            {f"{NETWORKING}.machineNetwork[0].cidr": "172.20.0.0/24"},
            f"{NETWORKING}.apiServer.advertiseAddress",
        ),
        Case(
            AWS,
            {
                f"{NETWORKING}.machineNetwork[1]": {"cidr": "10.1.0.0/16"},
                f"{NETWORKING}.apiServer.advertiseAddress": "10.1.0.1",
            },
            f"{NETWORKING}.apiServer.advertiseAddress",
        ),
    ],
    "allowed-cidrs-count": [
        Case(
            AWS,
            {
                f"{NETWORKING}.apiServer.allowedCIDRBlocks": [
                    f"192.0.{index // 256}.{index % 256}/32" for index in range(501)
                ]
            },
            f"{NETWORKING}.apiServer.allowedCIDRBlocks",
        )
    ],
    "allowed-cidrs-once": [
        Case(
            AWS,
            {f"{NETWORKING}.apiServer.allowedCIDRBlocks[2]": "203.0.113.0/24"},
            f"{NETWORKING}.apiServer.allowedCIDRBlocks[2]",
        )
    ],
    "allowed-cidrs-all": [
        Case(
            AWS,
            {f"{NETWORKING}.apiServer.allowedCIDRBlocks[0]": everybody},
            f"{NETWORKING}.apiServer.allowedCIDRBlocks[0]",
        )
        for everybody in ("0.0.0.0/0", "::/0")
    ],
    "api-port-443": [
        Case(AWS, {f"{NETWORKING}.apiServer.port": 443}, f"{NETWORKING}.apiServer.port")
    ],
    "proxy-credentials": [
        Case(
            BARE,
            {"spec.configuration.proxy.httpsProxy": "http://me:secret@proxy.example.com:3128"},
            "spec.configuration.proxy.httpsProxy",
        )
    ],
    "proxy-by-tls": [
        Case(
            AWS,
            {"spec.configuration.proxy.httpsProxy": "https://proxy.example.com:3128"},
            "spec.configuration.proxy.httpsProxy",
        )
    ],
}

#: What is nearly one of the above, and breaks nothing.
NEAR: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "IBM Cloud without Ignition": (
        AWS,
        {"spec.platform": {"type": "IBMCloud"}, IGNITION: REMOVED},
    ),
    "a Konnectivity LoadBalancer elsewhere": (
        KUBEVIRT,
        {f"{KONNECTIVITY}.{STRATEGY}": BALANCER},
    ),
    "an OAuth LoadBalancer on Azure": (AZURE, {f"{OAUTH}.{STRATEGY}": BALANCER}),
    "private Azure": (AZURE, {TOPOLOGY: "Private", LINK: LINKED}),
    "managed Azure by Swift": (AZURE, {**MANAGED, TOPOLOGY: "Private", LINK: SWIFT}),
    "a section for GCP, which has none that is needed": (GCP, {"spec.platform.gcp": REMOVED}),
    "subnets of OVN-Kubernetes elsewhere": (
        KUBEVIRT,
        {
            f"{NETWORKING}.machineNetwork[0].cidr": "100.66.0.0/24",
            f"{OVN}.ipv4.internalJoinSubnet": "100.64.0.0/16",
            f"{OVN}.ipv6.internalJoinSubnet": "",
        },
    ),
    "a network that is none of OVN-Kubernetes": (
        KUBEVIRT,
        {
            f"{NETWORKING}.networkType": "Other",
            f"{NETWORKING}.allocateNodeCIDRs": "Enabled",
            f"{OPERATOR}.disableMultiNetwork": True,
            f"{NETWORKING}.machineNetwork[0].cidr": "100.66.0.0/24",
        },
    ),
    "an empty range of node ports": (
        BARE,
        {"spec.configuration.network.serviceNodePortRange": ""},
    ),
    "a further name that a certificate covers": (
        AWS,
        {
            "spec.kubeAPIServerDNSName": "k8s.example.net",
            CERTIFICATES: [{"names": ["*.example.net"]}],
        },
    ),
    "private Azure by Swift": (
        AZURE,
        {
            TOPOLOGY: REMOVED,
            "metadata.annotations": {"hypershift.openshift.io/swift-pod-network-instance": "one"},
        },
    ),
    "routes without hostnames beside a load balancer": (
        AWS,
        {f"{OAUTH}.{STRATEGY}": {"type": "Route"}, f"{IGNITION}.{STRATEGY}": route()},
    ),
    "null sections": (
        AWS,
        {f"{API}.{STRATEGY}.route": None, f"{API}.{STRATEGY}.nodePort": None},
    ),
    "a wider range of node ports": (
        BARE,
        {
            "spec.configuration.network.serviceNodePortRange": "6000-7000",
            **{
                f"{where}.{STRATEGY}.nodePort.port": 6443 + number
                for number, where in enumerate((API, OAUTH, KONNECTIVITY, IGNITION))
            },
        },
    ),
    "a wildcard of another depth": (
        AWS,
        {
            "spec.configuration.apiServer.servingCerts.namedCertificates": [
                {"names": ["*.example.com", "other.spring.example.com"]}
            ]
        },
    ),
    "the smallest service network": (
        AWS,
        {f"{NETWORKING}.serviceNetwork[0].cidr": "172.31.0.0/29"},
    ),
    "exactly 500 ranges": (
        AWS,
        {
            f"{NETWORKING}.apiServer.allowedCIDRBlocks": [
                f"192.0.{index // 256}.{index % 256}/32" for index in range(500)
            ]
        },
    ),
    "two families": (
        AWS,
        {
            f"{NETWORKING}.clusterNetwork[1]": {"cidr": "fd01::/48"},
            f"{NETWORKING}.serviceNetwork[1]": {"cidr": "fd02::/112"},
        },
    ),
    "a proxy that nodes do not ask for the apiserver": (
        BARE,
        {
            "spec.configuration.proxy": {
                "httpsProxy": "https://me:secret@proxy.example.com",
                "noProxy": "192.168.100.0/24",
            }
        },
    ),
    "a proxy and pods that are exempt": (
        AWS,
        {
            "spec.configuration.proxy": {
                "httpsProxy": "https://me:secret@proxy.example.com",
                "noProxy": "10.132.0.0/14",
            }
        },
    ),
    "a proxy of a private cluster": (
        PRIVATE,
        {
            "spec.configuration.proxy": {"httpsProxy": "https://me:secret@proxy.example.com"},
        },
    ),
}
