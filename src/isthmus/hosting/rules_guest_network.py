"""Rules about the guest's pod network: its type, and what OVN-Kubernetes keeps for itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from isthmus.hosting.model import HostedCluster
from isthmus.hosting.rules import BOTH, CRD, RuleBreak, RuleList, networks, overlap, place

_OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"
_OVN, _OTHER = "OVNKubernetes", "Other"

RULES: Final = RuleList()


@RULES.error(
    "network-type-other",
    "allocateNodeCIDRs and disableMultiNetwork are for networkType Other alone",
)
def _for_other(cluster: HostedCluster) -> Iterator[RuleBreak]:
    guest = cluster.guest_network
    said = {
        "spec.networking.allocateNodeCIDRs": (guest.allocates_node_cidrs, "Enabled"),
        f"{_OPERATOR}.disableMultiNetwork": (guest.without_multus, "true"),
    }
    for path, (is_set, value) in said.items():
        if is_set and guest.type != _OTHER:
            yield RuleBreak(
                f"{value} has no meaning with networkType {guest.type}",
                f"remove it, or make spec.networking.networkType {_OTHER}",
                place(cluster, path),
            )


@RULES.error("ovn-other-network", "ovnKubernetesConfig is for networkType OVNKubernetes alone")
def _ovn_elsewhere(cluster: HostedCluster) -> Iterator[RuleBreak]:
    path = f"{_OPERATOR}.ovnKubernetesConfig"
    if path in cluster.places and cluster.guest_network.type != _OVN:
        yield RuleBreak(
            f"networkType {cluster.guest_network.type} does not read it",
            f"remove it, or make spec.networking.networkType {_OVN}",
            place(cluster, path),
        )


@RULES.error(
    "ovn-subnets-overlap",
    "the join, transit and internal subnets of OVN-Kubernetes overlap with nothing; KubeVirt's are"
    " 100.66.0.0/16 and fd99::/64 by default",
    missed_by=f"{CRD}, which compares two of them letter by letter",
)
def _ovn_overlap(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.guest_network.type != _OVN:
        return
    subnets = cluster.guest_network.subnets.items()
    pairs = [(one, two) for one in subnets for two in networks(cluster)]
    for one, two in [*pairs, *combinations(subnets, 2)]:
        # The one that the document says is the one to change.
        (path, cidr), (other, theirs) = (one, two) if two[0] in cluster.places else (two, one)
        if overlap(cidr, theirs):
            where = path if path in cluster.places else f"the default of {path}"
            yield RuleBreak(
                f"{theirs} overlaps with {cidr} ({where})",
                "give OVN-Kubernetes ranges that nothing else has",
                place(cluster, other),
            )


@RULES.warning("network-host-bits", "networks have no bits below their prefix", missed_by=BOTH)
def _host_bits(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for path, text in cluster.host_bits.items():
        yield RuleBreak(
            f"{text} is one address of a network, and read as the whole network",
            "clear the bits below its prefix",
            place(cluster, path),
        )
