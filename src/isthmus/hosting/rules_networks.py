"""Rules about ranges and addresses: networks, the advertise address, allowed CIDRs, proxies.

Those of the guest's pod network (its type, what OVN-Kubernetes reserves) are ``GUEST_RULES``.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from itertools import combinations
from typing import Final

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
)
from isthmus.hosting.rules import (
    BOTH,
    CONTROLLER,
    CRD,
    RuleBreak,
    RuleList,
    contains,
    networks,
    overlap,
    place,
)
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules

MAX_ALLOWED_CIDRS = 500
MIN_SERVICE_ADDRESSES = 8
_API = "spec.networking.apiServer"
_ALLOWED = f"{_API}.allowedCIDRBlocks"
_PROXY = "spec.configuration.proxy.httpsProxy"

RULES: Final = RuleList()


@RULES.error(
    "networks-overlap",
    "machine, cluster and service networks do not overlap",
    missed_by=f"{CRD}, which compares letter by letter",
)
def _overlapping(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for (path, cidr), (other, theirs) in combinations(networks(cluster), 2):
        if overlap(cidr, theirs):
            yield RuleBreak(
                f"{theirs} overlaps with {cidr} ({path})",
                "use separate ranges for machines, pods and services",
                place(cluster, other),
            )


@RULES.error("service-network-size", "service networks have at least 8 addresses", missed_by=BOTH)
def _small_services(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for index, cidr in enumerate(cluster.service_cidrs):
        if ip_network(cidr).num_addresses < MIN_SERVICE_ADDRESSES:
            yield RuleBreak(
                f"{cidr} has fewer than {MIN_SERVICE_ADDRESSES} addresses; kube-apiserver does not"
                " start with it",
                "use a larger one, such as 172.31.0.0/16",
                place(cluster, f"spec.networking.serviceNetwork[{index}].cidr"),
            )


@RULES.error(
    "networks-family",
    "the first machine, cluster and service networks have the same family",
    missed_by=CRD,
)
def _families(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first = [(path, cidr) for path, cidr in networks(cluster) if "[0]" in path]
    if not first:
        return
    path, cidr = first[-1]
    version = ip_network(cidr).version
    for other, theirs in first[:-1]:
        if ip_network(theirs).version != version:
            yield RuleBreak(
                f"{theirs} is not IPv{version} like {cidr} ({path})",
                "put the same family first in every list",
                place(cluster, other),
            )


@RULES.error(
    "advertise-address-family",
    "the advertise address has the service network's family",
    missed_by=CRD,
)
def _advertised_family(cluster: HostedCluster) -> Iterator[RuleBreak]:
    address = cluster.advertise_address
    cidr = cluster.service_cidrs[0] if cluster.service_cidrs else ""
    if address and cidr and ip_address(address).version != ip_network(cidr).version:
        yield RuleBreak(
            f"the advertise address {address} does not have the family of {cidr}",
            f"use an IPv{ip_network(cidr).version} address",
            place(cluster, f"{_API}.advertiseAddress"),
        )


@RULES.error(
    "advertise-address-inside",
    "the advertise address, 172.20.0.1 or fd00::1 by default, is in none of the networks",
    missed_by=f"{CRD}; {CONTROLLER}, but for the first network of each list",
)
def _advertised(cluster: HostedCluster) -> Iterator[RuleBreak]:
    address = cluster.advertise_address
    for path, cidr in networks(cluster):
        if address and contains(cidr, address):
            yield RuleBreak(
                f"the advertise address {address} is in {cidr} ({path}), and every node has it on"
                " its lo",
                f"set {_API}.advertiseAddress to an address that is in none of the networks",
                place(cluster, f"{_API}.advertiseAddress"),
            )


@RULES.error("allowed-cidrs-count", "at most 500 ranges are allowed")
def _too_many(cluster: HostedCluster) -> Iterator[RuleBreak]:
    count = len(cluster.allowed_cidrs)
    if count > MAX_ALLOWED_CIDRS:
        yield RuleBreak(
            f"{count} ranges are allowed; the maximum is {MAX_ALLOWED_CIDRS}",
            "merge neighbours",
            place(cluster, _ALLOWED),
        )


@RULES.error("allowed-cidrs-once", "each allowed range is listed once")
def _allowed_twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    seen: set[str] = set()
    for index, cidr in enumerate(cluster.allowed_cidrs):
        if cidr in seen:
            yield RuleBreak(
                f"{cidr} is listed twice", "remove one", place(cluster, f"{_ALLOWED}[{index}]")
            )
        seen.add(cidr)


@RULES.warning("allowed-cidrs-all", "no allowed range is 0.0.0.0/0 or ::/0", missed_by=BOTH)
def _allows_all(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for index, cidr in enumerate(cluster.allowed_cidrs):
        if ip_network(cidr).prefixlen == 0:
            yield RuleBreak(
                f"{cidr} contains every address: the list restricts nothing",
                "remove it, or the whole list",
                place(cluster, f"{_ALLOWED}[{index}]"),
            )


@RULES.warning("api-port-443", "the apiserver's port on the nodes is not 443", missed_by=BOTH)
def _port_443(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.api_port == 443:
        yield RuleBreak(
            "port 443 exists only for old clusters: nodes and the apiserver's pods would use"
            " different ports",
            "remove it; 6443 is the default",
            place(cluster, f"{_API}.port"),
        )


def _proxy(cluster: HostedCluster) -> ProxyAddress | None:
    """The proxy between nodes and the apiserver; private clusters of AWS and Azure have none."""
    has_private = cluster.platform in (Platform.AWS, Platform.AZURE)
    if not cluster.proxy_for_https or (has_private and cluster.access is not EndpointAccess.PUBLIC):
        return None
    first = {*cluster.service_cidrs[:1], *cluster.cluster_cidrs[:1]}
    # As in HyperShift, these entries exempt the apiserver whatever its name is.
    if any("kubernetes" in entry or entry in first for entry in cluster.no_proxy):
        return None
    api = cluster.publishing(ControlPlaneService.API_SERVER)
    host = (api.hostname or api.node_address) if api else ""
    rules = ProxyRules.from_environment(
        {"HTTPS_PROXY": cluster.proxy_for_https, "NO_PROXY": ",".join(cluster.no_proxy)}
    )
    return rules.proxy_for(host, 443)


@RULES.warning(
    "proxy-credentials",
    "an httpsProxy on the way to the apiserver has no credentials in its URL",
    missed_by=BOTH,
)
def _credentials(cluster: HostedCluster) -> Iterator[RuleBreak]:
    proxy = _proxy(cluster)
    if proxy and proxy.user is not None:
        yield RuleBreak(
            "the proxy's URL has credentials, which HyperShift's proxy on the nodes mistakes for a"
            " part of the host name",
            "use a proxy that identifies nodes by address, or list the apiserver in noProxy",
            place(cluster, _PROXY),
        )


@RULES.warning(
    "proxy-by-tls",
    "an httpsProxy on the way to the apiserver is not dialed with TLS",
    missed_by=BOTH,
)
def _proxy_by_tls(cluster: HostedCluster) -> Iterator[RuleBreak]:
    proxy = _proxy(cluster)
    if proxy and proxy.scheme == "https":
        yield RuleBreak(
            "the proxy needs TLS, which HyperShift's proxy on the nodes does not support",
            "use the proxy's http:// address, or list the apiserver in noProxy",
            place(cluster, _PROXY),
        )


_OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"
_OVN, _OTHER = "OVNKubernetes", "Other"

GUEST_RULES: Final = RuleList()


@GUEST_RULES.error(
    "network-type-other",
    "allocateNodeCIDRs and disableMultiNetwork are only for networkType Other",
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
                f"{value} has no effect with networkType {guest.type}",
                f"remove it, or make spec.networking.networkType {_OTHER}",
                place(cluster, path),
            )


@GUEST_RULES.error("ovn-other-network", "ovnKubernetesConfig is only for networkType OVNKubernetes")
def _ovn_elsewhere(cluster: HostedCluster) -> Iterator[RuleBreak]:
    path = f"{_OPERATOR}.ovnKubernetesConfig"
    if path in cluster.places and cluster.guest_network.type != _OVN:
        yield RuleBreak(
            f"networkType {cluster.guest_network.type} does not read it",
            f"remove it, or make spec.networking.networkType {_OVN}",
            place(cluster, path),
        )


@GUEST_RULES.error(
    "ovn-subnets-overlap",
    "the join, transit and internal subnets of OVN-Kubernetes overlap no other; KubeVirt's are"
    " 100.66.0.0/16 and fd99::/64 by default",
    missed_by=f"{CRD}, which compares only the texts of two of them",
)
def _ovn_overlap(cluster: HostedCluster) -> Iterator[RuleBreak]:
    if cluster.guest_network.type != _OVN:
        return
    subnets = cluster.guest_network.subnets.items()
    pairs = [(one, two) for one in subnets for two in networks(cluster)]
    for one, two in [*pairs, *combinations(subnets, 2)]:
        # The finding names the one that the document sets.
        (path, cidr), (other, theirs) = (one, two) if two[0] in cluster.places else (two, one)
        if overlap(cidr, theirs):
            where = path if path in cluster.places else f"the default of {path}"
            yield RuleBreak(
                f"{theirs} overlaps with {cidr} ({where})",
                "give OVN-Kubernetes ranges that nothing else uses",
                place(cluster, other),
            )


@GUEST_RULES.warning("network-host-bits", "networks have no host bits", missed_by=BOTH)
def _host_bits(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for path, text in cluster.host_bits.items():
        yield RuleBreak(
            f"{text} is an address in a network, and is read as the whole network",
            "clear its host bits",
            place(cluster, path),
        )
