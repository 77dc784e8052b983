"""The cases of HyperShift's own suites for its CRD, retyped, and what we say to each.

Where the two differ, ours is stricter: these documents are for AWS, whose controller refuses later
what the CRD lets through.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from isthmus.errors import ConfigError
from isthmus.hosting.document import read
from isthmus.hosting.model import Weight
from isthmus.hosting.plan import check

sys.path.insert(0, str(Path(__file__).parent))
from publishing_cases import STRATEGY, changed, entry

ROUTES = [
    entry(service, "Route", route={})
    for service in ("APIServer", "OAuthServer", "Konnectivity", "Ignition")
]
SUITE = {
    "apiVersion": "hypershift.openshift.io/v1beta1",
    "kind": "HostedCluster",
    "metadata": {"name": "case"},
    "spec": {
        "dns": {"baseDomain": "example.com"},
        "platform": {"type": "AWS", "aws": {"region": "us-east-1"}},
        "pullSecret": {"name": "secret"},
        "release": {"image": "quay.io/openshift-release-dev/ocp-release:4.15.11-x86_64"},
        "secretEncryption": {"aescbc": {"activeKey": {"name": "key"}}, "type": "aescbc"},
        "services": ROUTES,
    },
}
SHORT = "fd2e:6f44:5dd8:c956::14"
LONG = "fd2e:6f44:5dd8:c956:0000:0000:0000:0014"
SERVICES = "spec.services"
CERTIFICATES = "spec.configuration.apiServer"
API_ROUTE = {"api-route-hostname"}


def node_port(service: str, address: str) -> dict[str, Any]:
    return entry(service, "NodePort", nodePort={"address": address})


def balanced(host: str) -> list[dict[str, Any]]:
    return [
        entry("APIServer", "LoadBalancer", loadBalancer={"hostname": host}),
        node_port("Ignition", "127.0.0.1"),
        node_port("Konnectivity", SHORT),
        node_port("OAuthServer", LONG),
    ]


def named(host: str, *others: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry("APIServer", "Route", route={"hostname": host}), *others, *ROUTES[1:3]]


class Case(NamedTuple):
    """A document, whether the CRD takes it, and the errors that we find: None, it is not read."""

    changes: dict[str, Any]
    taken: bool
    errors: set[str] | None


SERVICE_CASES = {
    "less than 4 services": Case({SERVICES: ROUTES[1:]}, False, {"required-services"}),
    "node ports at a name and addresses": Case(
        {
            SERVICES: [
                node_port("APIServer", "kas.example.com"),
                node_port("Ignition", "127.0.0.1"),
                node_port("Konnectivity", SHORT),
                node_port("OAuthServer", LONG),
            ]
        },
        True,
        {"aws-api-server", "aws-route"},
    ),
    "a node port nowhere": Case(
        {SERVICES: [node_port("APIServer", "@foo"), *ROUTES[1:]]}, False, None
    ),
    "a Route with nodePort": Case(
        {
            SERVICES: named(
                "api.example.com",
                entry(
                    "Ignition", "Route", nodePort={"address": "ignition.example.com", "port": 3030}
                ),
            )
        },
        False,
        {"section-of-type"},
    ),
    "a NodePort with route": Case(
        {
            SERVICES: named(
                "api.example.com",
                entry("Ignition", "NodePort", route={"hostname": "ignition.example.com"}),
            )
        },
        False,
        {"section-of-type", "node-port-section", "aws-route"},
    ),
    "a hostname among the named certificates": Case(
        {
            SERVICES: balanced("kas.duplicated.hostname.com"),
            f"{CERTIFICATES}.servingCerts.namedCertificates": [
                {"names": ["anything", "kas.duplicated.hostname.com"]}
            ],
        },
        False,
        {"named-certificate", "aws-route"},
    ),
    "no servingCerts": Case(
        {
            SERVICES: balanced("kas.example.com"),
            f"{CERTIFICATES}.additionalCORSAllowedOrigins": ["https://example.com"],
        },
        True,
        {"aws-route"},
    ),
    "no namedCertificates": Case(
        {SERVICES: balanced("kas.example.com"), f"{CERTIFICATES}.servingCerts": {}},
        True,
        {"aws-route"},
    ),
    "a named certificate without names": Case(
        {
            SERVICES: balanced("kas.example.com"),
            f"{CERTIFICATES}.servingCerts.namedCertificates": [
                {"servingCertificate": {"name": "my-cert"}}
            ],
        },
        True,
        {"aws-route"},
    ),
    "four Routes, the apiserver's without a hostname": Case({}, True, API_ROUTE),
    "a class and annotations of a LoadBalancer": Case(
        {
            SERVICES: [
                entry(
                    "APIServer",
                    "LoadBalancer",
                    loadBalancer={
                        "loadBalancerClass": "metallb.io/metallb",
                        "serviceAnnotations": {"metallb.io/loadBalancerIPs": "10.1.1.100"},
                    },
                ),
                *ROUTES[1:],
            ]
        },
        True,
        set(),
    ),
}

SAME, SMALL = "10.128.0.0/32", "service-network-size"
NETWORK_CASES = {
    "another network type": Case({"spec.networking.networkType": "Other"}, True, API_ROUTE),
    "an unknown network type": Case({"spec.networking.networkType": "Cilium"}, False, None),
    "a network without its prefix": Case(
        {"spec.networking.clusterNetwork": [{"cidr": "10.128.0.0"}]}, False, None
    ),
    "an impossible network": Case(
        {"spec.networking.apiServer.allowedCIDRBlocks": ["999.999.999.999/99"]}, True, None
    ),
    **{
        f"one range for {one} and {other}": Case(
            {
                f"spec.networking.{one}Network": [{"cidr": SAME}],
                f"spec.networking.{other}Network": [{"cidr": SAME}],
            },
            False,
            # and one address is no network for services, which the suites do not mind
            {"networks-overlap", *API_ROUTE, *([SMALL] if "service" in (one, other) else [])},
        )
        for one, other in (("cluster", "service"), ("machine", "service"), ("machine", "cluster"))
    },
    "node CIDRs not allocated": Case(
        {"spec.networking.allocateNodeCIDRs": "Disabled"}, True, API_ROUTE
    ),
    "the network operator's configuration": Case(
        {"spec.operatorConfiguration.clusterNetworkOperator.disableMultiNetwork": False},
        True,
        API_ROUTE,
    ),
}


def azure(authentication: str, changes: dict[str, Any]) -> dict[str, Any]:
    identities = f"{authentication[0].lower()}{authentication[1:]}"
    identity = {
        "azureAuthenticationConfigType": authentication,
        identities: {} if authentication == MANAGED else {"controlPlaneOperator": {}},
    }
    location = {"location": "eastus", "azureAuthenticationConfig": identity}
    return {"spec.platform": {"type": "Azure", "azure": location}, **changes}


OAUTH = f"{SERVICES}[1].{STRATEGY}"
KONNECTIVITY = f"{SERVICES}[2].{STRATEGY}"
IGNITION = f"{SERVICES}[3].{STRATEGY}"
BALANCER = {"type": "LoadBalancer", "loadBalancer": {}}
PORT = {"type": "NodePort", "nodePort": {"address": "kas.example.com"}}
SELF, MANAGED = "WorkloadIdentities", "ManagedIdentities"
TOPOLOGY = "spec.platform.azure.topology"
PRIVATE = "spec.platform.azure.private"
AZURE_CASES = {
    "OAuth by LoadBalancer, self-managed": Case(azure(SELF, {OAUTH: BALANCER}), True, API_ROUTE),
    "OAuth by Route, self-managed": Case(azure(SELF, {}), True, API_ROUTE),
    "OAuth by NodePort, self-managed": Case(
        azure(SELF, {OAUTH: PORT}), False, {"azure-oauth", *API_ROUTE}
    ),
    "OAuth by LoadBalancer, managed": Case(
        azure(MANAGED, {OAUTH: BALANCER}), False, {"azure-oauth", *API_ROUTE}
    ),
    "OAuth by Route, managed": Case(azure(MANAGED, {}), True, API_ROUTE),
    "Konnectivity by LoadBalancer": Case(
        azure(SELF, {KONNECTIVITY: BALANCER}), False, {"azure-route", *API_ROUTE}
    ),
    "Ignition by NodePort": Case(azure(SELF, {IGNITION: PORT}), False, {"azure-route", *API_ROUTE}),
    "private without a connection": Case(
        azure(SELF, {TOPOLOGY: "PublicAndPrivate"}), False, {"azure-private-type", *API_ROUTE}
    ),
    "public with a connection": Case(
        azure(
            SELF,
            {
                TOPOLOGY: "Public",
                PRIVATE: {"type": "PrivateLink", "privateLink": {"natSubnetID": "/"}},
            },
        ),
        False,
        {"azure-public-private", *API_ROUTE},
    ),
    "private by Swift": Case(
        azure(
            MANAGED,
            {TOPOLOGY: "Private", PRIVATE: {"type": "Swift", "swift": {"podNetworkInstance": "a"}}},
        ),
        True,
        set(),
    ),
    "another topology": Case(azure(SELF, {TOPOLOGY: "Hidden"}), False, None),
    "another connection": Case(azure(SELF, {PRIVATE: {"type": "Tunnel"}}), False, None),
    # The suite's documents have it: the CRD drops it, and the group is the default.
    "a field that does not exist": Case(
        azure(SELF, {"spec.platform.azure.resourceGroupName": "test-rg"}), True, None
    ),
}
GCP = {"spec.platform": {"type": "GCP", "gcp": {"region": "us-central1"}}}
ACCESS = "spec.platform.gcp.endpointAccess"
GCP_CASES = {
    "private, by default": Case(GCP, True, set()),
    "public and private": Case({**GCP, ACCESS: "PublicAndPrivate"}, True, API_ROUTE),
    "public": Case({**GCP, ACCESS: "Public"}, False, None),
}
CASES = {**SERVICE_CASES, **NETWORK_CASES, **AZURE_CASES, **GCP_CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_the_suites(name: str) -> None:
    case = CASES[name]
    text = yaml.safe_dump(changed(SUITE, case.changes), sort_keys=False)
    try:
        findings = check(read(text, "case.yaml"))
    except ConfigError as error:
        assert case.errors is None, error
        assert str(error).startswith("case.yaml:")
    else:
        assert {each.rule for each in findings if each.weight is Weight.ERROR} == case.errors


@pytest.mark.parametrize("name", CASES)
def test_what_the_crd_refuses_we_refuse(name: str) -> None:
    case = CASES[name]
    assert case.taken or case.errors is None or case.errors
