from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from pyroute2 import IPRoute, netns

from isthmus.errors import ConfigError
from isthmus.lab import fabric, relay
from isthmus.lab.namespaces import in_namespace, inside, remove
from isthmus.lab.plan import PROGRAMS, Names
from isthmus.lab.topology import (
    Allow,
    Attachment,
    LabHost,
    LabNetwork,
    LabRoute,
    LabService,
    LineShape,
    Topology,
    Wall,
)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

ETC = Path("/etc/netns")
IPV6_RECVERR = 25  # linux/in6.h
LONG_S = 10.0
SHORT_S = 0.3  # for a silence that has to be heard
FIREWALLS = [name for name, tool in PROGRAMS.items() if shutil.which(tool)]
firewalls = pytest.mark.parametrize("firewall", FIREWALLS)


def network(name: str, *cidrs: str, gateway: bool = True) -> LabNetwork:
    return LabNetwork(name=name, cidrs=tuple(map(ip_network, cidrs)), gateway=gateway)


def at(name: str, *addresses: str, shape: LineShape | None = None) -> Attachment:
    return Attachment(network=name, addresses=tuple(map(ip_address, addresses)), shape=shape)


def service(address: str, port: int, to: str, to_port: int) -> LabService:
    return LabService(address=ip_address(address), port=port, to_host=to, to_port=to_port)


CLUSTER = Topology(
    name="cluster",
    title="",
    networks=(
        network("control", "10.210.0.0/24", "fd10::/64"),
        network("nodes", "10.220.0.0/24", "fd20::/64"),
        network("pods", "10.221.0.0/24", "fd21::/64"),
    ),
    hosts=(
        LabHost(name="master", attachments=(at("control", "10.210.0.10", "fd10::10"),)),
        LabHost(
            name="node",
            attachments=(at("nodes", "10.220.0.10", "fd20::10"),),
            services=(
                service("10.96.0.10", 80, "pod", 8080),
                service("fd96::10", 80, "pod", 8080),
                service("10.96.0.11", 80, "node", 8080),
            ),
        ),
        LabHost(name="pod", attachments=(at("pods", "10.221.0.10", "fd21::10"),)),
        LabHost(name="peer", attachments=(at("pods", "10.221.0.11", "fd21::11"),)),
    ),
    allows=(
        Allow(source="nodes", target="master", ports=(8091, 8092)),
        Allow(source="nodes", target="pods"),
    ),
    names=(("web.svc", ip_address("10.96.0.10")),),
)


def client(address: str) -> socket.socket:
    """A socket that is told of ICMP errors at once.

    Without a wire in between the answer is there before connect() lets go of the socket, and such
    errors are not believed but for the second SYN, a second later. IPv4 wakes the poll all the same
    (tcp_v4_err), IPv6 if it was asked to.
    """
    if ":" not in address:
        return socket.socket()
    sock = socket.socket(socket.AF_INET6)
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
    return sock


class Fabric:
    """A topology that is up, and what can be tried in it."""

    def __init__(self, topology: Topology, firewall: str) -> None:
        self.topology = topology
        self.firewall = firewall
        self.names = Names(secrets.token_hex(3))
        self.spaces = [self.names.wall, *(self.names.host(host.name) for host in topology.hosts)]
        self._open = contextlib.ExitStack()

    def make(self) -> list[str]:
        done = []
        for what, deed in fabric.build_steps(self.topology, self.names, firewall=self.firewall):
            deed()
            done.append(what)
        return done

    def remove(self) -> None:
        self._open.close()
        for name in self.spaces:
            remove(name)
            shutil.rmtree(ETC / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            ETC.rmdir()

    def listen(self, host: str, port: int) -> socket.socket:
        """Listen on all addresses of a host; closed with the fabric."""

        def opened() -> socket.socket:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)

        listener = inside(self.names.host(host), opened)
        listener.settimeout(LONG_S)
        return self._open.enter_context(listener)

    def reach(self, host: str, address: str, port: int, timeout_s: float = LONG_S) -> str:
        """Connect, and say what came of it: "open", "timeout", or the name of the error."""

        def attempt() -> str:
            with client(address) as sock:
                sock.settimeout(timeout_s)
                try:
                    sock.connect((address, port))
                except TimeoutError:
                    return "timeout"
                except OSError as exc:
                    return errno.errorcode[exc.errno or 0]
            return "open"

        return inside(self.names.host(host), attempt)

    def run(self, host: str, *argv: str) -> str:
        command = in_namespace(self.names.host(host), argv)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


Make = Callable[[Topology, str], Fabric]


@pytest.fixture
def make() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def made(topology: Topology, firewall: str) -> Fabric:
            lab = Fabric(topology, firewall)
            stack.callback(lab.remove)
            lab.make()
            return lab

        yield made


def source_of(listener: socket.socket) -> str:
    """The address that a listener sees of the next who connected."""
    connection, address = listener.accept()
    connection.close()
    return str(address[0]).removeprefix("::ffff:")


@firewalls
def test_the_wall_lets_through_what_is_allowed_and_rejects_the_rest(
    make: Make, firewall: str
) -> None:
    lab = make(CLUSTER, firewall)
    for host in ("master", "node", "pod"):
        for port in (8091, 8080):
            lab.listen(host, port)
    open_ways = [
        ("node", "10.210.0.10", 8091),
        ("node", "fd10::10", 8091),
        ("node", "10.221.0.10", 8080),
        ("node", "fd21::10", 8080),
        ("peer", "10.221.0.10", 8080),  # on the same network: not the wall's business
        ("peer", "fd21::10", 8080),
    ]
    for way in open_ways:
        assert lab.reach(*way) == "open", way
    # Nothing listens there, and the way is open.
    assert lab.reach("node", "10.210.0.10", 8092) == "ECONNREFUSED"
    assert lab.reach("node", "fd10::10", 8092) == "ECONNREFUSED"
    closed_ways = [
        ("node", "10.210.0.10", "fd10::10", 8080),
        ("pod", "10.210.0.10", "fd10::10", 8091),
        ("pod", "10.220.0.10", "fd20::10", 8080),
        ("master", "10.221.0.10", "fd21::10", 8080),
        ("master", "10.220.0.10", "fd20::10", 8080),
        ("master", "10.210.0.1", "fd10::1", 8080),  # the wall itself
    ]
    for source, v4, v6, port in closed_ways:
        # Linux knows the prohibited by different names (icmp_err_convert, icmpv6_err_convert).
        assert lab.reach(source, v4, port) == "EHOSTUNREACH", (source, v4)
        assert lab.reach(source, v6, port) == "EACCES", (source, v6)
    # No network has these: the cluster's services, seen from the other side.
    assert lab.reach("master", "10.96.0.10", 80) in ("EHOSTUNREACH", "ENETUNREACH")
    assert lab.reach("master", "fd96::10", 80) in ("EACCES", "ENETUNREACH")


@firewalls
@pytest.mark.parametrize("address", ["10.221.0.10", "10.96.0.10", "fd21::10"])
def test_every_one_of_many_connections_is_rejected(make: Make, firewall: str, address: str) -> None:
    lab = make(CLUSTER, firewall)
    many = 40  # the kernel's own limit would answer six at once, then one a second

    def attempts() -> int:
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for _ in range(many):
                one = stack.enter_context(client(address))
                one.setblocking(False)
                assert one.connect_ex((address, 8080)) == errno.EINPROGRESS
                selector.register(one, selectors.EVENT_WRITE)
            while selector.get_map() and (ready := selector.select(LONG_S)):
                for key, _ in ready:
                    selector.unregister(key.fileobj)
            return many - len(selector.get_map())

    # Who is not answered sends again: one segment for each says that all were.
    assert inside(lab.names.host("master"), partial(segments_of, attempts)) == (many, many)


def segments_of(attempts: Callable[[], int]) -> tuple[int, int]:
    """What attempts() counts, and how many TCP segments were sent meanwhile in this namespace."""

    def sent() -> int:
        text = Path("/proc/thread-self/net/snmp").read_text()
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        counts = dict(zip(names, values, strict=True))
        return int(counts["OutSegs"]) + int(counts["RetransSegs"])

    before = sent()
    return attempts(), sent() - before


@firewalls
def test_a_wall_that_drops_is_silent(make: Make, firewall: str) -> None:
    lab = make(replace(CLUSTER, wall=Wall.DROP), firewall)
    lab.listen("master", 8091)
    lab.listen("pod", 8080)
    for address in ("10.221.0.10", "fd21::10", "10.96.0.10", "fd96::10", "10.210.0.1", "fd10::1"):
        assert lab.reach("master", address, 8080, SHORT_S) == "timeout", address
    assert lab.reach("node", "10.210.0.10", 8091) == "open"
    assert lab.reach("node", "fd10::10", 8091) == "open"


@firewalls
def test_services_lead_to_their_host(make: Make, firewall: str) -> None:
    lab = make(CLUSTER, firewall)
    pod, node = lab.listen("pod", 8080), lab.listen("node", 8080)
    assert lab.reach("node", "10.96.0.10", 80) == "open"
    assert source_of(pod) == "10.220.0.10"
    assert lab.reach("node", "fd96::10", 80) == "open"
    assert source_of(pod) == "fd20::10"
    assert lab.reach("node", "10.96.0.11", 80) == "open"
    assert source_of(node) == "10.220.0.10"
    assert lab.reach("node", "10.96.0.10", 81) == "EHOSTUNREACH"


@firewalls
def test_routes_go_by_hosts_and_services_are_translated_on_the_way(
    make: Make, firewall: str
) -> None:
    to_node = LabRoute(to=ip_network("10.8.0.0/24"), via="node")
    to_node6 = LabRoute(to=ip_network("fd08::/64"), via="node")
    topology = Topology(
        name="behind",
        title="",
        networks=(
            network("nodes", "10.7.0.0/24", "fd07::/64"),
            network("pods", "10.8.0.0/24", "fd08::/64", gateway=False),
        ),
        hosts=(
            LabHost(
                name="node",
                attachments=(
                    at("nodes", "10.7.0.10", "fd07::10"),
                    at("pods", "10.8.0.1", "fd08::1"),
                ),
                services=(service("10.96.0.1", 80, "pod", 8080),),
            ),
            LabHost(
                name="other",
                attachments=(at("nodes", "10.7.0.11", "fd07::11"),),
                routes=(to_node, to_node6, LabRoute(to=ip_network("10.96.0.0/16"), via="node")),
            ),
            LabHost(
                name="pod",
                attachments=(at("pods", "10.8.0.10", "fd08::10"),),
                also=(ip_address("10.8.0.99"), ip_address("fd08::99")),
                routes=(
                    LabRoute(to=ip_network("10.7.0.0/24"), via="node"),
                    LabRoute(to=ip_network("fd07::/64"), via="node"),
                ),
                services=(service("10.96.0.2", 80, "node", 9090),),
            ),
            # It knows no way back to the others: only a masqueraded connection is answered.
            LabHost(name="shy", attachments=(at("pods", "10.8.0.11", "fd08::11"),)),
        ),
    )
    node, other, pod, shy = topology.hosts
    node = replace(node, services=(*node.services, service("10.96.0.3", 80, "shy", 8080)))
    lab = make(replace(topology, hosts=(node, other, pod, shy)), firewall)
    listeners = {name: lab.listen(name, 8080) for name in ("pod", "shy", "node")}
    lab.listen("node", 9090)

    assert lab.reach("other", "10.8.0.10", 8080) == "open"
    assert source_of(listeners["pod"]) == "10.7.0.11"
    assert lab.reach("other", "fd08::10", 8080) == "open"
    assert source_of(listeners["pod"]) == "fd07::11"
    assert lab.reach("other", "10.96.0.1", 80) == "open"
    assert source_of(listeners["pod"]) == "10.8.0.1"
    assert lab.reach("other", "10.96.0.3", 80) == "open"
    assert source_of(listeners["shy"]) == "10.8.0.1"
    assert lab.reach("other", "10.8.0.11", 8080, SHORT_S) == "timeout"
    # The node's own goes out by the other network than its default route's.
    assert lab.reach("node", "10.96.0.1", 80) == "open"
    assert source_of(listeners["pod"]) == "10.8.0.1"
    # There is no gateway, and the service is found all the same.
    assert lab.reach("pod", "10.96.0.2", 80) == "open"
    assert lab.reach("pod", "10.9.9.9", 80) == "ENETUNREACH"
    # Addresses of its loopback are answered for on its network.
    assert lab.reach("shy", "10.8.0.99", 8080) == "open"
    assert lab.reach("pod", "fd08::99", 8080) == "open"


@firewalls
def test_networks_without_a_gateway_may_have_the_same_addresses(make: Make, firewall: str) -> None:
    topology = Topology(
        name="twins",
        title="",
        networks=(
            network("left", "10.9.0.0/24", "fd09::/64", gateway=False),
            network("right", "10.9.0.0/24", "fd09::/64", gateway=False),
            network("wide", "10.9.0.0/24", "fd09::/64"),
        ),
        hosts=tuple(
            LabHost(name=f"{side}-{n}", attachments=(at(side, f"10.9.0.{n}", f"fd09::{n}"),))
            for side in ("left", "right", "wide")
            for n in (2, 3)
        ),
    )
    lab = make(topology, firewall)
    listeners = {side: lab.listen(f"{side}-3", 8080) for side in ("left", "right", "wide")}
    for side, listener in listeners.items():
        for address in ("10.9.0.3", "fd09::3"):
            assert lab.reach(f"{side}-2", address, 8080) == "open"
            source_of(listener)
    for listener in listeners.values():
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert lab.reach("left-2", "10.1.1.1", 8080) == "ENETUNREACH"
    assert lab.reach("left-2", "fd01::1", 8080) == "ENETUNREACH"
    # The wall has an address on "wide" only, and does not answer for it anywhere else.
    assert lab.reach("wide-2", "10.9.0.1", 8080) == "EHOSTUNREACH"
    assert lab.reach("left-2", "10.9.0.1", 8080, SHORT_S) == "timeout"
    assert "lladdr" in lab.run("wide-2", "ip", "neigh", "show", "10.9.0.1")
    assert "lladdr" not in lab.run("left-2", "ip", "neigh", "show", "10.9.0.1")


def test_names_resolve_inside(make: Make) -> None:
    lab = make(CLUSTER, FIREWALLS[0])
    assert lab.run("master", "getent", "ahostsv4", "pod").split()[0] == "10.221.0.10"
    assert lab.run("master", "getent", "ahostsv6", "pod").split()[0] == "fd21::10"
    assert lab.run("node", "getent", "hosts", "web.svc").split() == ["10.96.0.10", "web.svc"]
    assert lab.run("pod", "getent", "hosts", "127.0.0.1").split()[1] == "localhost"


def test_settings_are_the_hosts_own(make: Make) -> None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    key = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    before = key.read_text()
    other = next(name for name in available if name != before.strip())
    master, *rest = CLUSTER.hosts
    master = replace(master, sysctls=(("net.ipv4.tcp_rmem", "4096 65536 123456"),))
    topology = replace(CLUSTER, hosts=(master, *rest), congestion_control=other)
    lab = make(topology, FIREWALLS[0])
    assert lab.run("master", "sysctl", "-n", "net.ipv4.tcp_rmem").split()[2] == "123456"
    for host in ("master", "pod"):
        assert lab.run(host, "cat", str(key)).strip() == other
    assert lab.run("pod", "sysctl", "-n", "net.ipv4.tcp_rmem").split()[2] != "123456"
    assert lab.run("pod", "sysctl", "-n", "net.ipv4.ip_forward").strip() == "0"
    assert lab.run("node", "sysctl", "-n", "net.ipv4.ip_forward").strip() == "1"
    assert key.read_text() == before


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("net.ipv4.no_such", r"sysctl net\.ipv4\.no_such=1: No such file"),
        ("kernel.sysrq", "sysctl kernel.sysrq: only sysctls under net"),
        ("net/../kernel/sysrq", r"sysctl net/\.\./kernel/sysrq: only sysctls under net"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_stays_open(key: str, said: str) -> None:
    master, *rest = CLUSTER.hosts
    lab = Fabric(
        replace(CLUSTER, hosts=(replace(master, sysctls=((key, "1"),)), *rest)), FIREWALLS[0]
    )
    try:
        with pytest.raises(ConfigError, match=said):
            lab.make()
    finally:
        lab.remove()
    assert not [one for one in threading.enumerate() if one.name.startswith(lab.names.prefix)]


def test_an_iterator_that_is_closed_early_leaves_no_thread() -> None:
    lab = Fabric(CLUSTER, FIREWALLS[0])

    def ours() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(lab.names.prefix)]

    deeds = fabric.build_steps(CLUSTER, lab.names, firewall=lab.firewall)
    try:
        for what, deed in deeds:
            deed()
            if what == "wall":
                break
        assert len(ours()) == 5
        deeds.close()
        assert not ours()
    finally:
        lab.remove()


def test_everything_is_found_by_the_prefix_at_every_step() -> None:
    lab = Fabric(CLUSTER, FIREWALLS[0])
    done = []
    spaces: list[str] = []
    try:
        for what, deed in fabric.build_steps(CLUSTER, lab.names, firewall=lab.firewall):
            deed()
            done.append(what)
            spaces = [one for one in netns.listnetns() if one.startswith(lab.names.prefix)]
            etc = [one.name for one in ETC.iterdir() if one.name.startswith(lab.names.prefix)]
            assert set(etc) == {one for one in spaces if one != lab.names.wall}
        assert set(spaces) == set(lab.spaces)
    finally:
        lab.remove()
    hosts = ["master", "node", "pod", "peer"]
    assert done == [
        *(f"host {host}" for host in hosts),
        "wall",
        *(f"network {name}" for name in ("control", "nodes", "pods")),
        *(f"link {host}" for host in hosts),
    ]
    assert not [one for one in netns.listnetns() if one.startswith(lab.names.prefix)]


@firewalls
def test_nothing_is_made_in_the_root_namespace(make: Make, firewall: str) -> None:
    tools = [["nft", "list", "ruleset"], ["iptables-save"], ["ip6tables-save"]]

    def seen() -> list[object]:
        with IPRoute() as kernel:
            links = [link.get("ifname") for link in kernel.get_links()]
            addresses = [one.get("address") for one in kernel.get_addr()]
        rules = [
            [
                line
                for line in subprocess.check_output(tool, text=True).splitlines()
                if "#" not in line
            ]
            for tool in tools
            if shutil.which(tool[0])
        ]
        forwards = Path("/proc/sys/net/ipv4/ip_forward").read_text()
        here = os.stat("/proc/self/ns/net").st_ino
        return [links, addresses, rules, forwards, here, len(os.listdir("/proc/self/fd"))]

    before = seen()
    make(CLUSTER, firewall)
    assert seen() == before


def test_a_shaped_link_works_once_its_relay_runs(make: Make) -> None:
    shape = LineShape(delay_ms=1)
    far = LabHost(name="far", attachments=(at("pods", "10.221.0.20", "fd21::20", shape=shape),))
    topology = replace(CLUSTER, hosts=(*CLUSTER.hosts, far))
    lab = make(topology, FIREWALLS[0])
    listener = lab.listen("far", 8080)
    command = relay.command(
        namespace=lab.names.host("far"),
        near="pods",
        far=lab.names.port("far", "pods"),
        shape=shape,
    )
    process = subprocess.Popen(
        in_namespace(lab.names.wall, command), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == relay.READY
        for address in ("10.221.0.20", "fd21::20"):
            assert lab.reach("node", address, 8080) == "open"
            assert source_of(listener) in ("10.220.0.10", "fd20::10")
        assert lab.reach("far", "10.221.0.10", 8080) == "ECONNREFUSED"
        assert lab.reach("far", "fd21::10", 8080) == "ECONNREFUSED"
        assert lab.reach("far", "fd10::10", 8080) == "EACCES"
    finally:
        process.terminate()
        process.wait(LONG_S)
        if process.stdout is not None:
            process.stdout.close()


def test_losses_are_left_out_without_their_congestion_control(tmp_path: Path) -> None:
    shape = LineShape(delay_ms=50, loss=0.01, rate_mbit=100)
    far = LabHost(name="far", attachments=(at("pods", "10.221.0.20", shape=shape),))
    topology = replace(CLUSTER, hosts=(*CLUSTER.hosts, far), congestion_control="bbr")
    available = tmp_path / "available"
    available.write_text("reno cubic\n")
    made, said = fabric.effective(topology, available=available)
    assert made.host("far").attachments[0].shape == replace(shape, loss=0.0)
    assert made.host("pod") == topology.host("pod")
    assert made.congestion_control == ""
    assert said == ["this kernel has no congestion control bbr: building cluster without loss"]
    available.write_text("reno bbr cubic\n")
    assert fabric.effective(topology, available=available) == (topology, [])
    assert fabric.effective(CLUSTER) == (CLUSTER, [])


def test_the_firewall_is_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="nft or iptables-restore"):
        fabric.find_firewall()
    (tmp_path / "iptables-restore").touch(mode=0o755)
    assert fabric.find_firewall() == "iptables"
    with pytest.raises(ConfigError, match="needs nft:"):
        fabric.find_firewall("nft")
    (tmp_path / "nft").touch(mode=0o755)
    assert fabric.find_firewall() == "nft"
    assert fabric.find_firewall("iptables") == "iptables"
    with pytest.raises(ConfigError, match="one of nft, iptables, not 'pf'"):
        fabric.find_firewall("pf")
