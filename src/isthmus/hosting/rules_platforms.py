"""Rules of platforms and topologies: sections, requirements of AWS and Azure, limits of Private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Publishing,
    Strategy,
    StrategyVerdict,
)
from isthmus.hosting.rules import (
    BOTH,
    CRD,
    RuleBreak,
    RuleList,
    entries,
    in_entry,
    place,
    words,
)

_AZURE = "spec.platform.azure"
_IDENTITIES = f"{_AZURE}.azureAuthenticationConfig"

#: Fields required by the CRD; the control plane operator needs one only for PrivateLink.
_MEMBERS = {
    "managedIdentities": ("controlPlane", "dataPlane"),
    "workloadIdentities": (
        "imageRegistry",
        "ingress",
        "file",
        "disk",
        "nodePoolManagement",
        "cloudProvider",
        "network",
    ),
}
#: Fields required by HyperShift's controller.
_NEEDED = {Platform.AWS: "aws", Platform.AZURE: "azure", Platform.AGENT: "agent"}

SECTION_RULES: Final = RuleList()


@SECTION_RULES.error("platform-section", "AWS, Azure and Agent have their section", missed_by=CRD)
def _section(cluster: HostedCluster) -> Iterator[RuleBreak]:
    name = _NEEDED.get(cluster.platform)
    path = f"spec.platform.{name}"
    # A cluster that was not read from a document has no fields.
    if name and "spec.platform" in cluster.places and path not in cluster.places:
        yield RuleBreak(
            f"a cluster on {cluster.platform.value} has no section for {cluster.platform.value}",
            f"add {path}",
            place(cluster, path),
        )


def _by_word(
    cluster: HostedCluster, word: str, parts: dict[str, str], under: str
) -> Iterator[RuleBreak]:
    """Each part of a section exists with its own type, and with no other."""
    for own, part in parts.items():
        path = f"{under}.{part}"
        if own == word and path not in cluster.places:
            yield RuleBreak(f"{word} has no {part}", f"add {path}", place(cluster, path))
        if own != word and path in cluster.places:
            yield RuleBreak(
                f"{part} has no effect with {word or 'no type'}",
                f"remove it, or make the type {own}",
                place(cluster, path),
            )


@SECTION_RULES.error(
    "azure-identities",
    "on Azure, managed and workload identities match their type, and are complete",
)
def _identities(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is not Platform.AZURE or _AZURE not in cluster.places:
        return
    word = "WorkloadIdentities" if cluster.azure_workload_identities else ""
    word = word or ("ManagedIdentities" if cluster.shared_ingress else "")
    if not word:
        yield RuleBreak(
            "the cluster has no credentials for Azure",
            f"add {_IDENTITIES} with azureAuthenticationConfigType",
            place(cluster, f"{_IDENTITIES}.azureAuthenticationConfigType"),
        )
        return
    parts = {
        "ManagedIdentities": "managedIdentities",
        "WorkloadIdentities": "workloadIdentities",
    }
    yield from _by_word(cluster, word, parts, _IDENTITIES)
    section = f"{_IDENTITIES}.{parts[word]}"
    for member in _MEMBERS[parts[word]] if section in cluster.places else ():
        path = f"{section}.{member}"
        if path not in cluster.places:
            yield RuleBreak(f"{parts[word]} has no {member}", f"add {path}", place(cluster, path))


@SECTION_RULES.error(
    "azure-private-section",
    "on Azure, private.privateLink and private.swift match their type",
)
def _private(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AZURE and _PRIVATE in cluster.places:
        parts = {"PrivateLink": "privateLink", "Swift": "swift"}
        yield from _by_word(cluster, cluster.azure_private_type, parts, _PRIVATE)


@SECTION_RULES.error(
    "azure-private-link-identity",
    "on Azure, PrivateLink with WorkloadIdentities has an identity for the control plane operator",
)
def _link_identity(cluster: HostedCluster) -> Iterator[RuleBreak]:
    section = f"{_IDENTITIES}.workloadIdentities"
    path = f"{section}.controlPlaneOperator"
    linked = cluster.azure_private_type == "PrivateLink" and cluster.azure_workload_identities
    if linked and section in cluster.places and path not in cluster.places:
        yield RuleBreak(
            "the private link cannot be made: the control plane operator has no identity",
            f"add {path}",
            place(cluster, path),
        )


_PRIVATE = "spec.platform.azure.private"
_SECTIONS = {
    Platform.AWS: "aws",
    Platform.AGENT: "agent",
    Platform.AZURE: "azure",
    Platform.GCP: "gcp",
    Platform.IBMCLOUD: "ibmcloud",
    Platform.KUBEVIRT: "kubevirt",
    Platform.OPENSTACK: "openstack",
    Platform.POWERVS: "powervs",
}
_BARE = (Platform.AGENT, Platform.NONE)

RULES: Final = RuleList()


def _can_be(cluster: HostedCluster, entry: Publishing) -> bool:
    found = cluster.model.verdict(entry.service, entry.strategy, cluster.platform)
    return found is StrategyVerdict.PUBLISHED


def _not_by(
    cluster: HostedCluster, services: tuple[ControlPlaneService, ...], allowed: tuple[Strategy, ...]
) -> Iterator[RuleBreak]:
    """Entries of these services with another strategy, unless no platform supports it."""
    for entry in entries(cluster, *services):
        if _can_be(cluster, entry) and entry.strategy not in allowed:
            yield RuleBreak(
                f"{cluster.platform.value} does not publish {entry.service.value} by"
                f" {entry.strategy.value}",
                f"use {words(allowed)}",
                in_entry(cluster, entry, ".type"),
            )


@RULES.error(
    "aws-route", "on AWS, OAuthServer, Konnectivity and Ignition are Routes", missed_by=CRD
)
def _aws_others(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AWS:
        others = (
            ControlPlaneService.KONNECTIVITY,
            ControlPlaneService.OAUTH_SERVER,
            ControlPlaneService.IGNITION,
        )
        yield from _not_by(cluster, others, (Strategy.ROUTE,))


@RULES.error("aws-api-server", "on AWS, the APIServer is a LoadBalancer or a Route", missed_by=CRD)
def _aws_api(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AWS:
        allowed = (Strategy.LOAD_BALANCER, Strategy.ROUTE)
        yield from _not_by(cluster, (ControlPlaneService.API_SERVER,), allowed)


@RULES.error("azure-route", "on Azure, Konnectivity and Ignition are Routes")
def _azure_others(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AZURE:
        others = (ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION)
        yield from _not_by(cluster, others, (Strategy.ROUTE,))


@RULES.error(
    "azure-oauth", "on Azure, OAuthServer is a Route, or with WorkloadIdentities a LoadBalancer"
)
def _azure_oauth(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AZURE:
        workload = cluster.azure_workload_identities
        allowed = (Strategy.LOAD_BALANCER, Strategy.ROUTE) if workload else (Strategy.ROUTE,)
        yield from _not_by(cluster, (ControlPlaneService.OAUTH_SERVER,), allowed)


@RULES.error(
    "azure-private-type", "on Azure, Private and PublicAndPrivate have a private.type, or Swift"
)
def _azure_no_type(cluster: HostedCluster) -> Iterator[RuleBreak]:
    wanted = cluster.platform is Platform.AZURE and cluster.access is not EndpointAccess.PUBLIC
    if wanted and not cluster.azure_private_type and not cluster.swift:
        yield RuleBreak(
            f"topology {cluster.access.value} has no private connection",
            f"add {_PRIVATE} with type: PrivateLink",
            place(cluster, f"{_PRIVATE}.type"),
        )


@RULES.error("azure-public-private", "on Azure, topology Public has no private connection")
def _azure_public(cluster: HostedCluster) -> Iterator[RuleBreak]:
    azure = cluster.platform is Platform.AZURE
    public = azure and cluster.has_access and cluster.access is EndpointAccess.PUBLIC
    if public and cluster.azure_private_type:
        yield RuleBreak(
            "topology Public forbids a private connection",
            f"remove {_PRIVATE}, or make the topology PublicAndPrivate",
            place(cluster, _PRIVATE),
        )


@RULES.warning(
    "azure-private-unused",
    "on Azure, a private connection has a topology that uses it",
    missed_by=BOTH,
)
def _azure_no_topology(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is not Platform.AZURE or cluster.has_access:
        return
    if cluster.azure_private_type and not cluster.swift:
        yield RuleBreak(
            "no topology is set, so the cluster is public and the private connection is not used",
            "add topology: PublicAndPrivate or Private",
            place(cluster, _PRIVATE),
        )


@RULES.warning("other-platform", "only the platform's own section is set", missed_by=BOTH)
def _other_section(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for platform, name in _SECTIONS.items():
        path = f"spec.platform.{name}"
        if platform is not cluster.platform and path in cluster.places:
            yield RuleBreak(
                f"the platform is {cluster.platform.value}, so this has no effect",
                f"remove it, or make the type {platform.value}",
                place(cluster, path),
            )


@RULES.warning(
    "private-yet-public",
    "with Private, nothing is a NodePort, and Konnectivity no LoadBalancer",
    missed_by=BOTH,
)
def _not_private(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.access is not EndpointAccess.PRIVATE:
        return
    for entry in cluster.services:
        open_ = (
            entry.strategy is Strategy.LOAD_BALANCER
            and entry.service in cluster.model.open_balancers
        )
        if open_ or entry.strategy is Strategy.NODE_PORT:
            yield RuleBreak(
                f"{entry.service.value} by {entry.strategy.value} is still public: Private does not"
                " change its Service",
                "use Route, or put a firewall in front of it",
                entry.place,
            )


def _is_balancer(cluster: HostedCluster, entry: Publishing) -> bool:
    return _can_be(cluster, entry) and entry.strategy is Strategy.LOAD_BALANCER


@RULES.note(
    "load-balancer-provider",
    "with platform Agent or None, a LoadBalancer needs a provider of load balancers",
)
def _balancer(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        if cluster.platform in _BARE and _is_balancer(cluster, entry):
            yield RuleBreak(
                f"{entry.service.value} needs a load balancer, which {cluster.platform.value} does"
                " not provide",
                "install one on the management cluster, such as MetalLB, or use NodePort",
                in_entry(cluster, entry, ".type"),
            )
