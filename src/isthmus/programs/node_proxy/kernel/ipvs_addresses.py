"""The addresses of Services on this node, which ipvs needs to take their packets in.

They are on ``kube-ipvs0``, a dummy interface, as kube-proxy has them. A kernel without dummy
interfaces has them on ``lo``, with host scope and a metric by which they are known as ours.
Imports pyroute2, which takes its time: import this module only where it is used.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from pyroute2 import IPRoute, NetlinkError

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.rules.model import IpFamily

DEVICE = "kube-ipvs0"
_LO = "lo"
_LO_INDEX = 1
_LO_LABEL = "lo:kube-ipvs"
_METRIC = 20250100
_FAMILIES = {IpFamily.IPV4: socket.AF_INET, IpFamily.IPV6: socket.AF_INET6}
# linux/if_addr.h, rtnetlink.h
_NODAD = 0x02
_NOPREFIXROUTE = 0x200
_FOREVER = 0xFFFFFFFF
_SCOPE_HOST = 254


class ServiceAddresses:
    """Adds, removes and lists addresses of one family in the namespace of the calling thread."""

    def __init__(self, family: IpFamily) -> None:
        self._family = family
        self._on_lo = False

    @property
    def device(self) -> str:
        """Where they are."""
        return _LO if self._on_lo else DEVICE

    def open(self) -> bool:
        """Make the interface unless it is there; False if they have to be on ``lo`` instead.

        Raises:
            ApplyError: the kernel does not let us.
        """
        with _kernel() as kernel:
            if not kernel.link_lookup(ifname=DEVICE):
                try:
                    kernel.link("add", kind="dummy", ifname=DEVICE)
                except NetlinkError as error:
                    # The other family may have made it in the meantime.
                    if error.code not in (errno.EOPNOTSUPP, errno.EEXIST):
                        raise
                    self._on_lo = error.code == errno.EOPNOTSUPP
        return not self._on_lo

    def ours(self) -> set[str]:
        """The addresses of Services that this node has now."""
        with _kernel() as kernel:
            return {address for address, ours in self._list(kernel) if ours}

    def node(self) -> set[str]:
        """The other addresses of this node, without loopback and IPv6 link-local ones."""
        with _kernel() as kernel:
            others = {address for address, ours in self._list(kernel) if not ours}
        found = {text: ip_address(text) for text in others}
        return {
            text
            for text, ip in found.items()
            if not ip.is_loopback and not (ip.version == 6 and ip.is_link_local)
        }

    def change(self, *, add: set[str], remove: set[str]) -> None:
        """Add and remove addresses; what is there or gone already is no matter.

        Raises:
            ApplyError: the kernel refused one.
        """
        if not add and not remove:
            return
        with _kernel() as kernel:
            index = self._index(kernel)
            for address in sorted(add):
                kernel.addr(
                    "replace", index=index, address=address, prefixlen=self._bits, **self._how()
                )
            for address in sorted(remove):
                try:
                    kernel.addr("del", index=index, address=address, prefixlen=self._bits)
                except NetlinkError as error:
                    if error.code != errno.EADDRNOTAVAIL:
                        raise

    def close(self) -> None:
        """Remove every address of ours, and the interface if no other family is on it.

        Raises:
            ApplyError: the kernel refused.
        """
        with _kernel() as kernel:
            self._on_lo = not kernel.link_lookup(ifname=DEVICE)
        self.change(add=set(), remove=self.ours())
        if self._on_lo:
            return
        with _kernel() as kernel:
            index = self._index(kernel)
            left = [
                message
                for message in kernel.get_addr(index=index)
                if not ip_address(message.get_attr("IFA_ADDRESS")).is_link_local
            ]
            if not left:
                kernel.link("del", index=index)

    @property
    def _bits(self) -> int:
        return 32 if self._family is IpFamily.IPV4 else 128

    def _index(self, kernel: IPRoute) -> int:
        if self._on_lo:
            return _LO_INDEX
        found = kernel.link_lookup(ifname=DEVICE)
        if not found:
            raise ApplyError(f"somebody removed the interface {DEVICE}")
        return int(found[0])

    def _how(self) -> dict[str, object]:
        if not self._on_lo:
            return {}
        if self._family is IpFamily.IPV4:
            return {
                "IFA_FLAGS": _NOPREFIXROUTE,
                "IFA_RT_PRIORITY": _METRIC,
                "scope": _SCOPE_HOST,
                "label": _LO_LABEL,
            }
        # IPv6 knows no host scope; deprecated, nothing of this host takes it for its source.
        return {
            "IFA_FLAGS": _NOPREFIXROUTE | _NODAD,
            "IFA_RT_PRIORITY": _METRIC,
            "IFA_CACHEINFO": {"ifa_preferred": 0, "ifa_valid": _FOREVER},
        }

    def _list(self, kernel: IPRoute) -> Iterator[tuple[str, bool]]:
        index = 0 if self._on_lo else self._index(kernel)
        for message in kernel.get_addr(family=_FAMILIES[self._family]):
            text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            marked = (message.get_attr("IFA_RT_PRIORITY") or 0) == _METRIC
            yield str(ip_address(text)), marked or message["index"] == index


@contextmanager
def _kernel() -> Iterator[IPRoute]:
    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        raise ApplyError(f"the kernel refuses an address of a Service: {error}") from error
    except OSError as error:
        raise ApplyError(f"the kernel cannot be asked by netlink: {error}") from error
