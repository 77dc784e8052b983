"""Rules only for v1alpha1: OVN's database, the issuer's bucket, and missing features.

plan.py lists the other rules that apply to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.hosting.document_fields_v1alpha1 import SINGLE_CIDRS
from isthmus.hosting.model import ControlPlaneService, HostedCluster, Strategy, StrategyVerdict
from isthmus.hosting.rules import RuleBreak, RuleList, entries, in_entry, place, words
from isthmus.hosting.visibility import IN_CLUSTER_ISSUER, is_in_bucket, issuer_host, uses_ovn

_OVN = ControlPlaneService.OVN_SB_DB
_ALLOWED = "spec.networking.apiServer.allowedCIDRBlocks"

RULES: Final = RuleList()


@RULES.error("platform-of-version", "the version has the platform")
def _platform(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.platform not in cluster.model.platforms:
        yield RuleBreak(
            f"{cluster.model.version} has no platform {cluster.platform.value}",
            "use a later version of the API",
            place(cluster, "spec.platform.type"),
        )


@RULES.error("ovn-published", "with networkType OVNKubernetes, OVNSbDb is a Route or a NodePort")
def _ovn_hidden(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if not uses_ovn(cluster):
        return
    ways = words(cluster.model.possible(_OVN, cluster.platform))
    found = entries(cluster, _OVN)
    if not found:
        yield RuleBreak(
            "OVNSbDb is not published, so OVN on nodes does not find its database",
            f"add an entry with service: OVNSbDb, by {ways}",
            place(cluster, "spec.services"),
        )
    for entry in found:
        if entry.strategy is Strategy.NONE:
            yield RuleBreak(
                "OVNSbDb is not published, so OVN on nodes does not find its database",
                f"use {ways}",
                in_entry(cluster, entry, ".type"),
            )


@RULES.note("ovn-unused", "OVNSbDb is listed only with networkType OVNKubernetes")
def _ovn_unused(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in entries(cluster, _OVN):
        if not uses_ovn(cluster):
            yield RuleBreak(
                f"networkType {cluster.guest_network.type} has no OVN database to publish",
                "remove it",
                entry.place,
            )


@RULES.note("oidc-elsewhere", "OIDC is in a bucket of S3, or not published")
def _ignored(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        verdict = cluster.model.verdict(entry.service, entry.strategy, cluster.platform)
        if verdict is StrategyVerdict.IGNORED:
            yield RuleBreak(
                f"nothing publishes {entry.service.value} by {entry.strategy.value}: the entry has"
                " no effect",
                "use S3 on AWS, or None",
                in_entry(cluster, entry, ".type"),
            )


@RULES.warning("oidc-issuer", "OIDC by S3 has an issuerURL that can be reached from outside")
def _issuer(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in entries(cluster, ControlPlaneService.OIDC):
        if is_in_bucket(cluster, entry) and not issuer_host(cluster):
            yield RuleBreak(
                f"tokens name {IN_CLUSTER_ISSUER} as their issuer, so no verifier outside reads the"
                " bucket",
                "set spec.issuerURL to that of the bucket",
                place(cluster, "spec.issuerURL"),
            )


@RULES.error("allowed-cidrs-ipv4", "allowed CIDR blocks are IPv4")
def _allowed_v6(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for number, cidr in enumerate(cluster.allowed_cidrs):
        if ":" in cidr:
            yield RuleBreak(
                f"{cluster.model.version} does not allow IPv6 CIDR blocks such as {cidr}",
                "remove it, or use a later version of the API",
                place(cluster, f"{_ALLOWED}[{number}]"),
            )


@RULES.warning("cidr-beside-list", "a network is a single CIDR or a list, not both")
def _twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for listed, single in SINGLE_CIDRS.items():
        if single in cluster.places and listed in cluster.places:
            yield RuleBreak(
                f"{single.rpartition('.')[2]} takes precedence over this list, which has no effect",
                f"remove {single}",
                place(cluster, listed),
            )
