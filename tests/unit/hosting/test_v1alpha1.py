"""The model of 2022: its table, its three topologies, its document, and what is made of it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml
from clusters import LB, NODE_PORT, ROUTE, cluster, published

from isthmus.errors import ConfigError
from isthmus.hosting.document import read
from isthmus.hosting.explain import explain
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    GuestNetwork,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Strategy,
    StrategyVerdict,
)
from isthmus.hosting.models import V1ALPHA1
from isthmus.hosting.objects import purposes
from isthmus.hosting.own_parts import own_parts
from isthmus.hosting.picture_svg import svg
from isthmus.hosting.plan import RULES_OF, make_plan
from isthmus.hosting.shapes import key
from isthmus.hosting.visibility import BUCKET, PUBLIC_SHARD, listed

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing" / "v1alpha1"
API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION
OVN, OIDC = ControlPlaneService.OVN_SB_DB, ControlPlaneService.OIDC
PUBLIC, BOTH, PRIVATE = EndpointAccess
CALICO = GuestNetwork(type="Calico")

#: LoadBalancer, NodePort, Route, None, S3: y is published, n refused, - ignored, h hidden as asked,
#: A on AWS only. From the control plane operator and the network operator of 2022.
TYPED = {
    API: "yyynn",
    OAUTH: "nyynn",
    TUNNEL: "yyynn",
    IGNITION: "nyynn",
    OVN: "nyyhn",
    OIDC: "---hA",
}
#: The lists of the proposal, "Endpoints topology": what is public, what is private.
LISTS = {
    PUBLIC: ({API, TUNNEL, OVN, OAUTH}, set()),
    BOTH: ({API, OAUTH}, {API, TUNNEL, OVN}),
    PRIVATE: ({OAUTH}, {API, TUNNEL, OVN}),
}


def seed(
    access: EndpointAccess = PUBLIC,
    services: dict[ControlPlaneService, Strategy] | None = None,
    platform: Platform = Platform.AWS,
    **said: object,
) -> HostedCluster:
    """A cluster of 2022 that breaks no rule: a load balancer for the APIServer, else Routes."""
    return cluster(platform, access, {OVN: ROUTE, **(services or {})}, model=V1ALPHA1, **said)


def ways(plan: PublishPlan, service: ControlPlaneService) -> list[PlannedEndpoint]:
    return [
        each
        for each in plan.endpoints
        if each.service is service and each.strategy is not Strategy.NONE
    ]


def broken(found: HostedCluster) -> set[str]:
    return {each.rule for each in make_plan(found).findings}


@pytest.mark.parametrize("platform", sorted(V1ALPHA1.platforms, key=str))
def test_every_service_by_every_strategy(platform: Platform) -> None:
    """The table as it was typed, and a plan for every cell of it in every topology."""
    letters = {
        "y": StrategyVerdict.PUBLISHED,
        "n": StrategyVerdict.REFUSED,
        "-": StrategyVerdict.IGNORED,
        "h": StrategyVerdict.HIDDEN,
    }
    letters["A"] = letters["y" if platform is Platform.AWS else "n"]
    topologies = tuple(EndpointAccess) if platform is Platform.AWS else (PUBLIC,)
    for service, (number, strategy) in product(ControlPlaneService, enumerate(Strategy)):
        verdict = letters[TYPED[service][number]]
        assert V1ALPHA1.verdict(service, strategy, platform) is verdict, (service, strategy)
        for access in topologies:
            plan = make_plan(seed(access, {service: strategy}, platform))
            missing = service is OVN and verdict is StrategyVerdict.HIDDEN
            refused = verdict is StrategyVerdict.REFUSED or missing
            assert bool(plan.errors) is refused, (service, strategy, access, plan.errors)
            made = {each.strategy for each in ways(plan, service)}
            assert made == ({strategy} if verdict is StrategyVerdict.PUBLISHED else set())


@pytest.mark.parametrize("access", EndpointAccess)
@pytest.mark.parametrize("tunnel", [LB, ROUTE])
@pytest.mark.parametrize("api", [LB, ROUTE])
def test_the_topologies_are_those_of_the_proposal(
    access: EndpointAccess, tunnel: Strategy, api: Strategy
) -> None:
    """By Route or load balancer; Ignition goes with OVN, the bucket is for everybody."""
    plan = make_plan(seed(access, {API: api, TUNNEL: tunnel, OIDC: Strategy.S3}))
    assert not plan.errors
    public, private = (set(each) for each in LISTS[access])
    (private if OVN in private else public).add(IGNITION)
    found = listed(plan.endpoints)
    assert (found.public, found.private) == (public | {OIDC}, private)
    sharded = {each.service for each in plan.endpoints if each.through == PUBLIC_SHARD}
    assert sharded == {OAUTH}


def test_a_node_port_is_where_the_nodes_are() -> None:
    plan = make_plan(seed(PRIVATE, {OVN: NODE_PORT, OAUTH: NODE_PORT}))
    assert not plan.errors and "private-yet-public" in {each.rule for each in plan.findings}
    assert listed(plan.endpoints).public == {OAUTH, OVN}


def test_what_is_made_for_ovn() -> None:
    plan = make_plan(seed(PRIVATE))
    objects = {key(each): each for each in plan.objects}
    service = objects["Service/ovnkube-master-external"]["spec"]
    assert (service["type"], service["ports"][0]["port"]) == ("ClusterIP", 9642)
    host = "ovnkube-sbdb.apps.demo.hypershift.local"
    assert objects["Route/ovnkube-sbdb"]["spec"]["host"] == host
    assert "NetworkPolicy/published-ovnsbdb" not in objects  # its router is in the namespace
    assert objects["Route/oauth"]["metadata"]["labels"] == {"hypershift.openshift.io/oauth": "true"}
    assert "NetworkPolicy/published-oauthserver" in objects
    assert list(purposes(plan.cluster)) == [key(each) for each in plan.objects]
    parts = own_parts(plan)
    assert f"- {host}" in parts.files["router.yaml"] and host in parts.files["names.yaml"]
    assert "oauth.demo" not in parts.files["router.yaml"]


def test_the_bucket_is_at_the_issuers_url() -> None:
    given = seed(services={OIDC: Strategy.S3}, issuer_url="https://b.s3.example.com/x")
    (bucket,) = ways(make_plan(given), OIDC)
    assert (str(bucket.target), bucket.by) == ("b.s3.example.com:443", BUCKET)
    assert "oidc-issuer" not in broken(given)
    for url in ("", "https://kubernetes.default.svc", "https://[", "no url"):
        assert "oidc-issuer" in broken(seed(services={OIDC: Strategy.S3}, issuer_url=url))


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("platform-of-version", seed(platform=Platform.GCP)),
        ("ovn-published", cluster(model=V1ALPHA1)),
        ("ovn-published", seed(services={OVN: Strategy.NONE})),
        ("allowed-cidrs-ipv4", seed(allowed_cidrs=("192.0.2.0/24", "2001:db8::/32"))),
        ("ovn-unused", seed(guest_network=CALICO)),
        ("oidc-elsewhere", seed(services={OIDC: NODE_PORT})),
        ("strategy-possible", seed(services={OIDC: Strategy.S3}, platform=Platform.AGENT)),
    ],
)
def test_what_the_version_forbids_or_ignores(rule: str, given: HostedCluster) -> None:
    assert rule in broken(given)
    assert rule not in broken(seed())


def test_without_ovn_nothing_is_made_for_it() -> None:
    plan = make_plan(seed(guest_network=CALICO))
    assert not plan.errors and not ways(plan, OVN)
    assert not make_plan(cluster(model=V1ALPHA1, guest_network=CALICO)).errors


def test_rules_of_today_that_are_not_of_then() -> None:
    names = {rule.name for rule in RULES_OF[V1ALPHA1.api_version]}
    assert {"hostname-once", "node-port-once", "networks-overlap"} <= names
    assert not {"aws-route", "azure-private-type", "unused-service", "filled-in-service"} & names
    assert not any(rule.missed_by for rule in RULES_OF[V1ALPHA1.api_version])
    assert not make_plan(seed(services={TUNNEL: NODE_PORT, IGNITION: NODE_PORT})).errors


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.yaml").read_text()


def test_the_single_cidr_goes_before_the_list() -> None:
    text = example("public")
    assert read(text, "c").machine_cidrs == ("10.0.0.0/16",)
    both = text.replace("    podCIDR:", "    machineNetwork: [{cidr: 10.9.0.0/16}]\n    podCIDR:")
    found = read(both, "c")
    assert found.machine_cidrs == ("10.0.0.0/16",) and "cidr-beside-list" in broken(found)
    assert read(both.replace("    machineCIDR: 10.0.0.0/16\n", ""), "c").machine_cidrs == (
        "10.9.0.0/16",
    )


def test_a_finding_is_at_the_single_cidr() -> None:
    (found,) = make_plan(
        read(example("public").replace("10.0.0.0/16", "10.132.0.0/16"), "c")
    ).errors
    assert found.rule == "networks-overlap"
    assert found.place.field in ("spec.networking.machineCIDR", "spec.networking.podCIDR")
    assert found.place.line > 20


def test_azure_has_no_private_side() -> None:
    text = example("public").replace("type: AWS\n    aws:", "type: Azure\n    azure:")
    text = text.replace("region:", "location:").replace("      endpointAccess: Public\n", "")
    annotation = "hypershift.openshift.io/swift-pod-network-instance"
    text = text.replace("metadata:\n", f"metadata:\n  annotations: {{{annotation}: x}}\n")
    plan = make_plan(read(text.replace("type: S3", "type: None"), "c"))
    assert not plan.errors and not listed(plan.endpoints).private


@pytest.mark.parametrize(
    ("version", "field"),
    [("v1alpha1", "capabilities: {}"), ("v1beta1", "networking: {machineCIDR: 10.0.0.0/16}")],
)
def test_fields_of_another_version_are_unknown(version: str, field: str) -> None:
    text = yaml.safe_load(example("public"))
    text["apiVersion"] = f"hypershift.openshift.io/{version}"
    text["spec"] |= yaml.safe_load(field)
    with pytest.raises(ConfigError, match="unknown key"):
        read(yaml.safe_dump(text), "c.yaml")


@pytest.mark.parametrize("name", ["public", "public-and-private", "private"])
def test_the_examples_are_drawn_and_explained(name: str) -> None:
    plan = make_plan(read(example(name), name))
    assert not [each for each in plan.findings if each.weight.value != "note"]
    drawing, text = svg(plan), explain(plan)
    for words in (BUCKET, PUBLIC_SHARD, "OVNSbDb"):
        assert words in drawing and words in text
    for each in plan.endpoints:
        assert each.address in text


def test_what_is_known_of_the_load_balancer() -> None:
    plan = make_plan(seed(PRIVATE, {TUNNEL: LB}))
    (tunnel,) = ways(plan, TUNNEL)
    assert tunnel.address == published(TUNNEL, LB).hostname
    today = make_plan(cluster(Platform.GCP, PRIVATE, {TUNNEL: LB}))
    assert TUNNEL in listed(today.endpoints).public
