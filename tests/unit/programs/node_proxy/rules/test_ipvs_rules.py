"""A view becomes kube-proxy's ipset entries and iptables rules of ipvs mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import LocalMatch
from isthmus.programs.node_proxy.rules.ipvs.plan import (
    BlockedAddress,
    IpvsOptions,
    IpvsPlan,
    plan,
    rules,
)
from isthmus.programs.node_proxy.rules.ipvs.servers import IpvsDestination, IpvsFlags, ServerKey
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet, batch, net, undone
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

V4 = IpFamily.IPV4
NODE = ("10.180.0.1", "192.168.7.1")
HERE = Endpoint(ip="10.0.1.1", port=8080, local=True)
THERE = Endpoint(ip="10.0.2.1", port=8080)
BOTH = ChosenEndpoints(
    cluster=(HERE, THERE), local=(HERE,), reachable=(HERE, THERE), exist=True,
    serving=(HERE, THERE),
)  # fmt: skip


class Cidrs:
    """A detector of several source networks."""

    bridge_ports = None

    def __init__(self, *cidrs: str) -> None:
        self.cidrs = cidrs

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """One for each."""
        return tuple(
            LocalMatch(iptables=("-s", cidr), iptables_not=("!", "-s", cidr), nft="", nft_not="")
            for cidr in self.cidrs
        )


SETTINGS = RuleSettings(family=V4, detector=Cidrs("10.0.0.0/16"), node_ip="10.180.0.1")


def backed(
    protocol: PortProtocol = PortProtocol.TCP, backends: ChosenEndpoints = BOTH, **more: object
) -> ServiceView:
    key = PortKey(ServiceName("ns", "svc"), "p", protocol)
    port = ServicePort(key=key, cluster_ip="172.30.0.5", port=80, **more)  # type: ignore[arg-type]
    return ServiceView(family=V4, ports={key: BackedPort(port=port, backends=backends)})


def made(view: ServiceView, settings: RuleSettings = SETTINGS, scheduler: str = "rr") -> IpvsPlan:
    return plan(view, settings, IpvsOptions(scheduler=scheduler), NODE)


def entries(of: IpvsPlan) -> dict[IpSet, set[str]]:
    return {each: found for each, found in of.sets.items() if found}


def served(of: IpvsPlan) -> dict[str, set[str]]:
    return {
        str(server.key): {f"{each.ip}:{each.port}" for each in found}
        for server, found in of.servers.items()
    }


def test_a_cluster_ip() -> None:
    found = made(backed())
    assert entries(found) == {
        IpSet.LOOP_BACK: {"10.0.1.1,tcp:8080,10.0.1.1"},
        IpSet.CLUSTER_IP: {"172.30.0.5,tcp:80"},
        IpSet.IPVS_IPS: {"172.30.0.5"},
    }
    assert served(found) == {"172.30.0.5:80/tcp": {"10.0.1.1:8080", "10.0.2.1:8080"}}
    assert found.addresses == {"172.30.0.5"}


def test_internal_policy_local_and_its_fall_back() -> None:
    assert served(made(backed(internal_local=True))) == {"172.30.0.5:80/tcp": {"10.0.1.1:8080"}}
    elsewhere = ChosenEndpoints(cluster=(THERE,), reachable=(THERE,), exist=True, serving=(THERE,))
    found = made(backed(backends=elsewhere, internal_local=True))
    assert served(found) == {"172.30.0.5:80/tcp": {"10.0.2.1:8080"}}
    assert found.no_local == {"internal": 1, "external": 0}


@pytest.mark.parametrize("local", [False, True])
def test_external_ips_are_had_unless_the_node_has_them(local: bool) -> None:
    found = made(backed(external_ips=("1.2.3.4", "192.168.7.1"), external_local=local))
    into = IpSet.EXTERNAL_IP_LOCAL if local else IpSet.EXTERNAL_IP
    assert entries(found)[into] == {"1.2.3.4,tcp:80", "192.168.7.1,tcp:80"}
    assert found.addresses == {"172.30.0.5", "1.2.3.4"}
    assert served(found)["1.2.3.4:80/tcp"] == (
        {"10.0.1.1:8080"} if local else {"10.0.1.1:8080", "10.0.2.1:8080"}
    )


@pytest.mark.parametrize(
    ("protocol", "every", "local", "entry"),
    [
        (PortProtocol.TCP, IpSet.NODE_PORT_TCP, IpSet.NODE_PORT_LOCAL_TCP, {"30080"}),
        (PortProtocol.UDP, IpSet.NODE_PORT_UDP, IpSet.NODE_PORT_LOCAL_UDP, {"30080"}),
        (
            PortProtocol.SCTP,
            IpSet.NODE_PORT_SCTP,
            IpSet.NODE_PORT_LOCAL_SCTP,
            {"10.180.0.1,sctp:30080", "192.168.7.1,sctp:30080"},
        ),
    ],
)
def test_node_ports(protocol: PortProtocol, every: IpSet, local: IpSet, entry: set[str]) -> None:
    found = made(backed(protocol, node_port=30080))
    assert (entries(found)[every], entries(found).get(local)) == (entry, None)
    assert set(served(found)) == {
        f"172.30.0.5:80/{protocol.value}",
        f"10.180.0.1:30080/{protocol.value}",
        f"192.168.7.1:30080/{protocol.value}",
    }
    found = made(backed(protocol, node_port=30080, external_local=True))
    assert entries(found)[every] == entries(found)[local] == entry


def test_node_port_addresses() -> None:
    chosen = replace(SETTINGS, node_port_addresses=("127.0.0.1", "10.180.0.1"))
    found = made(backed(node_port=30080), chosen)
    assert set(served(found)) == {"172.30.0.5:80/tcp", "10.180.0.1:30080/tcp"}
    none = made(backed(node_port=30080), replace(SETTINGS, node_port_addresses=("127.0.0.1",)))
    assert set(served(none)) == {"172.30.0.5:80/tcp"}
    assert IpSet.NODE_PORT_TCP not in entries(none)


def test_load_balancers_and_source_ranges() -> None:
    lb = backed(
        load_balancer_ips=("5.6.7.8",),
        source_ranges=("203.0.113.0/25", "8.8.8.8/32"),
        external_local=True,
        health_check_node_port=31000,
    )
    found = made(lb)
    assert entries(found)[IpSet.LOAD_BALANCER_SOURCE_CIDR] == {
        "5.6.7.8,tcp:80,203.0.113.0/25",
        "5.6.7.8,tcp:80,8.8.8.8",
    }
    for each in (IpSet.LOAD_BALANCER, IpSet.LOAD_BALANCER_LOCAL, IpSet.LOAD_BALANCER_FW):
        assert entries(found)[each] == {"5.6.7.8,tcp:80"}
    assert entries(found)[IpSet.HEALTH_CHECK_NODE_PORT] == {"31000"}
    assert found.blocked == {BlockedAddress("5.6.7.8", "tcp", 80)}
    text = rules(found, SETTINGS).text()
    assert (
        "-A KUBE-IPVS-OUT-FILTER -s 5.6.7.8 -m ipvs --vaddr 5.6.7.8 --vproto tcp --vport 80"
        " -j DROP\n" in text
    )
    inside = made(lb, replace(SETTINGS, node_ip="203.0.113.9"))
    assert inside.blocked == set()
    assert entries(inside)[IpSet.LOAD_BALANCER_SOURCE_IP] == {"5.6.7.8,tcp:80,5.6.7.8"}


def test_affinity_and_the_hashing_scheduler() -> None:
    (server,) = made(backed(affinity_s=10800), scheduler="mh").servers
    assert server.flags == IpvsFlags.PERSISTENT | IpvsFlags.SOURCE_PORT
    assert (server.scheduler, server.timeout_s) == ("mh", 10800)
    (plain,) = made(backed()).servers
    assert (plain.flags, plain.timeout_s) == (IpvsFlags.NONE, 0)
    assert plain.key == ServerKey("172.30.0.5", 80, PortProtocol.TCP)
    assert made(backed(backends=ChosenEndpoints())).servers == {plain: frozenset()}
    assert IpvsDestination("10.0.1.1", 8080) in made(backed()).servers[plain]


# Typed from kube-proxy's writeIptablesRules and its tables, for a Service of every kind.
GOLDEN = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving \
hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set \
KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade \
purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for masquerade \
purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.0.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and \
filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and \
filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m \
addrtype ! --src-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m comment --comment "Kubernetes service external ip + port for masquerade and \
filter purpose" -m set --match-set KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j \
MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark \
0x00004000/0x00004000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack \
--ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set \
KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
"""


def test_the_rules_are_kube_proxys() -> None:
    view = backed(node_port=30080, external_ips=("1.2.3.4",), load_balancer_ips=("5.6.7.8",))
    assert rules(made(view), SETTINGS).text() == GOLDEN


def cluster_rules(settings: RuleSettings) -> list[str]:
    nat = rules(made(backed(), settings), settings).nat
    return [each for each in nat if "cluster ip" in each or "NOT-LOCAL" in each]


def test_what_is_masqueraded_to_cluster_ips() -> None:
    start = (
        '-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for'
        ' masquerade purpose" -m set --match-set KUBE-CLUSTER-IP'
    )
    everything = replace(
        SETTINGS, masquerade_all=True, detector=Cidrs("10.0.0.0/16", "10.1.0.0/16")
    )
    assert cluster_rules(everything) == [f"{start} dst,dst -j KUBE-MARK-MASQ"]
    assert cluster_rules(RuleSettings(family=V4)) == [f"{start} src,dst -j KUBE-MARK-MASQ"]
    several = replace(SETTINGS, detector=Cidrs("10.0.0.0/16", "10.1.0.0/16"))
    assert cluster_rules(several) == [
        f"{start} dst,dst -j KUBE-MASQ-IF-NOT-LOCAL",
        "-A KUBE-MASQ-IF-NOT-LOCAL -s 10.0.0.0/16 -j RETURN",
        "-A KUBE-MASQ-IF-NOT-LOCAL -s 10.1.0.0/16 -j RETURN",
        "-A KUBE-MASQ-IF-NOT-LOCAL -j KUBE-MARK-MASQ",
    ]
    assert ":KUBE-MASQ-IF-NOT-LOCAL - [0:0]\n" in rules(made(backed()), several).text()


def test_policy_local_comes_before_what_has_all() -> None:
    view = backed(node_port=30080, load_balancer_ips=("5.6.7.8",), external_local=True)
    nat = rules(made(view), SETTINGS).nat
    lines = [each for each in nat if each.startswith(("-A KUBE-NODE-PORT", "-A KUBE-LOAD"))]
    assert [each.split("--match-set ")[-1] for each in lines] == [
        "KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN",
        "KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN",
        "KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ",
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ",
    ]


def test_names_and_batches_of_sets() -> None:
    v6 = IpFamily.IPV6
    assert IpSet.LOOP_BACK.of(v6) == "KUBE-6-LOOP-BACK"
    assert IpSet.LOAD_BALANCER_SOURCE_CIDR.of(v6) == "KUBE-6-LOAD-BALANCER-SOURCE-CID"
    assert all(len(each.of(family)) <= 31 for each in IpSet for family in IpFamily)
    assert len({each.of(family) for each in IpSet for family in IpFamily}) == 2 * len(IpSet) == 34
    assert IpSet.IPVS_IPS.create(v6) == (
        "create KUBE-6-IPVS-IPS hash:ip family inet6 hashsize 1024 maxelem 65536"
    )
    before = {IpSet.EXTERNAL_IP: frozenset({"1.2.3.4,tcp:80", "1.2.3.4,tcp:81"})}
    after = {
        IpSet.EXTERNAL_IP: frozenset({"1.2.3.4,tcp:81"}),
        IpSet.EXTERNAL_IP_LOCAL: frozenset({"1.2.3.4,tcp:80"}),
    }
    lines = batch(V4, after, before, create=False)
    assert lines == [
        "add KUBE-EXTERNAL-IP-LOCAL 1.2.3.4,tcp:80",
        "del KUBE-EXTERNAL-IP 1.2.3.4,tcp:80",
    ]
    assert undone(lines) == [
        "add KUBE-EXTERNAL-IP 1.2.3.4,tcp:80",
        "del KUBE-EXTERNAL-IP-LOCAL 1.2.3.4,tcp:80",
    ]
    assert batch(V4, after, after, create=False) == []
    created = batch(V4, after, {}, create=True)
    assert created[0].startswith("create KUBE-LOOP-BACK hash:ip,port,ip family inet ")
    assert undone(created) == ["del KUBE-EXTERNAL-IP-LOCAL 1.2.3.4,tcp:80",
                               "del KUBE-EXTERNAL-IP 1.2.3.4,tcp:81"]  # fmt: skip
    assert (net("10.1.2.3/24"), net("fd00::1/128")) == ("10.1.2.0/24", "fd00::1")
