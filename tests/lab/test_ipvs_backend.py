"""ipvs mode in a namespace: real ipsets, iptables rules and addresses.

The table of virtual servers is one in memory, since most kernels here have no IPVS; where there is
one, the last test uses it. Messages to it are tested in test_ipvs_netlink.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyroute2 import netns

from isthmus.dial.rules_service_names import ServiceName
from isthmus.errors import ConfigError
from isthmus.lab.namespaces import in_namespace, inside, remove
from isthmus.programs.node_proxy.kernel.backend import ApplyError, SyncReport
from isthmus.programs.node_proxy.kernel.host import Sysctls
from isthmus.programs.node_proxy.kernel.ipvs import IpvsBackend
from isthmus.programs.node_proxy.kernel.ipvs_netlink import IpvsTable
from isthmus.programs.node_proxy.rules.detectors import LocalMatch
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions, sysctls
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddDestination,
    AddServer,
    ChangeServer,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    KernelServer,
    RemoveDestination,
    RemoveServer,
    ServerKey,
    VirtualServer,
    WeighDestination,
)
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
    Update,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

NO_IPVS = "the kernel has no IPVS (the module ip_vs)"
NODE = "ipvs-test"
V4, V6 = IpFamily.IPV4, IpFamily.IPV6
CLUSTER = {V4: "172.30.0.5", V6: "fd30::5"}
PODS = {V4: ("10.0.1.1", "10.0.2.1"), V6: ("fd10::1", "fd10::2")}
LOAD_BALANCER = {V4: "5.6.7.8", V6: "fd56::8"}
NODE_IP = {V4: "10.180.0.1", V6: "fd18::1"}
FAMILIES = pytest.mark.parametrize("family", [V4, V6], ids=["v4", "v6"])


class MemoryTable:
    """A table of virtual servers that refuses what the kernel's refuses."""

    def __init__(self) -> None:
        self.held: dict[ServerKey, KernelServer] = {}
        #: How many commands are carried out before one is refused; None for all.
        self.until_refused: int | None = None

    def __enter__(self) -> MemoryTable:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def servers(self, family: IpFamily) -> list[KernelServer]:
        """All of a family."""
        return [each for key, each in self.held.items() if (":" in key.address) == (family is V6)]

    def destinations(self, key: ServerKey) -> Mapping[IpvsDestination, DestinationState]:
        """Those of one."""
        return self.held[key].destinations

    def set_timeouts(self, *, tcp_s: int, tcp_fin_s: int, udp_s: int) -> None:
        """Nothing to time here."""

    def apply(self, command: IpvsCommand) -> None:
        """Do it, or raise."""
        if self.until_refused is not None:
            self.until_refused -= 1
            if self.until_refused < 0:
                self.until_refused = None
                raise ApplyError("no memory")
        match command:
            case AddServer(server=server):
                assert server.key not in self.held
                if server.scheduler not in ("rr", "wlc"):
                    raise ApplyError("no such file")
                self.held[server.key] = KernelServer(server=server)
            case ChangeServer(server=server):
                has = self.held[server.key].destinations
                self.held[server.key] = KernelServer(server=server, destinations=has)
            case RemoveServer(key=key):
                del self.held[key]
            case AddDestination(key=key, destination=destination):
                assert destination not in self.held[key].destinations
                self.weigh(key, destination, 1)
            case WeighDestination(key=key, destination=destination, weight=weight):
                old = self.held[key].destinations[destination]
                self.weigh(key, destination, weight, old.connections)
            case RemoveDestination(key=key, destination=destination):
                has = dict(self.held[key].destinations)
                del has[destination]
                self.held[key] = KernelServer(server=self.held[key].server, destinations=has)

    def weigh(
        self, key: ServerKey, destination: IpvsDestination, weight: int, connections: int = 0
    ) -> None:
        """Set what a destination is."""
        state = DestinationState(weight=weight, connections=connections)
        has = {**self.held[key].destinations, destination: state}
        self.held[key] = KernelServer(server=self.held[key].server, destinations=has)


@dataclass(frozen=True)
class Cidrs:
    """A detector of source networks."""

    cidrs: tuple[str, ...]
    bridge_ports: None = None

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """One for each."""
        return tuple(
            LocalMatch(iptables=("-s", cidr), iptables_not=("!", "-s", cidr), nft="", nft_not="")
            for cidr in self.cidrs
        )


class Bed:
    """A namespace with an address, and somebody else's rules, sets and addresses."""

    def __init__(self, name: str, proc_sys: Path) -> None:
        self.name = name
        self.table = MemoryTable()
        self.proc_sys = proc_sys
        for path, _ in sysctls(IpvsOptions(), (6, 1)):
            (proc_sys / path).parent.mkdir(parents=True, exist_ok=True)
            (proc_sys / path).write_text("0\n")
        self.run("ip", "link", "set", "lo", "up")
        for family in IpFamily:
            self.run("ip", "addr", "add", NODE_IP[family], "dev", "lo", "nodad")
            iptables = "iptables" if family is V4 else "ip6tables"
            self.run(iptables, "-N", "THEIRS")
            self.run(iptables, "-A", "INPUT", "-j", "THEIRS")
            self.run(iptables, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "RETURN")
        self.run("ipset", "create", "THEIRS", "hash:ip")
        self.run("ipset", "add", "THEIRS", "1.1.1.1")

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            in_namespace(self.name, argv), text=True, capture_output=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def backend(self, family: IpFamily) -> IpvsBackend:
        return IpvsBackend(family, table=self.table, kernel=Sysctls(self.proc_sys))

    def start(self, backend: IpvsBackend) -> None:
        inside(self.name, backend.start)

    def sync(
        self, backend: IpvsBackend, view: ServiceView, settings: RuleSettings, *, full: bool = False
    ) -> SyncReport:
        update = Update(view=view)
        return inside(self.name, lambda: backend.sync(update, settings, full=full))

    def rules(self, family: IpFamily, table: str) -> list[str]:
        """What iptables-save says of chains of ours, in order."""
        text = self.run("iptables-save" if family is V4 else "ip6tables-save", "-t", table)
        return [each for each in text.splitlines() if each.startswith("-A") and "KUBE" in each]

    def entries(self) -> dict[str, set[str]]:
        """The entries of every set that has any."""
        found: dict[str, set[str]] = {}
        for line in self.run("ipset", "save").splitlines():
            verb, name, entry, *_ = line.split()
            if verb == "add":
                found.setdefault(name, set()).add(entry)
        return found

    def addresses(self) -> set[str]:
        """Every address, with its interface."""
        lines = self.run("ip", "-o", "addr", "show").splitlines()
        return {f"{words[3]}@{words[1]}" for words in map(str.split, lines)}

    def picture(self) -> tuple[object, ...]:
        """All that could be left behind; counters and comments apart."""
        saved = [
            re.sub(r"\[\d+:\d+\]|^#.*$", "", self.run(each), flags=re.MULTILINE)
            for each in ("iptables-save", "ip6tables-save")
        ]
        sets = sorted(self.run("ipset", "list", "-n").split())
        return (saved, sets, self.entries(), self.addresses(), dict(self.table.held))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    name = f"{NODE}-{os.getpid()}"
    netns.create(name)
    try:
        yield Bed(name, tmp_path)
    finally:
        remove(name)


def settings(family: IpFamily, *cidrs: str) -> RuleSettings:
    local = cidrs or (("10.0.0.0/16",) if family is V4 else ("fd10::/64",))
    return RuleSettings(family=family, detector=Cidrs(local), node_ip=NODE_IP[family])


def view(family: IpFamily, *pods: int, **more: object) -> ServiceView:
    key = PortKey(ServiceName("ns", "svc"), "p", PortProtocol.TCP)
    port = ServicePort(key=key, cluster_ip=CLUSTER[family], port=80, **more)  # type: ignore[arg-type]
    found = tuple(Endpoint(ip=PODS[family][n], port=8080, local=n == 0) for n in pods)
    backends = ChosenEndpoints(
        cluster=found, local=tuple(each for each in found if each.local), reachable=found,
        exist=bool(found), serving=found,
    )  # fmt: skip
    return ServiceView(family=family, ports={key: BackedPort(port=port, backends=backends)})


# What iptables 1.8 shows of kube-proxy's rules of ipvs mode.
NAT = """
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set \
KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s 10.0.0.0/16 -m comment --comment "Kubernetes service cluster ip + port for \
masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving \
hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j \
MASQUERADE --random-fully
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade \
purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
"""


def by_chain(lines: list[str]) -> dict[str, list[str]]:
    """Rules by their chain, in order: how a program orders chains means nothing."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.split()[1], []).append(line)
    return found


def test_rules_sets_and_addresses(bed: Bed) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    service = view(V4, 0, 1, node_port=30080, load_balancer_ips=(LOAD_BALANCER[V4],))
    report = bed.sync(backend, service, settings(V4))
    assert (report.full, report.rules["nat"]) == (True, 13)
    assert by_chain(bed.rules(V4, "nat")) == by_chain(NAT.strip().splitlines())
    assert bed.entries() == {
        "THEIRS": {"1.1.1.1"},
        "KUBE-LOOP-BACK": {"10.0.1.1,tcp:8080,10.0.1.1"},
        "KUBE-CLUSTER-IP": {"172.30.0.5,tcp:80"},
        "KUBE-LOAD-BALANCER": {"5.6.7.8,tcp:80"},
        "KUBE-NODE-PORT-TCP": {"30080"},
        "KUBE-IPVS-IPS": {"172.30.0.5", "5.6.7.8"},
    }
    filtered = by_chain(bed.rules(V4, "filter"))
    assert filtered["INPUT"] == [
        '-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER',
        '-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL',
        '-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT',
    ]
    assert filtered["KUBE-IPVS-FILTER"][-1].endswith(
        "KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable"
    )
    # The sets of both families side by side, and addresses on lo where nothing else can be made.
    six = bed.backend(V6)
    bed.start(six)
    bed.sync(six, view(V6, 0), settings(V6))
    assert bed.entries()["KUBE-6-CLUSTER-IP"] == {"fd30::5,tcp:80"}
    ours = {each.partition("@")[0] for each in bed.addresses()}
    assert ours >= {"172.30.0.5/32", "5.6.7.8/32", "fd30::5/128"}
    assert [str(key) for key in bed.table.held] == [
        "172.30.0.5:80/tcp",
        "5.6.7.8:80/tcp",
        "10.180.0.1:30080/tcp",
        "[fd30::5]:80/tcp",
    ]


@FAMILIES
def test_changes_and_cleanup(bed: Bed, family: IpFamily) -> None:
    theirs = VirtualServer(
        key=ServerKey("9.9.9.9" if family is V4 else "fd99::9", 80, PortProtocol.TCP),
        scheduler="wlc",
    )
    bed.table.apply(AddServer(server=theirs))
    before = bed.picture()
    backend = bed.backend(family)
    bed.start(backend)
    bed.sync(backend, view(family, 0, 1, load_balancer_ips=(LOAD_BALANCER[family],)),
             settings(family))  # fmt: skip
    report = bed.sync(backend, view(family, 1), settings(family))
    assert (report.full, report.written["nat"] > 0) == (False, True)
    prefix = "KUBE-" if family is V4 else "KUBE-6-"
    assert {name for name in bed.entries() if name != "THEIRS"} == {
        f"{prefix}CLUSTER-IP",
        f"{prefix}IPVS-IPS",
    }
    again = bed.sync(backend, view(family, 1), settings(family))
    assert again.written == {"nat": 0, "filter": 0}
    assert not [each for each in bed.addresses() if each.startswith(LOAD_BALANCER[family])]
    assert len(bed.table.held) == 2
    assert inside(bed.name, bed.backend(family).cleanup) == []
    assert bed.picture() == before
    # There is nothing left, and nothing is wrong with that.
    assert inside(bed.name, bed.backend(family).cleanup) == []


@FAMILIES
def test_a_busy_destination_waits(bed: Bed, family: IpFamily) -> None:
    backend = bed.backend(family)
    bed.start(backend)
    bed.sync(backend, view(family, 0, 1), settings(family))
    (key,) = bed.table.held
    gone = IpvsDestination(PODS[family][1], 8080)
    bed.table.weigh(key, gone, 1, connections=1)
    bed.sync(backend, view(family, 0), settings(family))
    assert bed.table.destinations(key)[gone] == DestinationState(weight=0, connections=1)
    assert inside(bed.name, backend.intact)
    assert gone in bed.table.destinations(key)
    bed.table.weigh(key, gone, 0)
    assert inside(bed.name, backend.intact)
    assert gone not in bed.table.destinations(key)


def test_a_foreign_flush_is_seen_and_healed(bed: Bed) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    service = view(V4, 0)
    bed.sync(backend, service, settings(V4))
    whole = bed.picture()
    assert inside(bed.name, backend.intact)
    for spoil in (
        ["iptables", "-F"],
        ["ipset", "del", "KUBE-CLUSTER-IP", "172.30.0.5,tcp:80"],
        ["ip", "addr", "del", "172.30.0.5/32", "dev", bed_device(bed)],
    ):
        bed.run(*spoil)
        assert bed.picture() != whole
        if spoil[0] == "iptables":
            assert not inside(bed.name, backend.intact)
            bed.run("iptables", "-A", "INPUT", "-j", "THEIRS")
        bed.sync(backend, service, settings(V4), full=True)
        assert inside(bed.name, backend.intact)
        assert by_chain(bed.rules(V4, "nat")) and bed.picture()[2:] == whole[2:]


def bed_device(bed: Bed) -> str:
    (found,) = [each for each in bed.addresses() if each.startswith("172.30.0.5/")]
    return found.partition("@")[2]


def test_a_rule_that_is_refused_changes_nothing(bed: Bed) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    bed.sync(backend, view(V4, 0), settings(V4))
    before = bed.picture()
    wrong = settings(V4, "10.0.0.0/not-a-mask")
    more = view(V4, 0, 1, load_balancer_ips=("5.6.7.8",))
    with pytest.raises(ApplyError, match="not-a-mask") as caught:
        bed.sync(backend, more, wrong)
    assert caught.value.rule.startswith("-A KUBE-SERVICES")
    assert bed.picture() == before
    assert bed.sync(backend, more, settings(V4)).full


@FAMILIES
def test_a_sync_that_fails_anywhere_changes_nothing(bed: Bed, family: IpFamily) -> None:
    more = {"load_balancer_ips": (LOAD_BALANCER[family],), "node_port": 30080}
    there, wanted = view(family, 0, 1, **more), view(family, 1, affinity_s=60)
    for full in (False, True):
        backend = bed.backend(family)
        bed.start(backend)
        bed.sync(backend, there, settings(family))
        before = bed.picture()
        refused = 0
        while True:
            bed.table.until_refused = refused
            try:
                bed.sync(backend, wanted, settings(family), full=full)
            except ApplyError:
                assert bed.picture() == before
                refused += 1
                # What it knew of the kernel is forgotten: look, as the next sync would.
                bed.sync(backend, there, settings(family))
                assert bed.picture() == before
                continue
            break
        bed.table.until_refused = None
        assert refused == 4  # the server is changed, one destination and two servers go
        assert set(bed.table.held) == {ServerKey(CLUSTER[family], 80, PortProtocol.TCP)}


def test_addresses_that_are_refused_take_everything_back(bed: Bed) -> None:
    backend = bed.backend(V6)
    bed.start(backend)
    bed.sync(backend, view(V6, 0), settings(V6))
    before = bed.picture()
    # A multicast address is nobody's own; the one before it is added, and goes again.
    wrong = view(V6, 0, 1, load_balancer_ips=(LOAD_BALANCER[V6],), external_ips=("ff02::1",))
    with pytest.raises(ApplyError, match="address"):
        bed.sync(backend, wrong, settings(V6))
    assert bed.picture() == before


def test_a_new_address_of_the_node_takes_node_ports(bed: Bed) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    service = view(V4, 0, node_port=30080)
    bed.sync(backend, service, settings(V4))
    assert inside(bed.name, backend.intact)
    bed.run("ip", "addr", "add", "10.180.0.2/32", "dev", "lo")
    assert not inside(bed.name, backend.intact)
    bed.sync(backend, service, settings(V4), full=True)
    assert ServerKey("10.180.0.2", 30080, PortProtocol.TCP) in bed.table.held
    assert inside(bed.name, backend.intact)


def test_where_addresses_are_is_said(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    bed.sync(backend, view(V4, 0), settings(V4))
    said = [each for each in caplog.records if "to lo instead" in each.message]
    assert bed_device(bed) == ("lo" if said else "kube-ipvs0")
    if said:
        (line,) = bed.run("ip", "-o", "addr", "show", "to", "172.30.0.5").splitlines()
        assert "metric 20250100 scope host noprefixroute lo:kube-ipvs" in line


def test_several_matches(bed: Bed) -> None:
    backend = bed.backend(V4)
    bed.start(backend)
    bed.sync(backend, view(V4, 0), settings(V4, "10.0.0.0/16", "10.1.0.0/16"))
    assert by_chain(bed.rules(V4, "nat"))["KUBE-MASQ-IF-NOT-LOCAL"] == [
        "-A KUBE-MASQ-IF-NOT-LOCAL -s 10.0.0.0/16 -j RETURN",
        "-A KUBE-MASQ-IF-NOT-LOCAL -s 10.1.0.0/16 -j RETURN",
        "-A KUBE-MASQ-IF-NOT-LOCAL -j KUBE-MARK-MASQ",
    ]
    before = bed.picture()
    assert inside(bed.name, backend.cleanup) == []
    assert "KUBE" not in str(bed.picture()[:3])
    assert before != bed.picture()


def test_what_is_missing_is_said(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = IpvsBackend(V4, table=bed.table, kernel=Sysctls(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"cannot set net\.ipv4\.vs\.conntrack to 1"):
        bed.start(without)
    with pytest.raises(ConfigError, match=r"no scheduler 'nonsense' .module ip_vs_nonsense"):
        bed.start(IpvsBackend(V4, table=bed.table, options=IpvsOptions(scheduler="nonsense")))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match=r"cannot run ipset: .*: install it, or use"):
            bed.start(bed.backend(V4))
        assert inside(bed.name, bed.backend(V4).cleanup) == []
    if kernel_has_ipvs(bed):
        return
    with pytest.raises(ConfigError) as caught:
        bed.start(IpvsBackend(V4, kernel=Sysctls(tmp_path)))
    assert str(caught.value) == (
        "--proxy-mode=ipvs: the kernel has no IPVS (module ip_vs is missing or not"
        " permitted): load it, or use --proxy-mode=nftables or --proxy-mode=iptables"
    )


def test_virtual_servers_of_the_kernel(bed: Bed) -> None:
    if not kernel_has_ipvs(bed):
        pytest.skip(NO_IPVS)
    backend = IpvsBackend(V4)
    bed.start(backend)
    bed.sync(backend, view(V4, 0, 1, affinity_s=60), settings(V4))
    (served,) = kernel_servers(bed)
    assert (str(served.server.key), served.server.timeout_s) == ("172.30.0.5:80/tcp", 60)
    assert set(served.destinations) == {IpvsDestination(ip, 8080) for ip in PODS[V4]}
    assert not bed.sync(backend, view(V4, 1), settings(V4)).full
    assert bed.sync(backend, view(V4, 1), replace(settings(V4), masquerade_all=True)).full
    (served,) = kernel_servers(bed)
    assert set(served.destinations) == {IpvsDestination(PODS[V4][1], 8080)}
    assert inside(bed.name, backend.cleanup) == []
    assert kernel_servers(bed) == []


def kernel_servers(bed: Bed) -> list[KernelServer]:
    def look() -> list[KernelServer]:
        with IpvsTable() as table:
            return table.servers(V4)

    return inside(bed.name, look)


def kernel_has_ipvs(bed: Bed) -> bool:
    try:
        kernel_servers(bed)
    except ApplyError:
        return False
    return True
