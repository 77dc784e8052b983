"""Addresses and links of this host, by netlink: what is there, whose it is, making and removing.

What we make is marked where anybody can read it without privilege, and where it is set in the same
moment: a link has a group of ours (and an alias, for people), an address has a metric of ours,
which without a prefix route means nothing else. IPv6 addresses have no label, hence the metric.
Imports pyroute2, which takes its time: import this module only where it is used.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntFlag
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface

from pyroute2 import IPRoute, NetlinkError

from isthmus.errors import ConfigError

Address = IPv4Address | IPv6Address

LOOPBACK = "lo"
ALIAS = "isthmus agent"
_LO_LABEL = "lo:isthmus"
_GROUP = 2025  # of links; that of the KEP
_METRIC = 20250000  # of addresses, with the Mark's bits

# linux/if_addr.h, rtnetlink.h
_NODAD = 0x02
_NOPREFIXROUTE = 0x200
_FOREVER = 0xFFFFFFFF
_SCOPE_HOST = 254
_UP = 0x1
_LO = 1  # its index in every namespace
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


class Mark(IntFlag):
    """What the metric of an address of ours tells."""

    LASTING = 1  # made by setup-interface: no agent takes it away
    RULED = 2  # the rule that drops what enters by an uplink was there before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An address that an interface of this host has."""

    address: Address
    interface: str
    index: int
    prefix: int
    host_scope: bool
    mark: Mark | None  # None: we did not make it

    @property
    def ours(self) -> bool:
        """Whether an agent or setup-interface made it."""
        return self.mark is not None

    @property
    def lasting(self) -> bool:
        """Whether setup-interface made it."""
        return self.mark is not None and Mark.LASTING in self.mark

    @property
    def ruled(self) -> bool:
        """Whether the rule was there when it was made."""
        return self.mark is not None and Mark.RULED in self.mark

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


def addresses(kernel: IPRoute, version: int) -> list[Held]:
    """Every address of one family that this host has."""
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in kernel.get_links()}
    found = []
    for message in kernel.get_addr(family=_FAMILIES[version]):
        text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        metric = message.get_attr("IFA_RT_PRIORITY") or 0
        ours = 0 <= metric - _METRIC <= int(Mark.LASTING | Mark.RULED)
        found.append(
            Held(
                address=ip_address(text),
                interface=names.get(message["index"]) or str(message["index"]),
                index=message["index"],
                prefix=message["prefixlen"],
                host_scope=message["scope"] == _SCOPE_HOST,
                mark=Mark(metric - _METRIC) if ours else None,
            )
        )
    return found


def neighbours_subnet(held: list[Held], address: Address) -> Held | None:
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


def add_address(kernel: IPRoute, index: int, name: str, address: Address, mark: Mark) -> None:
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


def remove_address(kernel: IPRoute, held: Held) -> None:
    """Take an address off its link; it may be gone."""
    with suppress(NetlinkError):
        kernel.addr("del", index=held.index, address=str(held.address), prefixlen=held.prefix)


def _why(error: NetlinkError) -> str:
    if error.code == errno.EPERM:
        return (
            "this needs CAP_NET_ADMIN; or let isthmus agent setup-interface do it as root, before"
        )
    return str(error.args[-1])
