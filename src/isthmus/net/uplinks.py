"""Which interfaces lead out of this host, and by which of them a connection came in.

An uplink is an interface that a default route leads through, a physical device, or a tunnel from
another host; with it goes whatever is built on top of it: its bond, bridge or VLAN. Imports
pyroute2, which takes its time: import this module only where it is used.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute, NetlinkError

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
