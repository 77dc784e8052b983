"""Sysctls of this host, and its addresses that accept node ports.

Sysctls are set to kube-proxy's values. One that cannot be set is reported but not fatal, unless
rules would be wrong without it: a node with a lower connection limit still carries traffic.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel.netlink import DUMP, Netlink, attributes
from isthmus.programs.node_proxy.rules.detectors import of_family
from isthmus.programs.node_proxy.rules.model import IpFamily, family_of
from isthmus.programs.node_proxy.settings import PRIMARY, NodeProxySettings

_PROC_SYS = Path("/proc/sys")
_HASH_SIZE = Path("/sys/module/nf_conntrack/parameters/hashsize")
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
_BRIDGE = {
    IpFamily.IPV4: "net/bridge/bridge-nf-call-iptables",
    IpFamily.IPV6: "net/bridge/bridge-nf-call-ip6tables",
}
_MOST_TRACKED = 1024 * 1024


class Sysctls:
    """The sysctls of the current network namespace, below /proc/sys."""

    def __init__(self, root: Path = _PROC_SYS, hash_size: Path = _HASH_SIZE) -> None:
        self._root = root
        self._hash_size = hash_size

    def read(self, name: str) -> int | None:
        """The value of a sysctl; None if it does not exist or cannot be read."""
        return _read(self._root / name)

    def ensure(self, name: str, value: int) -> str:
        """Set a sysctl unless it already has the value; returns the error, or nothing."""
        return _ensure(self._root / name, value, name.replace("/", "."))

    # Sysctls that rules depend on.

    def ensure_localhost_node_ports(self) -> None:
        """Allow routing of packets from 127.0.0.1, which node ports on localhost need.

        Raises:
            ConfigError: the sysctl cannot be set.
        """
        wrong = self.ensure(_ROUTE_LOCALNET, 1)
        if wrong:
            raise ConfigError(
                f"node ports on localhost: {wrong}; set it beforehand, or use"
                " --iptables-localhost-nodeports=false"
            )

    def drops_invalid(self) -> bool:
        """Whether rules may drop packets in conntrack state INVALID, such as out-of-window ones."""
        return not self.read(_BE_LIBERAL)

    def bridge_trouble(self, families: Sequence[IpFamily]) -> str:
        """Why iptables would not see packets between bridge ports; empty if it does."""
        for family in families:
            name = _BRIDGE[family]
            found = self.read(name)
            if found == 1:
                continue
            dotted = name.replace("/", ".")
            how = "load the kernel module br_netfilter" if found is None else f"set {dotted}=1"
            return (
                f"--detect-local=bridge cannot recognise {family.value} packets of pods: iptables"
                f" sees bridge ports only if {dotted} is 1; until then all packets are"
                f" masqueraded: {how}"
            )
        return ""

    # Sysctls that kube-proxy sets as well.

    def set_conntrack(
        self, settings: NodeProxySettings, processors: int | None = None
    ) -> list[str]:
        """Apply the --conntrack-* flags; returns a message for each value that cannot be set."""
        most = tracked(settings, processors or os.cpu_count() or 1)
        wrong = [self.ensure(f"net/netfilter/{name}", value) for name, value in _wanted(settings)]
        if most:
            wrong.append(self._ensure_max(most))
        return [f"{each}; the current value stays" for each in wrong if each]

    def _ensure_max(self, most: int) -> str:
        wrong = self.ensure("net/netfilter/nf_conntrack_max", most)
        if wrong:
            return wrong
        size = _read(self._hash_size)
        if size is None or size >= most // 4:
            return ""
        return _ensure(self._hash_size, most // 4, "the hash size of nf_conntrack")


def tracked(settings: NodeProxySettings, processors: int) -> int:
    """The limit of conntrack entries; 0 keeps the kernel's."""
    if not settings.conntrack_max_per_core:
        return 0
    scaled = settings.conntrack_max_per_core * processors
    return _MOST_TRACKED if scaled > _MOST_TRACKED else max(scaled, settings.conntrack_min)


def _wanted(settings: NodeProxySettings) -> Iterator[tuple[str, int]]:
    times = {
        "tcp_timeout_established": settings.conntrack_tcp_timeout_established_s,
        "tcp_timeout_close_wait": settings.conntrack_tcp_timeout_close_wait_s,
        "udp_timeout": settings.conntrack_udp_timeout_s,
        "udp_timeout_stream": settings.conntrack_udp_timeout_stream_s,
    }
    for name, seconds in times.items():
        if seconds > 0:
            yield f"nf_conntrack_{name}", int(seconds)
    if settings.conntrack_tcp_be_liberal:
        yield "nf_conntrack_tcp_be_liberal", 1


def set_oom_score(score: int) -> str:
    """Set the OOM score adjustment of this process; returns the error, or nothing."""
    return _ensure(_OOM_SCORE_ADJ, score, "oom_score_adj")


def has_ipv6(root: Path = _PROC_SYS) -> bool:
    """Whether the kernel has IPv6 in this namespace, and it is not disabled."""
    # The thread's entry: /proc/net shows the process, which may be in another namespace.
    if not Path("/proc/thread-self/net/if_inet6").exists():
        return False
    return _read(root / "net/ipv6/conf/all/disable_ipv6") != 1


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _ensure(path: Path, value: int, name: str) -> str:
    if _read(path) == value:
        return ""
    try:
        path.write_text(str(value))
    except OSError as error:
        return f"cannot set {name} to {value}: {error.strerror or error}"
    return ""


# linux/rtnetlink.h, if_addr.h
_CHANGES = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_GET = 22  # RTM_GETADDR
_ADDRESS, _LOCAL = 1, 2
_IFADDRMSG = struct.Struct("=BBBBI")
_MAX_READ = 65536


@dataclass(frozen=True, slots=True)
class NodeIPs:
    """The node's addresses, one per family, a loopback one if unknown; the first is primary."""

    primary: IpFamily
    of: Mapping[IpFamily, str]

    @property
    def known(self) -> bool:
        """Whether the primary address is known."""
        return not ip_address(self.of[self.primary]).is_loopback


def node_ips(addresses: Sequence[str], bind_address: str) -> NodeIPs:
    """Choose the node's addresses as kube-proxy does.

    ``addresses`` are the Node's in order of preference. --bind-address, unless it is unspecified
    (0.0.0.0 or ::), replaces the address of its family and becomes the primary one.
    """
    found = {IpFamily.IPV4: "127.0.0.1", IpFamily.IPV6: "::1"}
    primary = IpFamily.IPV4
    for address in reversed(addresses):
        primary = family_of(address)
        found[primary] = address
    bound = ip_address(bind_address)
    if not bound.is_unspecified:
        primary = family_of(str(bound))
        found[primary] = str(bound)
    return NodeIPs(primary, found)


def ranges_of(
    ranges: Sequence[str], family: IpFamily, node_ips: Collection[str]
) -> tuple[str, ...] | None:
    """The ranges of one family that accept node ports; None for every address.

    ``primary`` is the node's own address, or a loopback address if that is unknown. A family
    without any range is not limited, as in kube-proxy.
    """
    if PRIMARY in ranges:
        known = (ip for ip in node_ips if not ip_address(ip).is_loopback)
        ranges = [f"{ip}/{ip_address(ip).max_prefixlen}" for ip in known]
    found = of_family(ranges, family)
    if not found or any(each.endswith("/0") for each in found):
        return None
    return found


def has_loopback(ranges: tuple[str, ...] | None) -> bool:
    """Whether the ranges allow IPv4 node ports at 127.0.0.1."""
    if ranges is None:
        return True
    start = ip_address("127.0.0.0")
    return any(
        start in network or network.network_address.is_loopback
        for network in map(ip_network, ranges)
    )


def within(addresses: Collection[str], ranges: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The addresses in the ranges, sorted; None (no limit) for no ranges."""
    if ranges is None:
        return None
    networks = [ip_network(each) for each in ranges]
    found = {ip for ip in map(ip_address, addresses) if any(ip in each for each in networks)}
    return tuple(map(str, sorted(found, key=int)))


def addresses_of_host() -> dict[IpFamily, frozenset[str]]:
    """Every address that this host has now; blocks.

    Raises:
        OSError: netlink is not available.
    """
    found = {}
    with Netlink(socket.NETLINK_ROUTE) as kernel:
        for family, number in ((IpFamily.IPV4, socket.AF_INET), (IpFamily.IPV6, socket.AF_INET6)):
            asked = _IFADDRMSG.pack(number, 0, 0, 0, 0)
            held = [attributes(each[_IFADDRMSG.size :]) for each in kernel.ask(_GET, DUMP, asked)]
            # IFA_LOCAL is the local address of a point-to-point link, IFA_ADDRESS the peer's.
            own = [each.get(_LOCAL, each.get(_ADDRESS)) for each in held]
            found[family] = frozenset(socket.inet_ntop(number, each) for each in own if each)
    return found


class AddressChanges:
    """Watches the kernel for changes of this host's addresses."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Start watching; ``changed`` is called after every change.

        Raises:
            OSError: netlink is not available.
        """
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            self._sock.setblocking(False)
            self._sock.bind((0, _CHANGES))
            self._loop.add_reader(self._sock, self._read)
        except BaseException:
            self._sock.close()
            raise

    def _read(self) -> None:
        try:
            while self._sock.recv(_MAX_READ):
                pass
        except BlockingIOError:
            pass
        except OSError:
            pass  # ENOBUFS: messages were lost, but that something changed is all that matters
        self._changed()

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()
