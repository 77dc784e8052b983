"""Reading a HostedCluster: what it says, its defaults, and all that is wrong at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.errors import ConfigError
from isthmus.hosting.document import MAX_FIELDS, read
from isthmus.hosting.document_fields import DOCUMENT, Tree, paths
from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    EndpointAccess,
    Platform,
    Strategy,
)

sys.path.insert(0, str(Path(__file__).parent))
from publishing_cases import AZURE, EXAMPLES, GCP, KUBEVIRT, LINK, REMOVED, TOPOLOGY, changed

HEAD = """\
apiVersion: hypershift.openshift.io/v1beta1
kind: HostedCluster
metadata: {name: a.b, namespace: there}
"""
SMALL = f"{HEAD}spec: {{platform: {{type: None}}}}\n"


def wrong(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, "c.yaml")
    return str(caught.value).splitlines()


def test_an_example_is_read() -> None:
    text = (EXAMPLES / "public-loadbalancer.yaml").read_text()
    cluster = read(text, "c.yaml")
    assert (cluster.name, cluster.namespace) == ("spring", "clusters")
    assert cluster.control_plane == "clusters-spring"
    assert (cluster.platform, cluster.access) == (Platform.AWS, EndpointAccess.PUBLIC)
    assert cluster.has_access
    assert cluster.machine_cidrs == ("10.0.0.0/16",)
    assert cluster.allowed_cidrs == ("198.51.100.0/24", "203.0.113.0/24", "192.0.2.10/32")
    api = cluster.publishing(ControlPlaneService.API_SERVER)
    assert api is not None
    assert (api.strategy, api.hostname) == (Strategy.LOAD_BALANCER, "api.spring.example.com")
    assert api.has == {"loadBalancer"}
    lines = text.splitlines()
    assert lines[api.place.line - 1].strip() == "- service: APIServer"
    for path, word in {
        "spec.platform.aws.endpointAccess": "endpointAccess: Public",
        "spec.networking.apiServer.allowedCIDRBlocks[1]": "- 203.0.113.0/24",
        f"{api.place.field}.servicePublishingStrategy.type": "type: LoadBalancer",
    }.items():
        assert cluster.places[path].field == path
        assert lines[cluster.places[path].line - 1].strip() == word


def test_defaults_are_filled_in() -> None:
    cluster = read(SMALL, "c.yaml")
    assert cluster.control_plane == "there-a-b"
    assert cluster.service_cidrs == ("172.31.0.0/16",)
    assert cluster.cluster_cidrs == ("10.132.0.0/14",)
    assert (cluster.advertise_address, cluster.api_port) == ("172.20.0.1", 6443)
    assert cluster.node_port_range == (30000, 32767)
    assert (cluster.access, cluster.has_access) == (EndpointAccess.PUBLIC, False)
    assert "spec.networking" not in cluster.places


def test_an_ipv6_cluster_advertises_an_ipv6_address() -> None:
    networks = "networking: {serviceNetwork: [{cidr: 'fd02::/112'}]}"
    text = f"{HEAD}spec: {{platform: {{type: None}}, {networks}}}\n"
    assert read(text, "c.yaml").advertise_address == "fd00::1"


def test_platforms_have_their_own_topologies() -> None:
    def access(document: object) -> EndpointAccess:
        return read(yaml.safe_dump(document), "c.yaml").access

    assert access(GCP) is EndpointAccess.PRIVATE
    assert access(AZURE) is EndpointAccess.PUBLIC
    assert access(changed(AZURE, {TOPOLOGY: "Private"})) is EndpointAccess.PRIVATE
    swift = {TOPOLOGY: REMOVED, LINK: {"type": "Swift"}}
    assert access(changed(AZURE, swift)) is EndpointAccess.PUBLIC_AND_PRIVATE


def test_managed_azure_shares_an_ingress() -> None:
    kind = "spec.platform.azure.azureAuthenticationConfig.azureAuthenticationConfigType"
    self_managed = read(yaml.safe_dump(AZURE), "c.yaml")
    assert (self_managed.azure_workload_identities, self_managed.shared_ingress) == (True, False)
    managed = read(yaml.safe_dump(changed(AZURE, {kind: "ManagedIdentities"})), "c.yaml")
    assert (managed.azure_workload_identities, managed.shared_ingress) == (False, True)


ON = "hypershift.openshift.io/enable-metrics-forwarding"
OFF = "hypershift.openshift.io/disable-monitoring-services"


@pytest.mark.parametrize(
    ("annotations", "mode", "forwards"),
    # The first four are HyperShift's own cases.
    [
        ({}, None, False),
        ({OFF: "true"}, None, False),
        ({ON: "true"}, None, True),
        ({ON: "true", OFF: "true"}, None, False),
        ({}, "Forward", True),
        ({}, "None", False),
        ({OFF: ""}, "Forward", False),
    ],
)
def test_metrics_are_forwarded_where_that_is_asked_for(
    annotations: dict[str, str], mode: str | None, forwards: bool
) -> None:
    said: dict[str, Any] = {"metadata.annotations": annotations}
    if mode is not None:
        said["spec.monitoring.metricsForwarding.mode"] = mode
    cluster = read(yaml.safe_dump(changed(AZURE, said)), "c.yaml")
    assert cluster.forwards_metrics is forwards


def test_the_management_clusters_platform_is_an_annotation() -> None:
    where = "hypershift.openshift.io/management-platform"
    for text, platform in (("Azure", Platform.AZURE), ("Nutanix", None)):
        document = changed(KUBEVIRT, {"metadata.annotations": {where: text}})
        assert read(yaml.safe_dump(document), "c.yaml").management_platform is platform


def test_kubevirt_gets_what_it_leaves_out() -> None:
    document = changed(KUBEVIRT, {"spec.services": KUBEVIRT["spec"]["services"][1:]})
    cluster = read(yaml.safe_dump(document), "c.yaml")
    api = cluster.publishing(ControlPlaneService.API_SERVER)
    assert api is not None
    assert (api.strategy, api.place.field) == (Strategy.LOAD_BALANCER, "spec.services")
    assert len(cluster.services) == 4


def test_a_proxy_is_read() -> None:
    cluster = read((EXAMPLES / "private-route.yaml").read_text(), "c.yaml")
    assert cluster.proxy_for_https == "http://proxy.example.com:3128"
    assert cluster.no_proxy == (".example.com", "10.10.0.0/16")


def test_other_documents_are_not_ours() -> None:
    text = f"---\nkind: NodePool\nspec: {{anything: 1}}\n---\n---\n{SMALL}---\n[a list]\n"
    assert read(text, "c.yaml").name == "a.b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["c.yaml: is empty"]),
        ("a: [", ["c.yaml:1:5: not YAML: "]),
        ("- a\n", ["c.yaml:1: has no kind"]),
        (
            "kind: Namespace\n---\nkind: HostedCluser\n",
            ["c.yaml:3: kind: must be HostedCluster, not 'HostedCluser'"],
        ),
        (
            f"{SMALL}---\n{SMALL}",
            ["c.yaml: has more than one HostedCluster, at lines 1 and 6"],
        ),
        (
            SMALL.replace("v1beta1", "v1alpha2"),
            [
                "c.yaml:1:13: apiVersion: must be hypershift.openshift.io/v1beta1 or"
                " hypershift.openshift.io/v1alpha1,"
                " not 'hypershift.openshift.io/v1alpha2'"
            ],
        ),
        (
            "kind: HostedCluster\nspec: {}\n",
            [
                "c.yaml:1:1: apiVersion: is missing",
                "c.yaml:1:1: metadata.name: is missing",
                "c.yaml:2:7: spec.platform.type: is missing",
            ],
        ),
        (
            f"{HEAD}spec:\n  platform: {{type: None}}\n  networking:\n    apiServer:\n"
            "      allowedCidrBlocks: [10.0.0.0/8]\n",
            [
                "c.yaml:8:7: spec.networking.apiServer: unknown key 'allowedCidrBlocks',"
                " did you mean allowedCIDRBlocks?"
            ],
        ),
        (
            f"{HEAD}spec:\n  platform: {{type: AWS, aws: {{endpointAccess: public}}}}\n"
            "  services:\n  - service: APIServr\n    servicePublishingStrategy:\n"
            "      {type: NodePort, nodePort: {port: 70000}, route: {hostname: api}}\n",
            [
                "c.yaml:5:47: spec.platform.aws.endpointAccess: must be Public, PublicAndPrivate or"
                " Private, not 'public', did you mean Public?",
                "c.yaml:7:14: spec.services[0].service: must be APIServer, OAuthServer, OIDC,"
                " Konnectivity, Ignition or OVNSbDb, not 'APIServr', did you mean APIServer?",
                "c.yaml:9:34: spec.services[0].servicePublishingStrategy.nodePort.address:"
                " is missing",
                "c.yaml:9:41: spec.services[0].servicePublishingStrategy.nodePort.port: must be a"
                " whole number from -2147483648 to 65535, not 70000",
                "c.yaml:9:67: spec.services[0].servicePublishingStrategy.route.hostname: 'api' is"
                " not a host name such as api.example.com",
            ],
        ),
        (
            f"{HEAD}spec:\n  platform: {{type: None}}\n  dns: []\n  services: {{}}\n",
            [
                "c.yaml:6:8: spec.dns: must be a mapping, not a list",
                "c.yaml:7:13: spec.services: must be a list, not a mapping",
            ],
        ),
    ],
)
def test_what_is_wrong_is_told_at_once(text: str, said: list[str]) -> None:
    lines = wrong(text)
    assert len(lines) == len(said)
    for line, start in zip(lines, said, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("advertiseAddress", "kas.example.com", "is not an address such as 172.20.0.1"),
        ("port", 0, "from 1 to 65535"),
        ("advertiseAddress", "::ffff:172.20.0.1", "IPv4 address in IPv6 notation"),
        ("allowedCIDRBlocks", ["::ffff:10.0.0.0/104"], "IPv4 address in IPv6 notation"),
        ("allowedCIDRBlocks", ["999.999.999.999/99"], "is not a network"),
        ("allowedCIDRBlocks", "10.0.0.0/8", "must be a list"),
    ],
)
def test_networks_are_read_strictly(where: str, value: object, said: str) -> None:
    document = changed(AZURE, {f"spec.networking.apiServer.{where}": value})
    (line,) = wrong(yaml.safe_dump(document))
    assert said in line


def test_there_are_at_most_two_networks_of_a_kind() -> None:
    three = [{"cidr": f"10.{number}.0.0/16"} for number in range(3)]
    (line,) = wrong(yaml.safe_dump(changed(AZURE, {"spec.networking.clusterNetwork": three})))
    assert "spec.networking.clusterNetwork: has 3 networks" in line


@pytest.mark.parametrize(
    "url",
    ["proxy:3128", "ftp://proxy", "http://", "http://me:sec/ret@proxy", "http://me:secret@[::1"],
)
def test_a_wrong_proxy_is_not_quoted(url: str) -> None:
    document = changed(AZURE, {"spec.configuration.proxy.httpsProxy": url})
    (line,) = wrong(yaml.safe_dump(document))
    assert line.endswith("is not a proxy such as http://proxy.example.com:3128")
    assert "sec" not in line


def test_anchors_do_not_say_more_than_a_machine_can_read() -> None:
    names = ", ".join(["x"] * 4000)
    certificates = ", ".join(["*c"] * 4000)
    text = (
        f"{HEAD}status: [&n [{names}], &c {{names: *n}}]\n"
        "spec:\n  platform: {type: None}\n  configuration: {apiServer: {servingCerts:"
        f" {{namedCertificates: [{certificates}]}}}}}}\n"
    )
    (line,) = wrong(text)
    assert line.startswith("c.yaml:1:1: ") and str(MAX_FIELDS) in line


def filled(tree: Tree) -> object:
    """A document that has every field of a tree."""
    if isinstance(tree, list):
        return [filled(tree[0])]
    return {name: filled(inside) for name, inside in tree.items()} if tree is not None else 1


def test_every_known_field_is_taken() -> None:
    document = filled(DOCUMENT)
    assert isinstance(document, dict)
    document["kind"] = "HostedCluster"
    with pytest.raises(ConfigError) as caught:
        read(yaml.safe_dump(document), "c.yaml")
    assert "unknown" not in str(caught.value)


def test_known_fields_are_paths_too() -> None:
    every = paths()
    assert len(set(every)) == len(every)
    assert "spec.services[].servicePublishingStrategy.nodePort.address" in every
    assert "spec.networking.apiServer.allowedCIDRBlocks" in every
    assert "spec.platform.azure.private.swift.podNetworkInstance" in every


def test_places_are_values() -> None:
    assert read(SMALL, "c.yaml").places["spec.platform.type"] == DocumentPlace(
        4, "spec.platform.type"
    )
