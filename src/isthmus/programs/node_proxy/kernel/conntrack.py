"""Deletes conntrack entries that send UDP packets to removed endpoints.

A UDP flow never ends: a client that keeps its port stays with its first endpoint as long as it
sends. Which entries are stale is computed from the view; the kernel is asked by netlink. pyroute2
would take 0.57 ms per entry instead of 0.06 (median of five reads of 972 entries; 0.58 instead of
0.10 for 199 of IPv6), and a node has thousands; the ``conntrack`` program is not on every node.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.netlink import (
    ACK,
    DUMP,
    NESTED,
    NETFILTER,
    Netlink,
    attribute,
    attributes,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol, ServiceView

# linux/netlink.h, nfnetlink.h, nfnetlink_conntrack.h
_GET, _DELETE = 0x101, 0x102  # NFNL_SUBSYS_CTNETLINK << 8, with IPCTNL_MSG_CT_*
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_PROTO_NUM, _SRC_PORT, _DST_PORT = 1, 2, 3
_FILTER_ORIG_FLAGS, _FILTER_PROTO_NUM = 1, 1 << 3
_GENERIC = struct.Struct("=BBH")
_ADDRESSES = {  # the attributes of source and destination, and the format of addresses
    IpFamily.IPV4: (1, 2, socket.AF_INET),
    IpFamily.IPV6: (3, 4, socket.AF_INET6),
}
_ATTEMPTS = 5

AddressPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class UdpFlow:
    """A UDP conntrack entry: the original destination, and the endpoint that replies.

    ``handle`` identifies the entry in the kernel.
    """

    to: AddressPort
    behind: AddressPort
    handle: bytes = b""


def stale_flows(view: ServiceView, flows: Iterable[UdpFlow]) -> list[UdpFlow]:
    """The entries for UDP ports of the view that lead to none of the port's serving endpoints.

    Ports without endpoints are skipped, as in kube-proxy: there is no better destination.
    """
    by_place: dict[AddressPort, frozenset[AddressPort]] = {}
    by_node_port: dict[int, frozenset[AddressPort]] = {}
    for backed in view.ports.values():
        port = backed.port
        serving = frozenset((each.ip, each.port) for each in backed.backends.serving)
        if port.key.protocol is not PortProtocol.UDP or not serving:
            continue
        for ip in (port.cluster_ip, *port.load_balancer_ips, *port.external_ips):
            by_place[ip, port.port] = serving
        if port.node_port:
            by_node_port[port.node_port] = serving

    def is_stale(flow: UdpFlow) -> bool:
        good = by_place.get(flow.to)
        if good is not None and flow.behind not in good:
            return True
        good = by_node_port.get(flow.to[1])
        return good is not None and flow.behind not in good

    return [flow for flow in flows if is_stale(flow)]


def forget_stale_flows(view: ServiceView) -> int:
    """Delete the stale entries of a view from the kernel; returns their number. Blocks.

    Raises:
        ApplyError: the kernel refused.
    """
    try:
        with Netlink(NETFILTER) as kernel:
            table = _Table(kernel, view.family)
            stale = stale_flows(view, table.udp_flows())
            return sum(table.forget(flow) for flow in stale)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ApplyError(f"cannot delete stale UDP conntrack entries: {reason}") from error


class _Table:
    """The kernel's conntrack table of one family."""

    def __init__(self, kernel: Netlink, family: IpFamily) -> None:
        self._kernel = kernel
        self._source, self._destination, self._af = _ADDRESSES[family]
        self._generic = _GENERIC.pack(self._af, 0, 0)

    def udp_flows(self) -> list[UdpFlow]:
        """Read all UDP entries; a table that changes while it is read is read again."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(InterruptedError):
                return list(self._dump())
        return list(self._dump())

    def _dump(self) -> Iterator[UdpFlow]:
        proto = attribute(_PROTO_NUM, bytes([socket.IPPROTO_UDP]))
        wanted = attribute(_TUPLE_ORIG | NESTED, attribute(_TUPLE_PROTO | NESTED, proto))
        # Kernels before 5.8 ignore the filter and send everything: check the protocol below.
        flags = attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", _FILTER_PROTO_NUM))
        body = self._generic + wanted + attribute(_FILTER | NESTED, flags)
        for message in self._kernel.ask(_GET, DUMP, body):
            flow = self._flow(message)
            if flow is not None:
                yield flow

    def _flow(self, message: memoryview) -> UdpFlow | None:
        found = attributes(message[_GENERIC.size :])
        there = attributes(found[_TUPLE_ORIG])
        proto = attributes(there[_TUPLE_PROTO])
        if proto[_PROTO_NUM][0] != socket.IPPROTO_UDP:
            return None
        back = attributes(found[_TUPLE_REPLY])
        handle = attribute(_TUPLE_ORIG | NESTED, bytes(found[_TUPLE_ORIG]))
        for kind in (_ID, _ZONE):  # the id identifies the entry even if its addresses are reused
            if kind in found:
                handle += attribute(kind, bytes(found[kind]))
        return UdpFlow(
            to=self._place(there, proto, self._destination, _DST_PORT),
            behind=self._place(back, attributes(back[_TUPLE_PROTO]), self._source, _SRC_PORT),
            handle=handle,
        )

    def _place(
        self, side: dict[int, memoryview], proto: dict[int, memoryview], address: int, port: int
    ) -> AddressPort:
        packed = attributes(side[_TUPLE_IP])[address]
        return socket.inet_ntop(self._af, packed), int.from_bytes(proto[port], "big")

    def forget(self, flow: UdpFlow) -> bool:
        """Delete an entry; False if it no longer existed."""
        try:
            for _ in self._kernel.ask(_DELETE, ACK, self._generic + flow.handle):
                pass
        except FileNotFoundError:
            return False
        return True
