"""Addresses and links of this host, by netlink: listing, creating and removing.

Objects that we create are marked so that every process can read the mark without privilege, and
atomically: a link has our group (and an alias, for people), an address has our metric,
which without a prefix route has no other meaning. IPv6 addresses have no label, hence the metric.

An uplink is an interface of a default route, a physical device, or a tunnel from
another host, together with everything built on top of it: its bond, bridge or VLAN.

Imports pyroute2, which is slow: import this module only where it is used.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntFlag
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from pathlib import Path

from pyroute2 import IPRoute, NetlinkError

from isthmus.errors import ConfigError

Address = IPv4Address | IPv6Address

LOOPBACK = "lo"
ALIAS = "isthmus agent"
_LO_LABEL = "lo:isthmus"
_GROUP = 2025  # of links; that of the KEP
_METRIC = 20250000  # of addresses, with the AddressMark's bits

# linux/if_addr.h, rtnetlink.h
_NODAD = 0x02
_NOPREFIXROUTE = 0x200
_FOREVER = 0xFFFFFFFF
_SCOPE_HOST = 254
_UP = 0x1
_LO = 1  # its index in every namespace
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
# The thread's: /proc/net belongs to the process, which may be in another namespace.
_NET = Path("/proc/thread-self/net")
_TUNNELS = frozenset(
    {"vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "gretap", "erspan", "ip6tnl", "ip6gre"}
    | {"ip6gretap", "ip6erspan", "vti", "vti6", "xfrm", "ppp", "bareudp", "amt", "gtp"}
)
# Their IFLA_LINK is the other end of the pair, not an underlying device.
_PAIRS = frozenset({"veth", "netkit"})
# User-space VPNs; the same kind with Ethernet, a tap, usually belongs to a guest of this host.
_TUN = "tun"
_ETHERNET, _LOOPBACK = 1, 772  # ARPHRD_ETHER, ARPHRD_LOOPBACK, linux/if_arp.h
# Looked up, never sent to: one in each half, because VPNs split the default route into two.
_FAR = {socket.AF_INET: ("1.1.1.1", "192.0.2.1"), socket.AF_INET6: ("2001:db8::1",)}
_FIB_MATCH = 0x2000  # RTM_F_FIB_MATCH: the route as it is, with all its next hops
# In each file: the destination and the mask, all 0 in a default route, and the name.
_ROUTE_FILES = {"route": (1, 7, 0), "ipv6_route": (0, 1, -1)}

# linux/in.h, in6.h; for a TCP socket they return the interface on which its handshake arrived.
_IP_PKTINFO, _IP_PKTOPTIONS = 8, 9
_IPV6_RECVPKTINFO, _IPV6_2292PKTOPTIONS = 49, 6
_CMSG = struct.Struct("@Nii")
_CMSG_BYTES = 128


class AddressMark(IntFlag):
    """Flags in the metric of our addresses."""

    LASTING = 1  # made by setup-interface: no agent takes it away
    RULED = 2  # the rule that drops what enters by an uplink was there before it


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceAddress:
    """An address on an interface of this host."""

    address: Address
    interface: str
    index: int
    prefix: int
    host_scope: bool
    mark: AddressMark | None  # None: not created by us

    @property
    def ours(self) -> bool:
        """Whether an agent or setup-interface created it."""
        return self.mark is not None

    @property
    def lasting(self) -> bool:
        """Whether setup-interface created it."""
        return self.mark is not None and AddressMark.LASTING in self.mark

    @property
    def ruled(self) -> bool:
        """Whether the rule existed when it was created."""
        return self.mark is not None and AddressMark.RULED in self.mark

    @property
    def whole(self) -> bool:
        """Whether it is a single address without a subnet."""
        return self.prefix == self.address.max_prefixlen


@contextmanager
def kernel_of_this_host() -> Iterator[IPRoute]:
    """Netlink to the namespace of this thread.

    Raises:
        ConfigError: an operation in the block is not permitted or failed.
    """
    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        # Its text starts with the errno.
        raise ConfigError(f"the kernel refuses: {_why(error)}") from error
    except OSError as error:
        raise ConfigError(f"cannot open netlink: {error}") from error


def allowed(kernel: IPRoute) -> bool:
    """Whether this process may change addresses and links here."""
    try:
        kernel.link("set", index=_LO)  # changes nothing, but requires CAP_NET_ADMIN
    except NetlinkError as error:
        if error.code != errno.EPERM:
            raise
        return False
    return True


def addresses(kernel: IPRoute, version: int) -> list[InterfaceAddress]:
    """All addresses of one family on this host."""
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in kernel.get_links()}
    found = []
    for message in kernel.get_addr(family=_FAMILIES[version]):
        text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        metric = message.get_attr("IFA_RT_PRIORITY") or 0
        ours = 0 <= metric - _METRIC <= int(AddressMark.LASTING | AddressMark.RULED)
        found.append(
            InterfaceAddress(
                address=ip_address(text),
                interface=names.get(message["index"]) or str(message["index"]),
                index=message["index"],
                prefix=message["prefixlen"],
                host_scope=message["scope"] == _SCOPE_HOST,
                mark=AddressMark(metric - _METRIC) if ours else None,
            )
        )
    return found


def neighbours_subnet(held: list[InterfaceAddress], address: Address) -> InterfaceAddress | None:
    """The interface, if any, whose subnet contains the address: a neighbour may use it there."""
    for one in held:
        if not one.whole and address in ip_interface(f"{one.address}/{one.prefix}").network:
            return one
    return None


def find_link(kernel: IPRoute, name: str) -> tuple[int, bool] | None:
    """The index of a link and whether it is ours; None if there is no such link."""
    indexes = kernel.link_lookup(ifname=name)
    if not indexes:
        return None
    (message,) = kernel.get_links(indexes[0])
    return indexes[0], message.get_attr("IFLA_GROUP") == _GROUP


def make_link(kernel: IPRoute, name: str, kind: str) -> bool:
    """Create a link; returns whether the kernel supports the kind."""
    try:
        kernel.link("add", kind=kind, ifname=name, group=_GROUP, state="up")
    except NetlinkError as error:
        if error.code != errno.EOPNOTSUPP:
            raise
        return False
    kernel.link("set", index=kernel.link_lookup(ifname=name)[0], ifalias=ALIAS)
    return True


def bring_up(kernel: IPRoute, index: int) -> bool:
    """Bring a link up; returns whether it was down."""
    (message,) = kernel.get_links(index)
    if message["flags"] & _UP:
        return False
    kernel.link("set", index=index, state="up")
    return True


def remove_link(kernel: IPRoute, name: str) -> bool:
    """Remove our link if it has no addresses left except automatic ones."""
    link = find_link(kernel, name)
    if link is None or not link[1]:
        return False
    for version in _FAMILIES:
        for one in addresses(kernel, version):
            if one.index == link[0] and not one.address.is_link_local:
                return False
    kernel.link("del", index=link[0])
    return True


def add_address(
    kernel: IPRoute, index: int, name: str, address: Address, mark: AddressMark
) -> None:
    """Add our address to a link, or update the mark of an existing one.

    Raises:
        ConfigError: IPv6 is disabled on the interface.
    """
    how: dict[str, object] = {"IFA_FLAGS": _NOPREFIXROUTE, "IFA_RT_PRIORITY": _METRIC + mark}
    if address.version == 4:
        # Our links have an alias that identifies their owner; lo is not ours.
        how |= {"scope": _SCOPE_HOST, "label": _LO_LABEL if name == LOOPBACK else name}
    else:
        # IPv6 has no host scope. A deprecated address is never chosen as source by this host
        # (RFC 6724 §5, rule 3), but still accepted as destination.
        how["IFA_FLAGS"] = _NOPREFIXROUTE | _NODAD
        how["IFA_CACHEINFO"] = {"ifa_preferred": 0, "ifa_valid": _FOREVER}
    try:
        kernel.addr(
            "replace", index=index, address=str(address), prefixlen=address.max_prefixlen, **how
        )
    except NetlinkError as error:
        if address.version == 6 and error.code == errno.EACCES:
            raise ConfigError(f"IPv6 is turned off on {name}, which {address} needs") from error
        raise


def remove_address(kernel: IPRoute, held: InterfaceAddress) -> None:
    """Remove an address from its link; it may already be gone."""
    with suppress(NetlinkError):
        kernel.addr("del", index=held.index, address=str(held.address), prefixlen=held.prefix)


def _why(error: NetlinkError) -> str:
    if error.code == errno.EPERM:
        return "this needs CAP_NET_ADMIN; or run isthmus agent setup-interface as root before"
    return str(error.args[-1])


@dataclass(frozen=True, slots=True)
class _Link:
    index: int
    name: str
    outward: bool
    master: int
    below: int


def find_uplinks(kernel: IPRoute) -> Mapping[str, int]:
    """The uplinks of this host: names and indexes."""
    links = {link.index: link for link in map(_link, kernel.get_links()) if link is not None}
    routed = _default_names()
    found = {link.index for link in links.values() if link.outward or link.name in routed}
    found |= _looked_up(kernel) & links.keys()
    grown = found
    while grown:  # at most as often as links are stacked
        masters = {links[index].master for index in grown}
        above = {link.index for link in links.values() if link.below in grown}
        grown = ((masters | above) & links.keys()) - found
        found |= grown
    return {links[index].name: index for index in sorted(found)}


def _link(message: object) -> _Link | None:
    """The relevant fields of a link; None for loopback, which is never an uplink."""
    get = message.get_attr  # type: ignore[attr-defined]  # pyroute2 has no types
    if message["ifi_type"] == _LOOPBACK:  # type: ignore[index]
        return None
    kind = message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or ""  # type: ignore[attr-defined]
    paired = kind in _PAIRS
    # The underlying device is in another namespace: a container's uplink, by macvlan or VLAN.
    elsewhere = get("IFLA_LINK_NETNSID") is not None and not paired
    tunnel = kind in _TUNNELS or (kind == _TUN and message["ifi_type"] != _ETHERNET)  # type: ignore[index]
    # Every virtual link has a kind; sysfs is not used, because in a container it is the host's.
    physical = bool(get("IFLA_PARENT_DEV_NAME")) or not kind
    return _Link(
        index=message["index"],  # type: ignore[index]
        name=get("IFLA_IFNAME"),
        outward=physical or tunnel or elsewhere,
        master=get("IFLA_MASTER") or 0,
        below=0 if elsewhere or paired else get("IFLA_LINK") or 0,
    )


def _default_names() -> set[str]:
    """The interfaces of all default routes, from /proc, because netlink would need a whole dump."""
    found = set()
    for name, (to, mask, interface) in _ROUTE_FILES.items():
        try:
            lines = (_NET / name).read_text().splitlines()
        except OSError:
            continue  # a kernel without this family
        for words in map(str.split, lines):
            if not (words[to] + words[mask]).strip("0"):
                found.add(words[interface])
    return found


def _looked_up(kernel: IPRoute) -> set[int]:
    """The interfaces towards other networks, with the next hops that the file omits."""
    found: set[int] = set()
    for family, probes in _FAR.items():
        for probe in probes:
            try:
                routes = list(kernel.route("get", family=family, dst=probe, flags=_FIB_MATCH))
            except NetlinkError:
                continue  # unreachable, or no such family
            for route in routes:
                hops = route.get_attr("RTA_MULTIPATH") or ()
                found |= {hop["oif"] for hop in hops} | {route.get_attr("RTA_OIF") or 0}
    return found


def entered_by(connection: socket.socket) -> int:
    """The index of the interface on which an accepted TCP connection arrived; 0 if unknown.

    A connection from this host itself arrives on loopback. Needs no privilege.
    """
    if connection.family == socket.AF_INET6:
        level, ask, answer, skip = socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, _IPV6_2292PKTOPTIONS, 16
    else:
        level, ask, answer, skip = socket.IPPROTO_IP, _IP_PKTINFO, _IP_PKTOPTIONS, 0
    try:
        connection.setsockopt(level, ask, 1)
        data = connection.getsockopt(level, answer, _CMSG_BYTES)
        connection.setsockopt(level, ask, 0)
    except OSError:
        return 0  # reset in the meantime
    index = data[_CMSG.size + skip : _CMSG.size + skip + 4]
    return int(struct.unpack("@i", index)[0]) if len(index) == 4 else 0
