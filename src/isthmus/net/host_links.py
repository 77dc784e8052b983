"""Addresses and links of this host, by netlink: what is there, whose it is, making and removing.

What we make is marked where anybody can read it without privilege, and where it is set in the same
moment: a link has a group of ours (and an alias, for people), an address has a metric of ours,
which without a prefix route means nothing else. IPv6 addresses have no label, hence the metric.

An uplink is an interface that a default route leads through, a physical device, or a tunnel from
another host; with it goes whatever is built on top of it: its bond, bridge or VLAN.

Imports pyroute2, which takes its time: import this module only where it is used.
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
# A thread's own: /proc/net is that of the process, which may be in another namespace.
_NET = Path("/proc/thread-self/net")
_TUNNELS = frozenset(
    {"vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "gretap", "erspan", "ip6tnl", "ip6gre"}
    | {"ip6gretap", "ip6erspan", "vti", "vti6", "xfrm", "ppp", "bareudp", "amt", "gtp"}
)
# Their IFLA_LINK is the other end of the pair, not what they are built upon.
_PAIRS = frozenset({"veth", "netkit"})
# A VPN's in user space; the same kind with Ethernet, a tap, is as a rule a guest of this host.
_TUN = "tun"
_ETHERNET, _LOOPBACK = 1, 772  # ARPHRD_ETHER, ARPHRD_LOOPBACK, linux/if_arp.h
# Looked up, never sent to: one in each half, as VPNs split the default route into two.
_FAR = {socket.AF_INET: ("1.1.1.1", "192.0.2.1"), socket.AF_INET6: ("2001:db8::1",)}
_FIB_MATCH = 0x2000  # RTM_F_FIB_MATCH: the route as it is, with all its next hops
# In each file: the destination and the mask, all 0 in a default route, and the name.
_ROUTE_FILES = {"route": (1, 7, 0), "ipv6_route": (0, 1, -1)}

# linux/in.h, in6.h; what they answer for a TCP socket is the interface that its handshake came by.
_IP_PKTINFO, _IP_PKTOPTIONS = 8, 9
_IPV6_RECVPKTINFO, _IPV6_2292PKTOPTIONS = 49, 6
_CMSG = struct.Struct("@Nii")
_CMSG_BYTES = 128


class AddressMark(IntFlag):
    """What the metric of an address of ours tells."""

    LASTING = 1  # made by setup-interface: no agent takes it away
    RULED = 2  # the rule that drops what enters by an uplink was there before it


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceAddress:
    """An address that an interface of this host has."""

    address: Address
    interface: str
    index: int
    prefix: int
    host_scope: bool
    mark: AddressMark | None  # None: we did not make it

    @property
    def ours(self) -> bool:
        """Whether an agent or setup-interface made it."""
        return self.mark is not None

    @property
    def lasting(self) -> bool:
        """Whether setup-interface made it."""
        return self.mark is not None and AddressMark.LASTING in self.mark

    @property
    def ruled(self) -> bool:
        """Whether the rule was there when it was made."""
        return self.mark is not None and AddressMark.RULED in self.mark

    @property
    def whole(self) -> bool:
        """Whether it is an address alone, without a subnet."""
        return self.prefix == self.address.max_prefixlen


@contextmanager
def kernel_of_this_host() -> Iterator[IPRoute]:
    """Netlink to the namespace of this thread.

    Raises:
        ConfigError: what was asked in the block is not allowed or not possible.
    """
    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        # Its text begins with the number.
        raise ConfigError(f"the kernel refuses: {_why(error)}") from error
    except OSError as error:
        raise ConfigError(f"the kernel cannot be asked by netlink: {error}") from error


def allowed(kernel: IPRoute) -> bool:
    """Tell whether this process may change addresses and links here."""
    try:
        kernel.link(
            "set", index=_LO
        )  # changes nothing, and is asked for CAP_NET_ADMIN all the same
    except NetlinkError as error:
        if error.code != errno.EPERM:
            raise
        return False
    return True


def addresses(kernel: IPRoute, version: int) -> list[InterfaceAddress]:
    """Every address of one family that this host has."""
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
    """The interface, if any, whose subnet the address lies in: others may have it there."""
    for one in held:
        if not one.whole and address in ip_interface(f"{one.address}/{one.prefix}").network:
            return one
    return None


def find_link(kernel: IPRoute, name: str) -> tuple[int, bool] | None:
    """The index of a link and whether it is ours; None when there is none of that name."""
    indexes = kernel.link_lookup(ifname=name)
    if not indexes:
        return None
    (message,) = kernel.get_links(indexes[0])
    return indexes[0], message.get_attr("IFLA_GROUP") == _GROUP


def make_link(kernel: IPRoute, name: str, kind: str) -> bool:
    """Make a link of ours; tells whether the kernel knows the kind."""
    try:
        kernel.link("add", kind=kind, ifname=name, group=_GROUP, state="up")
    except NetlinkError as error:
        if error.code != errno.EOPNOTSUPP:
            raise
        return False
    kernel.link("set", index=kernel.link_lookup(ifname=name)[0], ifalias=ALIAS)
    return True


def bring_up(kernel: IPRoute, index: int) -> bool:
    """Bring a link up; tells whether it was down."""
    (message,) = kernel.get_links(index)
    if message["flags"] & _UP:
        return False
    kernel.link("set", index=index, state="up")
    return True


def remove_link(kernel: IPRoute, name: str) -> bool:
    """Remove a link of ours that has no address any more, apart from those that links make."""
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
    """Put an address of ours on a link, or set the mark of one that is there.

    Raises:
        ConfigError: the interface has no IPv6.
    """
    how: dict[str, object] = {"IFA_FLAGS": _NOPREFIXROUTE, "IFA_RT_PRIORITY": _METRIC + mark}
    if address.version == 4:
        # A link of ours has an alias that tells people whose it is; lo is not ours.
        how |= {"scope": _SCOPE_HOST, "label": _LO_LABEL if name == LOOPBACK else name}
    else:
        # IPv6 knows no host scope. Deprecated, nothing of this host takes it for its source
        # address (RFC 6724 §5, rule 3); it is accepted at all the same.
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
    """Take an address off its link; it may be gone."""
    with suppress(NetlinkError):
        kernel.addr("del", index=held.index, address=str(held.address), prefixlen=held.prefix)


def _why(error: NetlinkError) -> str:
    if error.code == errno.EPERM:
        return (
            "this needs CAP_NET_ADMIN; or let isthmus agent setup-interface do it as root, before"
        )
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
    while grown:  # at most as often as links lie upon each other
        masters = {links[index].master for index in grown}
        above = {link.index for link in links.values() if link.below in grown}
        grown = ((masters | above) & links.keys()) - found
        found |= grown
    return {links[index].name: index for index in sorted(found)}


def _link(message: object) -> _Link | None:
    """What matters about a link; None for the loopback, which is nobody's uplink."""
    get = message.get_attr  # type: ignore[attr-defined]  # pyroute2 has no types
    if message["ifi_type"] == _LOOPBACK:  # type: ignore[index]
        return None
    kind = message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or ""  # type: ignore[attr-defined]
    paired = kind in _PAIRS
    # What it is built upon is in another namespace: a container's way out, by macvlan or VLAN.
    elsewhere = get("IFLA_LINK_NETNSID") is not None and not paired
    tunnel = kind in _TUNNELS or (kind == _TUN and message["ifi_type"] != _ETHERNET)  # type: ignore[index]
    # Every virtual kind says which; sysfs, of another namespace in a container, is not asked.
    physical = bool(get("IFLA_PARENT_DEV_NAME")) or not kind
    return _Link(
        index=message["index"],  # type: ignore[index]
        name=get("IFLA_IFNAME"),
        outward=physical or tunnel or elsewhere,
        master=get("IFLA_MASTER") or 0,
        below=0 if elsewhere or paired else get("IFLA_LINK") or 0,
    )


def _default_names() -> set[str]:
    """The interfaces of all default routes: by file, as by netlink it would take a whole dump."""
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
    """Where the rest of the world is reached: with the next hops that the file leaves out."""
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
    """The index of the interface that an accepted TCP connection came in by; 0 when unknown.

    A connection of this host itself came in by the loopback. Needs no privilege.
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
        return 0  # reset meanwhile
    index = data[_CMSG.size + skip : _CMSG.size + skip + 4]
    return int(struct.unpack("@i", index)[0]) if len(index) == 4 else 0
