"""Builds a lab's kernel part: namespaces, bridges, links, addresses, routes and rules.

Nothing is ever created in the caller's namespace: each namespace of the lab has a thread that
creates it and does all work in it, without a fork or ``ip netns exec``. processes.py starts
programs; removal.py needs nothing from here but the names in plan.py. Plain blocking code: pyroute2
works without an event loop, and is slow to import.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute, NetlinkError, netns

from isthmus.errors import ConfigError
from isthmus.lab.plan import (
    PROGRAMS,
    FirewallLoad,
    Hop,
    Names,
    host_routes,
    host_settings,
    hosts_file,
    owner_addresses,
    ports_of,
    service_rules,
    versions,
    wall_rules,
    wall_settings,
)
from isthmus.lab.relay import make_tap
from isthmus.lab.topology import Attachment, Cable, IpAddress, LabHost, LabNetwork, Topology, Wall

T = TypeVar("T")
BuildStep = tuple[str, Callable[[], None]]

TOOL_TIMEOUT_S = 15.0
_SYSCTLS = Path("/proc/sys")
_AVAILABLE = _SYSCTLS / "net/ipv4/tcp_available_congestion_control"
_CLONE_NEWNET = 0x40000000
_LO = 1  # the index of lo in every namespace
_NODAD = 0x02  # IFA_F_NODAD, linux/if_addr.h
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

# Ports forward frames from the first moment.
_BRIDGE = {"br_stp_state": 0, "br_forward_delay": 0, "br_mcast_snooping": 0}
# The wall is between networks; traffic on one bridge bypasses it.
_BRIDGE_SETTINGS = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")

#: From iproute2, like ip: no other tool sets the state of a port.
BRIDGE_PROGRAM = "bridge"
# linux/if_bridge.h: BR_STATE_DISABLED and BR_STATE_FORWARDING.
_STATES = {False: "0", True: "3"}


def find_firewall(preferred: str = "") -> str:
    """Choose the firewall, "nft" or "iptables": the preferred one, else the first installed.

    Raises:
        ConfigError: neither is in the PATH, or the preferred one is not.
    """
    if preferred and preferred not in PROGRAMS:
        raise ConfigError(f"the firewall must be one of {', '.join(PROGRAMS)}, not {preferred!r}")
    wanted = {preferred: PROGRAMS[preferred]} if preferred else PROGRAMS
    for firewall, program in wanted.items():
        if shutil.which(program):
            return firewall
    raise ConfigError(f"the lab needs {' or '.join(wanted.values())}: not found in the PATH")


def effective(topology: Topology, *, available: Path = _AVAILABLE) -> tuple[Topology, list[str]]:
    """The topology as this kernel can build it, and messages about the difference.

    Frame loss is omitted if the topology's congestion control is missing: others cannot reach a
    line's rate under loss.
    """
    wanted = topology.congestion_control
    if not wanted or wanted in available.read_text().split():
        return topology, []
    hosts = tuple(
        replace(host, attachments=tuple(map(_lossless, host.attachments)))
        for host in topology.hosts
    )
    note = f"this kernel has no congestion control {wanted}: building {topology.name} without loss"
    return replace(topology, hosts=hosts, congestion_control=""), [note]


def _lossless(attachment: Attachment) -> Attachment:
    shape = attachment.shape
    return replace(attachment, shape=replace(shape, loss=0.0)) if shape else attachment


def build_steps(
    topology: Topology, names: Names, *, firewall: str, etc: Path = Path("/etc/netns")
) -> Generator[BuildStep, None, None]:
    """The steps that build a lab, in order, each with a short description for progress output.

    Call each step, which blocks briefly, before taking the next. Take all of them, or close() the
    iterator: its threads keep the namespaces alive. A failing step ends the threads too.

    Raises:
        ConfigError: by a step: the kernel or a tool refused.
    """
    fabric = _Fabric(topology, names, firewall, etc)
    try:
        for what, work in fabric.build_steps():
            yield what, partial(fabric.attempt, what, work)
    finally:
        fabric.close()


class _Space:
    """A namespace, and the thread that does all work in it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        try:
            self.kernel: IPRoute = self.do(_be_born, name)
        except BaseException:
            self._thread.shutdown()
            raise

    def do(self, work: Callable[..., T], *args: object) -> T:
        """Do something in the namespace; its exceptions are raised here."""
        return self._thread.submit(work, *args).result()

    def close(self) -> None:
        """End the thread: what was created stays, because the namespace has a name."""
        self.do(self.kernel.close)
        self._thread.shutdown()


def _be_born(name: str) -> IPRoute:
    # Not pyroute2's own create(): it forks. A thread that unshares does not affect others.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    directory = Path(netns.NETNS_RUN_DIR)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The first user bind-mounts the directory on itself; ip-netns takes this lock too.
        fcntl.flock(lock, fcntl.LOCK_EX)
        netns.attach(name, "thread-self")
    finally:
        os.close(lock)
    return IPRoute()


class _Fabric:
    def __init__(self, topology: Topology, names: Names, firewall: str, etc: Path) -> None:
        self._topology = topology
        self._names = names
        self._firewall = firewall
        self._etc = etc
        self._versions = versions(topology)
        self._spaces: dict[str, _Space] = {}
        self._bridges: dict[str, int] = {}  # by network, the index

    def build_steps(self) -> Iterator[BuildStep]:
        # The wall's rules exist before anything is linked to it: the wall is never open.
        for host in self._topology.hosts:
            yield f"host {host.name}", partial(self._make_host, host)
        yield "wall", self._make_wall
        for network in self._topology.networks:
            yield f"network {network.name}", partial(self._make_network, network)
        for host in self._topology.hosts:
            yield f"link {host.name}", partial(self._link_host, host)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Run a step; foreign exceptions become ConfigErrors here."""
        try:
            work()
        except BaseException as exc:
            self.close()
            if isinstance(exc, PermissionError):
                raise ConfigError(f"{what}: creating network namespaces needs root") from exc
            if isinstance(exc, OSError | NetlinkError | subprocess.SubprocessError | ValueError):
                # NetlinkError is not an OSError, and its text begins with the number.
                why = exc.args[-1] if isinstance(exc, NetlinkError) else exc
                raise ConfigError(f"cannot create {what}: {why}") from exc
            raise

    def close(self) -> None:
        while self._spaces:
            self._spaces.popitem()[1].close()

    def _make_host(self, host: LabHost) -> None:
        name = self._names.host(host.name)
        self._write_hosts(name, host)
        space = self._enter(name)
        space.do(self._settle, host_settings(self._topology, host))
        for address in host.also:
            space.do(_add_address, space.kernel, _LO, address, address.max_prefixlen)

    def _write_hosts(self, name: str, host: LabHost) -> None:
        directory = self._etc / name
        directory.mkdir(mode=0o755, parents=True)
        path = directory / "hosts"
        path.write_text(hosts_file(self._topology, host.name))
        path.chmod(0o644)  # independent of the umask: programs of the lab may run as other users

    def _enter(self, name: str) -> _Space:
        self._spaces[name] = space = _Space(name)
        space.do(partial(space.kernel.link, "set", index=_LO, state="up"))
        return space

    def _settle(self, settings: Mapping[str, str]) -> None:
        if 6 in self._versions and not _has_ipv6():
            raise ConfigError(f"this kernel has no IPv6, which {self._topology.name} needs")
        for key, value in settings.items():
            _set(key, value)

    def _make_wall(self) -> None:
        space = self._enter(self._names.wall)
        space.do(_load, wall_rules(self._topology, self._firewall))
        space.do(self._settle, wall_settings(self._topology))
        space.do(_leave_bridges_alone)
        space.do(self._route_the_unknown, space.kernel)

    def _route_the_unknown(self, kernel: IPRoute) -> None:
        """Let the rules decide about addresses outside all networks."""
        if 4 in self._versions:
            # Without a route the kernel itself rejects, even behind a wall that drops, and only
            # once a second. Nothing reaches the loopback interface: no rule allows it.
            kernel.route("add", dst="default", family=_FAMILIES[4], oif=_LO, scope="link")
        if 6 in self._versions and self._topology.wall is Wall.DROP:
            # IPv6 has no such routes by the loopback interface, and does not limit its errors.
            kernel.route("add", dst="default", family=_FAMILIES[6], type="blackhole")

    def _make_network(self, network: LabNetwork) -> None:
        if network.behind:
            if network.bridge:
                owner = self._spaces[self._names.host(network.behind)]
                addresses = owner_addresses(self._topology, network)
                self._bridges[network.name] = owner.do(
                    _make_own_bridge, owner.kernel, network, addresses
                )
            return
        wall = self._spaces[self._names.wall]
        bridge = self._names.bridge(network.name)
        self._bridges[network.name] = wall.do(_make_bridge, wall.kernel, bridge, network)

    def _link_host(self, host: LabHost) -> None:
        name = self._names.host(host.name)
        space, wall = self._spaces[name], self._spaces[self._names.wall]
        for at in host.attachments:
            network = self._topology.network(at.network)
            if network.behind:
                self._link_to_owner(host, at, network)
                continue
            port = self._names.port(host.name, at.network)
            bridge = self._bridges[at.network]
            if at.shape is None:
                wall.do(_add_veth, wall.kernel, port, bridge, at.network, name)
            else:
                wall.do(make_tap, port)
                space.do(make_tap, at.network)
                wall.do(_plug, wall.kernel, port, bridge)
            space.do(_address, space.kernel, at, network)
        space.do(_add_routes, space.kernel, host_routes(self._topology, host))
        space.do(_load, service_rules(self._topology, host, self._firewall))

    def _link_to_owner(self, host: LabHost, at: Attachment, network: LabNetwork) -> None:
        """Lay a cable to the host that a network is behind; that host itself needs none."""
        if network.behind == host.name:
            return
        name = self._names.host(host.name)
        space, owner = self._spaces[name], self._spaces[self._names.host(network.behind)]
        port = ports_of(self._topology, network.behind)[host.name, network.name]
        bridge = self._bridges.get(network.name)
        owner.do(_add_veth, owner.kernel, port, bridge, at.network, name)
        if bridge is not None:
            owner.do(_let_turn_back, owner.kernel, port)
            space.do(_address, space.kernel, at, network)
            return
        routers = owner_addresses(self._topology, network)
        owner.do(_route_by, owner.kernel, port, routers, at.addresses)
        # The cable has one host at each end, so there is no neighbour discovery.
        space.do(_address, space.kernel, at, replace(network, cidrs=()))


def _add_routes(kernel: IPRoute, hops: Iterable[Hop]) -> None:
    for hop in hops:
        way = (
            {"oif": kernel.link_lookup(ifname=hop.link)[0], "scope": "link"}
            if hop.via is None
            else {"gateway": str(hop.via)}
        )
        kernel.route("add", dst=str(hop.to), family=_FAMILIES[hop.to.version], **way)


def _has_ipv6() -> bool:
    return (_SYSCTLS / "net/ipv6").is_dir()


def _set(key: str, value: str) -> None:
    parts = key.replace(".", "/").split("/") if "/" not in key else key.split("/")
    # Other sysctls belong to the whole machine.
    if parts[0] != "net" or not all(parts) or ".." in parts:
        raise ConfigError(f"sysctl {key}: only sysctls under net belong to one host")
    try:
        _SYSCTLS.joinpath(*parts).write_text(value)
    except OSError as exc:
        raise ConfigError(f"sysctl {key}={value}: {exc.strerror or exc}") from exc


def _leave_bridges_alone() -> None:
    for setting in _BRIDGE_SETTINGS:
        path = _SYSCTLS / "net/bridge" / setting
        if path.exists():  # without br_netfilter there is nothing to switch off
            path.write_text("0")


def _make_own_bridge(kernel: IPRoute, network: LabNetwork, addresses: Iterable[IpAddress]) -> int:
    index = _add_bridge(kernel, network.bridge)
    for address in addresses:
        _add_address(kernel, index, address, _length(address, network))
    return index


def _let_turn_back(kernel: IPRoute, port: str) -> None:
    """Let packets leave by the bridge port they came by, for services that lead back."""
    kernel.brport("set", index=kernel.link_lookup(ifname=port)[0], mode=1)


def _route_by(
    kernel: IPRoute, port: str, routers: Iterable[IpAddress], addresses: Iterable[IpAddress]
) -> None:
    """Route over a cable without a network: the router's addresses here, the host's there."""
    index = kernel.link_lookup(ifname=port)[0]
    for router in routers:
        _add_address(kernel, index, router, router.max_prefixlen)
    for address in addresses:
        kernel.route(
            "add", dst=str(address), family=_FAMILIES[address.version], oif=index, scope="link"
        )


def _add_bridge(kernel: IPRoute, name: str) -> int:
    kernel.link("add", kind="bridge", ifname=name, state="up", **_BRIDGE)
    index: int = kernel.link_lookup(ifname=name)[0]
    return index


def _make_bridge(kernel: IPRoute, name: str, network: LabNetwork) -> int:
    index = _add_bridge(kernel, name)
    if network.gateway:
        for cidr in network.cidrs:
            _add_address(kernel, index, network.gateway_in(cidr), cidr.prefixlen)
    else:
        # Nothing leaves this network, not even by guessing the bridge's own address.
        _set(f"net/ipv4/conf/{name}/forwarding", "0")
        if _has_ipv6():
            _set(f"net/ipv6/conf/{name}/disable_ipv6", "1")
    return index


def _add_veth(kernel: IPRoute, port: str, bridge: int | None, link: str, namespace: str) -> None:
    # Create the peer in its namespace: its name may clash with a bridge's here.
    peer = {"ifname": link, "net_ns_fd": namespace}
    plugged = {} if bridge is None else {"master": bridge}
    kernel.link("add", kind="veth", ifname=port, state="up", peer=peer, **plugged)


def _plug(kernel: IPRoute, port: str, bridge: int) -> None:
    kernel.link("set", index=kernel.link_lookup(ifname=port)[0], master=bridge, state="up")


def _address(kernel: IPRoute, at: Attachment, network: LabNetwork) -> None:
    index = kernel.link_lookup(ifname=at.network)[0]
    kernel.link("set", index=index, state="up")
    for address in at.addresses:
        _add_address(kernel, index, address, _length(address, network))


def _length(address: IpAddress, network: LabNetwork) -> int:
    lengths = (cidr.prefixlen for cidr in network.cidrs if address in cidr)
    return next(lengths, address.max_prefixlen)


def _add_address(kernel: IPRoute, index: int, address: IpAddress, length: int) -> None:
    flags = {"flags": _NODAD} if address.version == 6 else {}
    kernel.addr("add", index=index, address=str(address), prefixlen=length, **flags)


def _load(loads: Iterable[FirewallLoad]) -> None:
    """Load rules into the thread's namespace: a child process inherits it."""
    for load in loads:
        done = subprocess.run(
            load.argv,
            input=load.rules,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TOOL_TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            raise ConfigError(f"{load.argv[0]}: {' '.join(done.stderr.split())}")


def set_cables(names: Names, cable: Cable) -> None:
    """Cut or mend the cables of a host, at the wall's side; repeating it has no effect.

    The host does not notice, as when a fibre breaks far away: links stay up, routes stay, and
    frames do not arrive.

    Raises:
        ConfigError: the lab's wall or the cables do not exist.
    """
    for network in cable.networks:
        port = names.port(cable.host, network)
        argv = [BRIDGE_PROGRAM, "-n", names.wall, "link", "set", "dev", port]
        done = subprocess.run(
            [*argv, "state", _STATES[cable.whole]],
            text=True,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise ConfigError(f"cannot reach the cable of {cable.host} to {network}: {said}")
