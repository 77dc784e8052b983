"""Which connections to Services are masqueraded, and where they may come to: cell by cell.

The table is that of kube-proxy's own TestInternalExternalMasquerade, for every way of telling local
traffic, by iptables and by nftables. What a pod sees is the truth; rules are not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from machine import wait_until
from services_bed import (
    LIMIT_S,
    MODES,
    NODE_IPS,
    NODES,
    POD_GATEWAYS,
    Bed,
    Seen,
    address_of,
    node_of,
    up,
)

pytestmark = pytest.mark.timeout(300)

ENDS = ("pod-1a", "pod-2a")
LOCAL_END = {"node-1": "pod-1a", "node-2": "pod-2a"}
SOURCES = {
    "pod": {"node-1": "pod-1b", "node-2": "pod-2b"},
    "node": {"node-1": "node-1", "node-2": "node-2"},
    "external": {"node-1": "client-1", "node-2": "client-2"},
}
#: A try may go to the same endpoint as the one before; forty in a row never do.
MOST_TRIES = 40
AT_ONCE = 4

CLUSTER_IPS = {"cluster": "10.96.1.1", "local": "10.96.1.2", "internal": "10.96.1.3"}
LB_IPS = {"cluster": "192.0.2.1", "local": "192.0.2.2"}
NODE_PORTS = {"cluster": 30101, "local": 30102}
#: Services with one endpoint, on the node: what is not masqueraded would come back another way.
NEAR_IPS = {"node-1": "10.96.1.11", "node-2": "10.96.1.12"}


class Cell(NamedTuple):
    """What becomes of a connection: to any endpoint or to the node's own; masqueraded or not."""

    anywhere: bool
    masqueraded: bool


ALL, ALL_MASQ = Cell(True, False), Cell(True, True)
LOCAL, LOCAL_MASQ = Cell(False, False), Cell(False, True)
# By source: the cluster IP, then external addresses with eTP Cluster and with eTP Local.
TABLE = {
    "pod": (ALL, ALL_MASQ, ALL),
    "node": (ALL_MASQ, ALL_MASQ, ALL_MASQ),
    "external": (ALL_MASQ, ALL_MASQ, LOCAL),
}
MASQUERADE_ALL = {**TABLE, "pod": (ALL_MASQ, ALL_MASQ, ALL)}
NO_DETECTOR = {
    "pod": (ALL, ALL_MASQ, LOCAL),
    "node": (ALL, ALL_MASQ, ALL_MASQ),
    "external": (LOCAL, ALL_MASQ, LOCAL),
}

BOTH = NODES
BRIDGED, CABLED = ("node-1",), ("node-2",)
DETECTORS = {
    "cluster-cidr": (BOTH, ("--cluster-cidr=10.180.0.0/16",)),
    "cluster-cidr, several": (BOTH, ("--cluster-cidr=10.180.2.0/24,fd00::/48,10.180.1.0/24",)),
    # The cluster CIDR is nowhere: nobody needs to know it.
    "node-cidr": (BOTH, ("--detect-local=node-cidr", "--cluster-cidr=172.16.0.0/12")),
    "node-cidr, given": (BOTH, ("--detect-local=node-cidr", "--node-cidr=10.180.0.0/16")),
    "pod-interface-prefix": (
        BOTH, ("--detect-local=pod-interface-prefix", "--pod-interface-prefix=cni,cali"),
    ),
    "bridge": (BRIDGED, ("--detect-local=bridge",)),
    "bridge, ports": (BRIDGED, ("--detect-local=bridge", "--pod-interface-prefix=tap,veth")),
    "ClusterCIDR": (BOTH, ("--detect-local-mode=ClusterCIDR", "--cluster-cidr=10.180.0.0/16")),
    "NodeCIDR": (BOTH, ("--detect-local-mode=NodeCIDR",)),
    "BridgeInterface": (
        BRIDGED, ("--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"),
    ),
    "InterfaceNamePrefix": (
        CABLED, ("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def lab_bed() -> Iterator[Bed]:
    with up() as bed:
        for policy in ("Cluster", "Local"):
            name = policy.lower()
            bed.service(
                name, ENDS, ip=CLUSTER_IPS[name], lb_ip=LB_IPS[name], node_port=NODE_PORTS[name],
                externalTrafficPolicy=policy,
            )  # fmt: skip
        bed.service("internal", ENDS, ip=CLUSTER_IPS["internal"], internalTrafficPolicy="Local")
        for node in NODES:
            bed.service(f"near-{node}", [LOCAL_END[node]], ip=NEAR_IPS[node])
        yield bed


@pytest.fixture(scope="module", params=MODES)
def bed(request: pytest.FixtureRequest, lab_bed: Bed) -> Bed:
    lab_bed.use_mode(request.param)
    return lab_bed


def expected(host: str, cell: Cell) -> set[Seen]:
    """All that may be seen, each of which has to be."""
    node = node_of(host)
    servers = ENDS if cell.anywhere else (LOCAL_END[node],)
    if not cell.masqueraded:
        return {Seen(server, address_of(host)) for server in servers}
    # A node is to a pod what its interface on the way there is.
    return {
        Seen(server, POD_GATEWAYS[node] if server == LOCAL_END[node] else NODE_IPS[node])
        for server in servers
    }


def check(bed: Bed, host: str, target: str, port: int, cell: Cell) -> None:
    """Connect until every endpoint has answered, and find nothing that the cell does not say."""
    wanted = expected(host, cell)
    seen: set[Seen] = set()
    for _ in range(MOST_TRIES // AT_ONCE):
        seen |= set(bed.ask_all(host, target, port, times=AT_ONCE))
        assert seen <= wanted, f"{host} → {target}:{port}: {seen}, not {wanted}"
        if seen == wanted:
            return
    pytest.fail(f"{host} → {target}:{port}: only {seen} of {wanted}")


def check_table(bed: Bed, node: str, table: dict[str, tuple[Cell, Cell, Cell]]) -> None:
    """Check every cell on a node."""
    for source, hosts in SOURCES.items():
        host, (inside, *outside) = hosts[node], table[source]
        if inside == LOCAL and source == "external":
            check(bed, host, NEAR_IPS[node], 80, inside)
        else:
            check(bed, host, CLUSTER_IPS["cluster"], 80, inside)
        for policy, cell in zip(("cluster", "local"), outside, strict=True):
            check(bed, host, NODE_IPS[node], NODE_PORTS[policy], cell)
            check(bed, host, LB_IPS[policy], 80, cell)


@pytest.mark.parametrize("name", DETECTORS)
def test_the_table_with_a_detector(bed: Bed, name: str) -> None:
    nodes, flags = DETECTORS[name]
    bed.use(*flags, nodes=nodes)
    for node in nodes:
        check_table(bed, node, TABLE)
        # Internal traffic policy Local is for cluster IPs only, and masquerades as without it.
        for source, hosts in SOURCES.items():
            cell = LOCAL if source == "pod" else LOCAL_MASQ
            check(bed, hosts[node], CLUSTER_IPS["internal"], 80, cell)


def test_the_table_when_everything_is_masqueraded(bed: Bed) -> None:
    bed.use("--masquerade-all", "--cluster-cidr=10.180.0.0/16")
    for node in NODES:
        check_table(bed, node, MASQUERADE_ALL)


def test_the_table_without_a_detector(bed: Bed) -> None:
    bed.use()
    for node in NODES:
        check_table(bed, node, NO_DETECTOR)


def test_a_cluster_cidr_that_does_not_exist_hides_all_pods(bed: Bed) -> None:
    # What the detectors that need none are there for.
    bed.use("--cluster-cidr=172.16.0.0/12")
    for node, source in itertools.product(NODES, SOURCES):
        host = SOURCES[source][node]
        check(bed, host, CLUSTER_IPS["cluster"], 80, ALL_MASQ)


def test_bridge_ports_that_iptables_does_not_hear_of(bed: Bed) -> None:
    setting, deaf = "net.bridge.bridge-nf-call-iptables", bed.mode == "iptables"
    bed.run("node-1", "sysctl", "-qw", f"{setting}=0")
    try:
        (proxy,) = bed.use("--detect-local=bridge", "--v=3", nodes=BRIDGED)
        # nftables marks packets on the bridge itself. Only by another node, since answers of a pod
        # on the same bridge would not be translated back.
        source = NODE_IPS["node-1"] if deaf else address_of("pod-1b")
        assert bed.ask("pod-1b", NEAR_IPS["node-2"]) == Seen("pod-2a", source)
        assert (setting in proxy.log) == deaf
    finally:
        bed.run("node-1", "sysctl", "-qw", f"{setting}=1")
    check(bed, "pod-1b", CLUSTER_IPS["cluster"], 80, ALL)
    said = "iptables sees bridge ports now"
    wait_until(lambda: said in proxy.log or not deaf, "it is said", LIMIT_S)


def test_pods_that_reach_themselves(bed: Bed) -> None:
    for flags in (("--detect-local=node-cidr",), ()):
        bed.use(*flags)
        for node, pod in LOCAL_END.items():
            assert bed.ask(pod, NEAR_IPS[node]) == Seen(pod, POD_GATEWAYS[node])
