"""Rules of a platform's section: that it is there, and which of its parts go with which word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.hosting.model import HostedCluster, Platform
from isthmus.hosting.rules import CRD, RuleBreak, RuleList, place

_AZURE = "spec.platform.azure"
_IDENTITIES = f"{_AZURE}.azureAuthenticationConfig"
_PRIVATE = f"{_AZURE}.private"
#: What the CRD wants to find in each; the control plane operator needs one for PrivateLink alone.
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
#: What HyperShift's controller wants to find.
_NEEDED = {Platform.AWS: "aws", Platform.AZURE: "azure", Platform.AGENT: "agent"}

RULES: Final = RuleList()


@RULES.error("platform-section", "AWS, Azure and Agent have their section", missed_by=CRD)
def _section(cluster: HostedCluster) -> Iterator[RuleBreak]:
    name = _NEEDED.get(cluster.platform)
    path = f"spec.platform.{name}"
    # A cluster that was never a document says nothing anywhere.
    if name and "spec.platform" in cluster.places and path not in cluster.places:
        yield RuleBreak(
            f"a cluster on {cluster.platform.value} says nothing of {cluster.platform.value}",
            f"add {path}",
            place(cluster, path),
        )


def _by_word(
    cluster: HostedCluster, word: str, parts: dict[str, str], under: str
) -> Iterator[RuleBreak]:
    """Each part of a section is there with its own word, and with no other."""
    for own, part in parts.items():
        path = f"{under}.{part}"
        if own == word and path not in cluster.places:
            yield RuleBreak(f"{word} has no {part}", f"add {path}", place(cluster, path))
        if own != word and path in cluster.places:
            yield RuleBreak(
                f"{part} has no meaning with {word or 'no type'}",
                f"remove it, or make the type {own}",
                place(cluster, path),
            )


@RULES.error(
    "azure-identities",
    "on Azure, managed and workload identities are there with their own type, and complete",
)
def _identities(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is not Platform.AZURE or _AZURE not in cluster.places:
        return
    word = "WorkloadIdentities" if cluster.azure_workload_identities else ""
    word = word or ("ManagedIdentities" if cluster.shared_ingress else "")
    if not word:
        yield RuleBreak(
            "nothing says how the cluster signs in to Azure",
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


@RULES.error(
    "azure-private-section",
    "on Azure, private.privateLink and private.swift are there with their own type",
)
def _private(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform is Platform.AZURE and _PRIVATE in cluster.places:
        parts = {"PrivateLink": "privateLink", "Swift": "swift"}
        yield from _by_word(cluster, cluster.azure_private_type, parts, _PRIVATE)


@RULES.error(
    "azure-private-link-identity",
    "on Azure, PrivateLink with WorkloadIdentities has an identity for the control plane operator",
)
def _link_identity(cluster: HostedCluster) -> Iterator[RuleBreak]:
    section = f"{_IDENTITIES}.workloadIdentities"
    path = f"{section}.controlPlaneOperator"
    linked = cluster.azure_private_type == "PrivateLink" and cluster.azure_workload_identities
    if linked and section in cluster.places and path not in cluster.places:
        yield RuleBreak(
            "nobody may make the private link: the control plane operator has no identity",
            f"add {path}",
            place(cluster, path),
        )
