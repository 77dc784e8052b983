"""The iptables backend with the kernel's own tables, in namespaces of its own.

Every test runs with both kinds of iptables: on nf_tables, and legacy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from nftables_bed import Space, backed, spaces, update

from isthmus.programs.node_proxy.kernel.backend import ApplyError, SyncReport
from isthmus.programs.node_proxy.kernel.iptables import IptablesBackend
from isthmus.programs.node_proxy.kernel.netlink import read_counters
from isthmus.programs.node_proxy.rules.detectors import BridgePorts, Interfaces, SourceRanges
from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.iptables.base import COUNTERS, JUMPS
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRenderer, parse_saved
from isthmus.programs.node_proxy.rules.model import BackedPort, IpFamily, PortProtocol
from isthmus.programs.node_proxy.rules.settings import RuleSettings

pytestmark = pytest.mark.skipif(
    not (shutil.which("iptables-nft") and shutil.which("iptables-legacy")),
    reason="iptables is not installed",
)

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
SETTINGS = RuleSettings(family=V4, detector=SourceRanges(("10.0.0.0/8",)), node_ip="192.0.2.1")
FOREIGN = """
*mangle
:OTHERS - [0:0]
-A FORWARD -j OTHERS
COMMIT
*filter
:OTHERS - [0:0]
:KUBE-OTHERS - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -j OTHERS
-A OTHERS -s 192.0.2.7/32 -j DROP
COMMIT
*nat
:OTHERS - [0:0]
-A PREROUTING -j OTHERS
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
-A OTHERS -p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 80
COMMIT
"""


class Node:
    """A backend in a namespace."""

    def __init__(self, space: Space, variant: str, *, family: IpFamily = V4) -> None:
        self.space, self.variant = space, variant
        self.program = f"{'iptables' if family is V4 else 'ip6tables'}-{variant}"
        self.backend = IptablesBackend(family, variant=variant)
        space.do(self.backend.start)

    def sync(
        self, *ports: BackedPort, settings: RuleSettings = SETTINGS, full: bool = False
    ) -> SyncReport:
        given = update(*ports, family=self.backend.family)
        return self.space.do(self.backend.sync, given, settings, full=full)

    def again(self) -> Node:
        """A new run on the same machine."""
        return Node(self.space, self.variant, family=self.backend.family)

    def intact(self) -> bool:
        return self.space.do(self.backend.intact)

    def cleanup(self) -> list[str]:
        return self.space.do(self.backend.cleanup)

    def iptables(self, *words: str) -> None:
        self.space.run(self.program, *words)

    def restore(self, text: str) -> None:
        self.space.run(f"{self.program}-restore", "--noflush", text=text)

    def saved(self) -> str:
        """All rules, without what differs from run to run."""
        lines = self.space.run(f"{self.program}-save").splitlines()
        kept = [line.split(" [")[0] for line in lines if not line.startswith("#")]
        return "\n".join(kept)

    def normal(self) -> dict[str, tuple[list[str], list[str]]]:
        """The chains and rules by table, rules only in the order that they have in their chain."""
        found: dict[str, tuple[list[str], list[str]]] = {}
        for block in self.saved().split("COMMIT"):
            name, *lines = block.strip().splitlines() or [""]
            rules = sorted((line for line in lines if line[0] == "-"), key=lambda x: x.split()[1])
            found[name] = (sorted(line for line in lines if line[0] == ":"), rules)
        return found


@pytest.fixture(params=["nft", "legacy"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with spaces("ipt") as [space]:
        yield Node(space, request.param)


def some() -> list[BackedPort]:
    return [
        backed("plain", "172.30.0.1", ["10.1.0.1", "10.2.0.1", "10.2.0.2"]),
        backed(
            "lb", "172.30.0.2", ["10.1.0.2", "10.2.0.3"], node_port=30001, external_local=True,
            external_ips=("9.9.9.9",), load_balancer_ips=("8.8.8.8",), affinity_s=10,
            source_ranges=("192.0.2.0/24",), health_check_node_port=31000,
        ),
        backed("none", "172.30.0.3", node_port=30002),
        backed("dns", "172.30.0.4", ["10.1.0.1"], protocol=PortProtocol.UDP, internal_local=True),
        backed("sctp", "172.30.0.5", ["10.2.0.1"], protocol=PortProtocol.SCTP),
    ]  # fmt: skip


def many(number: int) -> list[BackedPort]:
    return [
        backed(
            f"svc{each}",
            f"172.30.{each // 250}.{each % 250}",
            [f"10.{end}.{each // 250}.{each % 250}" for end in range(10)],
        )
        for each in range(number)
    ]


def in_kernel(node: Node, ports: Sequence[BackedPort], settings: RuleSettings = SETTINGS) -> None:
    """Check that all chains and as many rules are there as there should be."""
    given = update(*ports, family=node.backend.family).view
    tables = IptablesRenderer(settings).render(given).ruleset.tables()
    saved = parse_saved(node.saved())
    for table, chains in tables.items():
        found = {chain for chain in saved.table(table).chains if chain.startswith("KUBE-")}
        extra = {base.CANARY, base.KUBELET_FIREWALL if table == "filter" else base.CANARY}
        assert found - extra == chains.keys() - extra
        jumps = sum(jump.table == table for jump in JUMPS)
        assert saved.table(table).count == sum(map(len, chains.values())) + jumps


@pytest.mark.parametrize(
    "detector",
    [
        SourceRanges(("10.0.0.0/8",)),
        SourceRanges(("10.1.0.0/16", "10.2.0.0/16")),
        Interfaces(prefixes=("veth",)),
        BridgePorts(),
        BridgePorts(("veth", "tap")),
    ],
    ids=["range", "ranges", "prefix", "bridge", "bridge-ports"],
)
def test_rules_are_written(node: Node, detector: SourceRanges) -> None:
    settings = replace(SETTINGS, detector=detector)
    report = node.sync(*some(), settings=settings)
    assert report.full
    assert report.rules == report.written
    in_kernel(node, some(), settings)
    before = node.saved()
    assert node.sync(*some(), settings=settings, full=True).full
    assert node.saved() == before
    assert node.intact()


def test_ipv6(node: Node) -> None:
    six = Node(node.space, node.variant, family=V6)
    settings = RuleSettings(family=V6, detector=SourceRanges(("fd00:1::/64",)))
    ports = [
        backed("plain", "fd00:30::1", ["fd00:1::1", "fd00:2::1"], node_port=30001),
        backed("none", "fd00:30::2"),
    ]
    six.sync(*ports, settings=settings)
    in_kernel(six, ports, settings)
    assert "reject-with icmp6-port-unreachable" in six.saved()
    assert "KUBE" not in node.saved()  # the other family's


def test_changes_make_the_same_as_the_whole(node: Node) -> None:
    first = some()
    node.sync(*first)
    second = [
        backed("plain", "172.30.0.1", ["10.1.0.1", "10.2.0.2", "10.2.0.9"]),
        backed("none", "172.30.0.3", ["10.2.0.4"], node_port=30002),
        *first[3:],
        backed("new", "172.30.0.9", ["10.2.0.5"], external_ips=("7.7.7.7",)),
    ]
    report = node.sync(*second)
    assert not report.full
    assert 0 < report.written["nat"] < report.rules["nat"]
    in_kernel(node, second)
    changed = node.normal()
    node.sync(*second, full=True)
    assert node.normal() == changed
    # What did not change is not written, nothing is read, and no program runs.
    assert node.sync(*second).written == {"filter": 0, "nat": 0}


def test_another_run_removes_what_an_older_one_left(node: Node) -> None:
    settings = replace(SETTINGS, detector=SourceRanges(("10.1.0.0/16", "10.2.0.0/16")))
    node.sync(*some(), settings=settings)
    assert base.MASQ_IF_NOT_LOCAL in node.saved()
    again = node.again()
    assert again.intact()  # of what it wrote itself: nothing yet
    assert again.sync(*some()[:1]).full
    in_kernel(again, some()[:1])
    assert base.MASQ_IF_NOT_LOCAL not in node.saved()


def test_jumps_are_put_in_front_once(node: Node) -> None:
    node.restore(FOREIGN)
    for _ in range(2):
        node.again().sync(*some())
    rules = parse_saved(node.saved()).table("filter").rules["INPUT"]
    assert [rule.split()[-1] for rule in rules] == [
        "KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES",
        "ACCEPT",
    ]  # fmt: skip


def test_only_ours_is_touched_and_removed(node: Node) -> None:
    node.restore(FOREIGN)
    foreign = node.saved().splitlines()
    node.sync(*some())
    assert [line for line in foreign if line not in node.saved().splitlines()] == []
    node.sync(*some()[1:])
    assert [line for line in foreign if line not in node.saved().splitlines()] == []
    assert node.cleanup() == []
    left = [line for line in node.saved().splitlines() if base.KUBELET_FIREWALL not in line]
    assert left == foreign
    assert node.again().cleanup() == []
    assert node.sync(*some()).full
    in_kernel_jumps = parse_saved(node.saved()).table("nat")
    assert all(in_kernel_jumps.has_jump(jump) for jump in JUMPS if jump.table == "nat")


BAD = backed("bad", "172.30.0.777", ["10.2.0.4"])


@pytest.mark.parametrize("full", [False, True])
def test_a_failed_sync_changes_nothing(node: Node, full: bool) -> None:
    node.restore(FOREIGN)
    node.sync(*some())
    before = node.saved()
    with pytest.raises(ApplyError, match=r"172\.30\.0\.777") as raised:
        node.sync(*some()[1:], backed("gone", "172.30.0.8"), BAD, full=full)
    assert raised.value.rule.startswith("-A KUBE-")
    assert node.saved() == before
    # What was asked for last is what comes, by a full sync.
    assert node.sync(*some()[2:]).full
    assert "172.30.0.1/32" not in node.saved()


def test_a_failed_first_sync_changes_nothing(node: Node) -> None:
    node.restore(FOREIGN)
    before = node.saved()
    with pytest.raises(ApplyError):
        node.sync(*some(), BAD)
    assert node.saved() == before
    with pytest.raises(ApplyError):
        node.sync(*many(150), BAD)  # listed first on nf_tables, jumps being written before
    assert node.saved() == before


def test_many_services_in_an_empty_namespace(node: Node) -> None:
    ports = many(150)
    node.sync(*ports)
    in_kernel(node, ports)
    before = node.normal()
    node.again().sync(*ports)
    assert node.normal() == before
    node.sync(*ports[:-1])
    in_kernel(node, ports[:-1])
    assert node.cleanup() == []
    assert "KUBE-S" not in node.saved()


def test_a_chain_that_somebody_removed(node: Node) -> None:
    port = backed("plain", "172.30.0.1", ["10.2.0.1", "10.2.0.2"])
    node.sync(port)
    chains = parse_saved(node.saved()).table("nat").chains
    endpoint = base.endpoint_chain("ns/plain:p80", "tcp", "10.2.0.1:8080")
    balance = next(chain for chain in chains if chain.startswith(base.CLUSTER_PREFIX))
    node.iptables("-t", "nat", "-F", balance)
    node.iptables("-t", "nat", "-F", endpoint)
    node.iptables("-t", "nat", "-X", endpoint)
    other = backed("plain", "172.30.0.1", ["10.2.0.1", "10.2.0.2", "10.2.0.3"])
    with pytest.raises(ApplyError) as raised:
        node.sync(other)
    assert endpoint in raised.value.rule
    node.sync(other)
    in_kernel(node, [other])


@pytest.mark.parametrize(
    "flush",
    [
        (("nat", "-F"), ("nat", "-X")),
        (("nat", "-F"),),
        (("filter", "-F"),),
        (("mangle", "-X"),),
    ],
    ids=["nat", "nat-rules", "filter-rules", "mangle"],
)
def test_a_flush_is_noticed_and_healed(node: Node, flush: Sequence[tuple[str, str]]) -> None:
    node.sync(*some())
    before = node.normal()
    assert node.intact()
    for table, what in flush:
        node.iptables("-t", table, what)
    assert not node.intact()
    assert node.sync(*some(), full=True).full
    assert node.normal() == before
    assert node.intact()


def test_a_stale_chain_that_another_uses_stays(node: Node) -> None:
    node.sync(*some())
    endpoint = base.endpoint_chain("ns/plain:p80", "tcp", "10.2.0.1:8080")
    node.restore(f"*nat\n:OTHERS - [0:0]\n-A OTHERS -j {endpoint}\nCOMMIT\n")
    ports = some()[1:]
    with pytest.raises(ApplyError):  # nothing was read, and nothing is changed
        node.sync(*ports)
    assert node.sync(*ports).full
    assert endpoint in parse_saved(node.saved()).table("nat").chains
    assert [endpoint in line for line in node.cleanup()] == [True]


def test_packets_are_counted(node: Node) -> None:
    settings = replace(SETTINGS, accounting=True)
    node.sync(*some(), settings=settings)
    in_kernel(node, some(), settings)
    assert node.space.do(read_counters, COUNTERS) == dict.fromkeys(COUNTERS, 0)
    node.sync(*some(), settings=settings, full=True)


@pytest.mark.parametrize("node", ["nft"], indirect=True)
def test_a_table_with_rules_of_nft(node: Node) -> None:
    node.sync(*some())
    node.space.run("nft", "add", "chain", "ip", "nat", "others")
    node.space.run(
        "nft", "add rule ip nat others ip saddr 1.2.3.4 numgen random mod 2 vmap { 0: accept }"
    )
    again = node.again()
    for _ in range(2):
        assert again.sync(*many(150), full=True).full
    rules = node.space.run("nft", "list", "chain", "ip", "nat", "PREROUTING")
    assert rules.count("jump KUBE-SERVICES") == 1
    assert any("nft" in line for line in again.cleanup())
