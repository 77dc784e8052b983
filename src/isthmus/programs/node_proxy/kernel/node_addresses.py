"""The addresses of this node that take node ports (--nodeport-addresses), and their changes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from isthmus.programs.node_proxy.kernel.netlink import DUMP, Netlink, attributes
from isthmus.programs.node_proxy.rules.detectors import of_family
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.objects import family_of
from isthmus.programs.node_proxy.settings import PRIMARY

# linux/rtnetlink.h, if_addr.h
_CHANGES = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_GET = 22  # RTM_GETADDR
_ADDRESS, _LOCAL = 1, 2
_IFADDRMSG = struct.Struct("=BBBBI")
_MAX_READ = 65536


@dataclass(frozen=True, slots=True)
class NodeIPs:
    """The node's address of each family, a loopback one where nobody knows; the first counts."""

    primary: IpFamily
    of: Mapping[IpFamily, str]

    @property
    def known(self) -> bool:
        """The primary address is a real one."""
        return not ip_address(self.of[self.primary]).is_loopback


def node_ips(addresses: Sequence[str], bind_address: str) -> NodeIPs:
    """Choose the node's addresses as kube-proxy does.

    ``addresses`` are the Node's, the best first. --bind-address overrides the one of its family,
    and makes that the primary one, unless it stands for every address.
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
    """The ranges of one family that node ports are taken in; None for every address.

    ``primary`` is the node's own address, unless that is a loopback one, which says that nobody
    knows it. A family without any range is not limited, as in kube-proxy.
    """
    if PRIMARY in ranges:
        known = (ip for ip in node_ips if not ip_address(ip).is_loopback)
        ranges = [f"{ip}/{ip_address(ip).max_prefixlen}" for ip in known]
    found = of_family(ranges, family)
    if not found or any(each.endswith("/0") for each in found):
        return None
    return found


def has_loopback(ranges: tuple[str, ...] | None) -> bool:
    """Whether node ports of IPv4 are taken at 127.0.0.1, as far as the ranges say."""
    if ranges is None:
        return True
    start = ip_address("127.0.0.0")
    return any(
        start in network or network.network_address.is_loopback
        for network in map(ip_network, ranges)
    )


def within(addresses: Collection[str], ranges: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The addresses that lie in the ranges, sorted; None, which is all, for no ranges."""
    if ranges is None:
        return None
    networks = [ip_network(each) for each in ranges]
    found = {ip for ip in map(ip_address, addresses) if any(ip in each for each in networks)}
    return tuple(map(str, sorted(found, key=int)))


def addresses_of_host() -> dict[IpFamily, frozenset[str]]:
    """Every address that this host has now; blocks.

    Raises:
        OSError: the kernel cannot be asked.
    """
    found = {}
    with Netlink(socket.NETLINK_ROUTE) as kernel:
        for family, number in ((IpFamily.IPV4, socket.AF_INET), (IpFamily.IPV6, socket.AF_INET6)):
            asked = _IFADDRMSG.pack(number, 0, 0, 0, 0)
            held = [attributes(each[_IFADDRMSG.size :]) for each in kernel.ask(_GET, DUMP, asked)]
            # IFA_LOCAL is this side of a point-to-point link, IFA_ADDRESS the other.
            own = [each.get(_LOCAL, each.get(_ADDRESS)) for each in held]
            found[family] = frozenset(socket.inet_ntop(number, each) for each in own if each)
    return found


class AddressChanges:
    """Hears from the kernel that addresses of this host changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Call back at every change from now on.

        Raises:
            OSError: there is no netlink here.
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
            pass  # ENOBUFS: some were lost, and all that matters is that there were some
        self._changed()

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()
