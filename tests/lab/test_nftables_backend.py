"""The nftables backend with the kernel's own nf_tables, in namespaces of its own."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nftables_bed import Space, backed, listing, spaces, update

from isthmus.programs.node_proxy.kernel.backend import ApplyError, SyncReport
from isthmus.programs.node_proxy.kernel.nftables import NftablesBackend
from isthmus.programs.node_proxy.kernel.nftables_kernel import has_rules, has_table
from isthmus.programs.node_proxy.rules.detectors import BridgePorts, Interfaces, SourceRanges
from isthmus.programs.node_proxy.rules.model import BackedPort, IpFamily, PortProtocol, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings

pytestmark = pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed")

V4 = IpFamily.IPV4
BRIDGE_NF = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
SETTINGS = RuleSettings(family=V4, detector=SourceRanges(("10.0.0.0/8",)), node_ip="192.0.2.1")
FOREIGN = """
table ip others { chain kube-proxy { type filter hook input priority 0; accept; } ; }
table ip6 kube-proxy { chain services { accept; } ; }
table inet kube-proxy { set cluster-ips { type ipv4_addr; elements = { 1.2.3.4 }; } ; }
table bridge others { chain prerouting { accept; } ; }
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A backend in a namespace, with a clock moved by hand."""

    def __init__(self, space: Space, *, always_nft: bool = False, family: IpFamily = V4) -> None:
        self.space, self.clock = space, Clock()
        self.backend = NftablesBackend(family, always_nft=always_nft, clock=self.clock)
        space.do(self.backend.start)

    def sync(
        self, *ports: BackedPort, settings: RuleSettings = SETTINGS, full: bool = False
    ) -> SyncReport:
        given: Update = update(*ports, family=self.backend.family)
        return self.space.do(self.backend.sync, given, settings, full=full)

    @property
    def intact(self) -> bool:
        return self.space.do(self.backend.intact)


@pytest.fixture
def space() -> Iterator[Space]:
    with spaces("node") as (one,):
        yield one


def kinds() -> list[BackedPort]:
    """One port of every kind."""
    return [
        backed("plain", "172.30.0.1", ["10.1.0.1", "10.2.0.2"]),
        backed("node-port", "172.30.0.2", ["10.1.0.1"], node_port=30001),
        backed(
            "balanced", "172.30.0.3", ["10.2.0.2"], node_port=30002, external_local=True,
            load_balancer_ips=("1.1.1.1",), source_ranges=("192.0.2.0/24", "192.0.2.128/25"),
        ),
        backed("sticky", "172.30.0.4", ["10.1.0.1", "10.2.0.2"], affinity_s=600),
        backed("sticky-local", "172.30.0.5", ["10.1.0.1"], affinity_s=60, internal_local=True),
        backed("nothing", "172.30.0.6", node_port=30003, external_ips=("9.9.9.9",)),
        backed("datagrams", "172.30.0.7", ["10.2.0.2"], protocol=PortProtocol.UDP),
        backed("sctp", "172.30.0.8", ["10.2.0.2"], protocol=PortProtocol.SCTP),
    ]  # fmt: skip


def rebuilt(*ports: BackedPort, settings: RuleSettings = SETTINGS) -> object:
    """What a namespace has that was empty before."""
    with spaces("fresh") as (other,):
        Node(other).sync(*ports, settings=settings)
        return listing(other)


SETTINGS_KINDS = {
    "ranges": RuleSettings(family=V4, detector=SourceRanges(("10.1.0.0/16", "10.3.0.0/16"))),
    "interfaces": RuleSettings(family=V4, detector=Interfaces(prefixes=("veth",))),
    "bridge": RuleSettings(family=V4, detector=BridgePorts(("veth", "tap"))),
    "nothing local": RuleSettings(family=V4, node_port_addresses=("192.0.2.1",)),
    "all": replace(SETTINGS, masquerade_all=True, service_cidrs=("172.30.0.0/16",)),
}


@pytest.mark.parametrize("kind", SETTINGS_KINDS)
def test_the_kernel_takes_it_in_every_setting(space: Space, kind: str) -> None:
    node = Node(space)
    report = node.sync(*kinds(), settings=SETTINGS_KINDS[kind])
    assert report.full
    assert node.intact
    rules = dict(listing(space, "table", "ip", "kube-proxy")[1])
    assert report.rules == {"kube-proxy": sum(map(len, rules.values()))}


@pytest.mark.parametrize("always_nft", [False, True], ids=["netlink", "nft"])
def test_changes_come_to_the_same_as_the_whole(space: Space, always_nft: bool) -> None:
    node = Node(space, always_nft=always_nft)
    ports = kinds()
    node.sync(*ports)
    moved = backed("plain", "172.30.0.1", ["10.1.0.1", "10.2.0.3"])
    retimed = backed("sticky", "172.30.0.4", ["10.1.0.1", "10.2.0.2"], affinity_s=30)
    disputed = backed("another", "172.30.0.9", ["10.2.0.9"], external_ips=("9.9.9.9",))
    for now in (
        [moved, *ports[1:]],
        [moved, *ports[1:3], retimed, *ports[4:]],
        [moved, disputed, *ports[1:4]],
        [disputed],
        ports[::-1],
        [],
    ):
        assert not node.sync(*now).full
        # A moment later what was emptied goes too.
        node.clock.now += 2.0
        assert not node.sync(*now).full
        assert listing(space) == rebuilt(*now)


POOL = [
    *kinds(),
    backed("plain", "172.30.0.1", ["10.1.0.1", "10.2.0.3"], external_ips=("9.9.9.9",)),
    backed("node-port", "172.30.0.2", node_port=30001),
    backed("balanced", "172.30.0.3", ["10.1.0.1"], node_port=30003, load_balancer_ips=("1.1.1.1",)),
    backed("sticky", "172.30.0.4", ["10.2.0.2"], affinity_s=30, node_port=30004),
    backed("sticky-local", "172.30.0.5", ["10.1.0.1"], affinity_s=60),
]
VIEWS = st.lists(st.sampled_from(POOL), max_size=8)


@given(st.lists(VIEWS, min_size=2, max_size=5))
@settings(max_examples=10)
def test_any_changes_come_to_the_same_as_the_whole(sequence: list[list[BackedPort]]) -> None:
    with spaces("node") as (one,):
        node = Node(one)
        for now in sequence:
            node.sync(*now)
        node.clock.now += 2.0
        node.sync(*sequence[-1])
        assert listing(one) == rebuilt(*sequence[-1])


@pytest.mark.parametrize("family", ["ip", "ip6", "bridge"])
def test_a_look_tells_what_is_there(space: Space, family: str) -> None:
    assert not space.do(has_table, family, "one")
    assert not space.do(has_rules, family, "one", "rules")
    space.run("nft", f"add table {family} one; add chain {family} one rules")
    assert space.do(has_table, family, "one")
    assert not space.do(has_rules, family, "one", "rules")
    space.run("nft", f"add rule {family} one rules accept")
    assert space.do(has_rules, family, "one", "rules")
    assert not space.do(has_rules, family, "one", "another")


def test_a_chain_that_comes_back_is_not_deleted(space: Space) -> None:
    node = Node(space)
    one, two = kinds()[:2]
    node.sync(one, two)
    node.sync(one)
    node.sync(one, two)
    node.clock.now += 2.0
    node.sync(one, two)
    assert listing(space) == rebuilt(one, two)


def test_a_stale_chain_in_somebodys_use_does_not_stop_a_change(space: Space) -> None:
    node = Node(space)
    one, two = kinds()[:2]
    node.sync(one, two)
    node.sync(one)
    chains = space.run("nft", "list", "chains", "ip")
    (gone,) = {word for word in chains.split() if "node-port" in word and "service" in word}
    space.run("nft", "add", "rule", "ip", "kube-proxy", "services", "jump", gone)
    node.clock.now += 2.0
    moved = backed("plain", "172.30.0.1", ["10.2.0.7"])
    assert not node.sync(moved).full
    assert "10.2.0.7" in space.run("nft", "list", "table", "ip", "kube-proxy")


@pytest.mark.parametrize("always_nft", [False, True], ids=["netlink", "nft"])
def test_what_is_refused_changes_nothing_and_is_named(space: Space, always_nft: bool) -> None:
    node = Node(space, always_nft=always_nft)
    ports = kinds()
    node.sync(*ports)
    before = listing(space)
    bad = backed("bad", "172.30.0.300", ["10.1.0.1"])
    with pytest.raises(ApplyError) as raised:
        node.sync(*ports[1:], bad)
    assert "172.30.0.300" in raised.value.rule
    assert "172.30.0.300" in str(raised.value)
    assert listing(space) == before
    # The next is a full one, and knows what the kernel really has.
    assert node.sync(*ports[2:]).full
    node.clock.now += 2.0
    node.sync(*ports[2:])
    assert listing(space) == rebuilt(*ports[2:])


def test_a_refused_rule_is_named_in_a_first_sync(space: Space) -> None:
    node = Node(space)
    with pytest.raises(ApplyError, match=r"10\.1\.0\.400") as raised:
        node.sync(*kinds(), backed("bad", "172.30.0.30", ["10.1.0.400"]))
    assert raised.value.rule.startswith("add rule ip kube-proxy service-")
    assert space.run("nft", "list", "ruleset") == ""


def test_nothing_of_others_is_touched(space: Space) -> None:
    space.run("nft", "-f", "-", text=FOREIGN)
    before = listing(space)
    node = Node(space)
    bridge = RuleSettings(family=V4, detector=BridgePorts())
    node.sync(*kinds(), settings=bridge)
    node.sync(settings=bridge)
    node.sync(*kinds(), settings=bridge, full=True)
    node.sync(*kinds())
    assert listing(space) != before
    assert space.do(node.backend.cleanup) == []
    assert listing(space) == before


@pytest.mark.parametrize(
    "deed",
    [
        "delete table ip kube-proxy",
        "flush table ip kube-proxy",
        "flush ruleset",
        "delete table bridge isthmus-node-proxy-ip",
    ],
)
def test_what_somebody_removes_is_missed_and_comes_back(space: Space, deed: str) -> None:
    node = Node(space)
    settings = RuleSettings(family=V4, detector=BridgePorts())
    node.sync(*kinds(), settings=settings)
    before = listing(space)
    assert node.intact
    space.run("nft", deed)
    assert not node.intact
    node.sync(*kinds(), settings=settings, full=True)
    assert node.intact
    assert listing(space) == before


def test_a_change_to_a_table_that_is_gone_fails_and_the_next_sync_heals(space: Space) -> None:
    node = Node(space)
    ports = kinds()
    node.sync(*ports)
    space.run("nft", "flush", "ruleset")
    with pytest.raises(ApplyError):
        node.sync(*ports[1:])
    assert node.sync(*ports[1:]).full
    assert listing(space) == rebuilt(*ports[1:])


def test_cleanup_removes_what_any_run_left(space: Space) -> None:
    Node(space).sync(*kinds(), settings=RuleSettings(family=V4, detector=BridgePorts()))
    other = NftablesBackend(V4)
    assert space.do(other.cleanup) == []
    assert space.run("nft", "list", "ruleset") == ""
    assert space.do(other.cleanup) == []


def test_the_bridge_table_goes_with_the_detector(space: Space) -> None:
    node = Node(space)
    node.sync(settings=RuleSettings(family=V4, detector=BridgePorts()))
    assert "bridge" in space.run("nft", "list", "tables")
    node.sync()
    assert "bridge" not in space.run("nft", "list", "tables")


def test_both_families_live_side_by_side(space: Space) -> None:
    four = Node(space)
    six = Node(space, family=IpFamily.IPV6)
    settings = RuleSettings(family=IpFamily.IPV6, detector=BridgePorts())
    port = backed("plain", "fd00:30::1", ["fd00:1::2"], node_port=30001, affinity_s=60)
    four.sync(*kinds(), settings=RuleSettings(family=V4, detector=BridgePorts()))
    six.sync(port, settings=settings)
    six.sync(backed("plain", "fd00:30::1", ["fd00:1::3"], node_port=30001), settings=settings)
    assert four.intact
    assert six.intact
    assert space.do(four.backend.cleanup) == []
    assert six.intact
    assert space.do(six.backend.cleanup) == []
    assert space.run("nft", "list", "ruleset") == ""


def bind_client(space: Space, client: str) -> str:
    """Bind a client to an endpoint of the sticky Service; the set that has it."""
    found = space.run("nft", "list", "sets", "ip").split()
    name = next(word for word in found if "sticky/" in word and word.startswith("affinity-"))
    space.run("nft", "add", "element", "ip", "kube-proxy", name, "{", client, "}")
    return name


def bound(space: Space, name: str) -> str:
    return space.run("nft", "list", "set", "ip", "kube-proxy", name)


def test_clients_stay_with_their_endpoints_over_full_syncs_and_restarts(space: Space) -> None:
    ports = kinds()
    node = Node(space)
    node.sync(*ports)
    name = bind_client(space, "198.51.100.7")
    node.sync(*ports, full=True)
    assert "198.51.100.7" in bound(space, name)
    other = Node(space)  # as after a restart, or after kube-proxy
    other.sync(*ports[1:], settings=replace(SETTINGS, masquerade_bit=10))
    assert "198.51.100.7" in bound(space, name)
    # What was not wanted any more goes.
    other.clock.now += 2.0
    other.sync(*ports[1:], settings=replace(SETTINGS, masquerade_bit=10))
    space.run("nft", "delete", "element", "ip", "kube-proxy", name, "{", "198.51.100.7", "}")
    assert listing(space) == rebuilt(*ports[1:], settings=replace(SETTINGS, masquerade_bit=10))


def handles(space: Space) -> dict[str, int]:
    """The numbers of chains and maps; what is made anew gets another one."""
    said = space.run("nft", "--json", "--handle", "--terse", "list", "table", "ip", "kube-proxy")
    found = [each.get("chain") or each.get("map") for each in json.loads(said)["nftables"]]
    return {each["name"]: each["handle"] for each in found if each}


@pytest.mark.parametrize("ports", [kinds(), kinds()[:3]], ids=["every kind", "nothing sticky"])
@pytest.mark.parametrize("kind", SETTINGS_KINDS)
def test_a_restart_leaves_what_it_finds_hooked(
    space: Space, kind: str, ports: list[BackedPort]
) -> None:
    settings = SETTINGS_KINDS[kind]
    Node(space).sync(*ports, settings=settings)
    before, rules = handles(space), listing(space)
    other = Node(space)
    assert other.sync(*ports, settings=settings).full
    assert handles(space) == before
    assert listing(space) == rules
    # With other settings too, as far as they are about the same.
    assert other.sync(*ports).full
    now = handles(space)
    both = before.keys() & now.keys()
    assert {name: now[name] for name in both} == {name: before[name] for name in both}
    assert listing(space) == rebuilt(*ports)


@pytest.mark.parametrize(
    ("name", "deed"),
    [
        ("services", "chain ip kube-proxy services { type filter hook input priority 0; }"),
        ("nat-output", "chain ip kube-proxy nat-output { type nat hook output priority -99; }"),
        (
            "filter-input",
            "chain ip kube-proxy filter-input"
            " { type filter hook input priority 0; policy drop; }",
        ),
    ],
)  # fmt: skip
def test_a_chain_that_is_not_fit_is_made_anew_and_clients_stay(
    space: Space, name: str, deed: str
) -> None:
    node = Node(space)
    ports = kinds()
    node.sync(*ports)
    bound_in = bind_client(space, "198.51.100.7")
    space.run("nft", "flush", "table", "ip", "kube-proxy")
    space.run("nft", "delete", "chain", "ip", "kube-proxy", name)
    space.run("nft", f"add {deed}")
    node.sync(*ports, full=True)
    assert "198.51.100.7" in bound(space, bound_in)
    space.run("nft", "delete", "element", "ip", "kube-proxy", bound_in, "{", "198.51.100.7", "}")
    assert listing(space) == rebuilt(*ports)


@pytest.mark.parametrize(
    "deed",
    [
        "map ip kube-proxy service-ips { type ipv4_addr : verdict; }",
        "set ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service; }",
    ],
)
def test_a_table_that_cannot_be_renewed_is_made_anew(space: Space, deed: str) -> None:
    node = Node(space)
    ports = kinds()
    node.sync(*ports)
    bind_client(space, "198.51.100.7")
    space.run("nft", "flush", "table", "ip", "kube-proxy")
    space.run("nft", "delete", "map", "ip", "kube-proxy", "service-ips")
    space.run("nft", f"add {deed}")
    node.sync(*ports, full=True)
    assert listing(space) == rebuilt(*ports)


def serve(source: socket.socket) -> str:
    """Answer one datagram; where it came from."""
    with source:
        data, address = source.recvfrom(100)
        source.sendto(data, address)
        return str(address[0])


def datagram_server(address: str) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.settimeout(10.0)
    server.bind((address, 8080))
    return server


def ask(address: str) -> bytes:
    """Send a datagram to port 80, and take the answer to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10.0)
        client.connect((address, 80))
        client.send(b"hello")
        return client.recv(100)


def wire(node: Space, other: Space, link: str, network: str, *, bridge: str = "") -> None:
    """Join two namespaces; the node is .1 there and the way to everywhere."""
    node.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", other.name)
    holder = link
    if bridge:
        node.run("ip", "link", "add", bridge, "type", "bridge")
        node.run("ip", "link", "set", link, "master", bridge)
        node.run("ip", "link", "set", bridge, "up")
        holder = bridge
    node.run("ip", "address", "add", f"{network}.1/24", "dev", holder)
    node.run("ip", "link", "set", link, "up")
    other.run("ip", "address", "add", f"{network}.2/24", "dev", "eth0")
    other.run("ip", "link", "set", "eth0", "up")
    other.run("ip", "route", "add", "default", "via", f"{network}.1")


@pytest.mark.parametrize(
    ("detector", "seen"),
    [
        (BridgePorts(), "10.1.0.2"),
        (BridgePorts(("tap", "veth")), "10.1.0.2"),
        (BridgePorts(("tap",)), "10.9.0.1"),
    ],
    ids=["any port", "by prefix", "by another prefix"],
)
@pytest.mark.parametrize("bridge_nf", ["0", "1"])
def test_what_a_bridge_port_brings_is_local(
    detector: BridgePorts, seen: str, bridge_nf: str
) -> None:
    with spaces("node", "pod", "client", "server") as (node_space, pod, client, server):
        wire(node_space, pod, "veth-pod", "10.1.0", bridge="pods")
        wire(node_space, client, "veth-client", "10.8.0")
        wire(node_space, server, "veth-server", "10.9.0")
        node_space.write("/proc/sys/net/ipv4/ip_forward", "1")
        if node_space.do(BRIDGE_NF.exists):  # what iptables' way of telling needs
            node_space.write(str(BRIDGE_NF), bridge_nf)
        service = backed("echo", "172.30.0.1", ["10.9.0.2"], protocol=PortProtocol.UDP)
        Node(node_space).sync(service, settings=RuleSettings(family=V4, detector=detector))

        def source_of(asking: Space) -> str:
            waiting = server.do(datagram_server, "10.9.0.2")
            answered = server.begin(serve, waiting)
            assert asking.do(ask, "172.30.0.1") == b"hello"
            return answered()

        assert source_of(pod) == seen
        assert source_of(client) == "10.9.0.1"  # from outside: masqueraded
