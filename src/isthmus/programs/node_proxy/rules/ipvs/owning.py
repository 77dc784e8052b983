"""Which virtual servers are ours: those that our own sets tell of.

The kernel keeps no note with a virtual server, and others may have some, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.programs.node_proxy.rules.ipvs.servers import KernelServer
from isthmus.programs.node_proxy.rules.ipvs.sets import NODE_PORTS, IpSet
from isthmus.programs.node_proxy.rules.model import PortProtocol

_ADDRESSED = (IpSet.CLUSTER_IP, IpSet.EXTERNAL_IP, IpSet.EXTERNAL_IP_LOCAL, IpSet.LOAD_BALANCER)


def owned(
    present: Iterable[KernelServer], sets: Mapping[IpSet, frozenset[str]]
) -> list[KernelServer]:
    """Give those of the servers that entries of the sets are about."""
    places = {entry for each in _ADDRESSED for entry in sets.get(each, ())}
    ports = {
        (protocol, _port(entry))
        for protocol, (every, _) in NODE_PORTS.items()
        for entry in sets.get(every, ())
    }
    return [each for each in present if _is_ours(each, places, ports)]


def _is_ours(each: KernelServer, places: set[str], ports: set[tuple[PortProtocol, str]]) -> bool:
    key = each.server.key
    place = f"{key.address},{key.protocol.value}:{key.port}"
    return place in places or (key.protocol, str(key.port)) in ports


def _port(entry: str) -> str:
    """The port of a node port's entry: a bare number, or the end of address and protocol."""
    return entry.rpartition(":")[2]
