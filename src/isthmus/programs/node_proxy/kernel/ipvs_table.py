"""What ipvs mode asks of a table of virtual servers; the kernel's own is ipvs_netlink.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    KernelServer,
    ServerKey,
)
from isthmus.programs.node_proxy.rules.model import IpFamily


class NoIpvsError(ApplyError):
    """The kernel has no IPVS."""

    def __init__(self) -> None:
        super().__init__("the kernel has no IPVS")


class VirtualServers(Protocol):
    """A table of virtual servers, in a ``with`` block; blocks."""

    def __enter__(self) -> object:
        """Open it."""

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def servers(self, family: IpFamily) -> list[KernelServer]:
        """All of a family."""

    def destinations(self, key: ServerKey) -> Mapping[IpvsDestination, DestinationState]:
        """Those of one server."""

    def apply(self, command: IpvsCommand) -> None:
        """Carry a command out."""

    def set_timeouts(self, *, tcp_s: int, tcp_fin_s: int, udp_s: int) -> None:
        """Set the table's timeouts."""
