"""The one model behind every configuration of the connectivity service: networks, and ways to them.

Made from ConnectivityServiceConfiguration or EgressSelectorConfiguration by config/, used by the
client library. Values only; whether files exist is for whoever opens them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from isthmus.text.addresses import IpAddress, IpNetwork, reached
from isthmus.values import HostPort, is_address

CONTROL_PLANE = "controlplane"
#: What the seed calls the control plane; the same network.
MASTER = "master"


class NetworkProtocol(Enum):
    """How a connectivity server is spoken to; CUSTOM is a dialer that somebody else wrote."""

    DIRECT = "Direct"
    HTTP_CONNECT = "HTTPConnect"
    PACKET = "GRPC"  # konnectivity's, and what EgressSelectorConfiguration calls GRPC
    PAYLOAD = "Payload"  # KEP-1281's own
    CUSTOM = "Custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The files of a TLS client; an empty ``ca_bundle`` trusts the system's authorities."""

    ca_bundle: str = ""
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConnection:
    """A way to a network: a protocol, and where it is spoken.

    Direct has neither ``uds`` nor ``tcp``; ``tls`` is None for a UNIX socket and for plain TCP.
    ``dialer`` names a custom one, ``options`` are for it alone.
    """

    protocol: NetworkProtocol
    uds: str = ""
    tcp: HostPort | None = None
    tls: ClientTls | None = None
    dialer: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """One network: its name in lower case, the way there, and the destinations that belong to it.

    ``where`` is the place in a file that says so, for messages.
    """

    name: str
    connection: NetworkConnection
    cidrs: tuple[IpNetwork, ...] = ()
    hosts: tuple[str, ...] = ()  # names, or suffixes that begin with a dot
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectivityConfig:
    """Every network of a configuration, by name."""

    networks: Mapping[str, NetworkConfig]

    def network(self, name: str) -> NetworkConfig | None:
        """Find a network; names are compared without case, and master is the control plane."""
        wanted = name.lower()
        found = self.networks.get(wanted)
        if found is None and wanted in (MASTER, CONTROL_PLANE):
            found = self.networks.get(CONTROL_PLANE if wanted == MASTER else MASTER)
        return found

    def network_of(self, target: HostPort) -> NetworkConfig | None:
        """Find the network that a destination belongs to: the narrowest that names it, or none."""
        if is_address(target.host):
            where = reached(target.host)
            found = self._holding((where.address,)) or self._holding(where.translated)
        else:
            name = target.host.lower().removesuffix(".")
            found = [
                (len(host), network)
                for network in self.networks.values()
                for host in network.hosts
                if name == host or (host.startswith(".") and name.endswith(host))
            ]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def _holding(self, addresses: Sequence[IpAddress]) -> list[tuple[int, NetworkConfig]]:
        return [
            (cidr.prefixlen, network)
            for network in self.networks.values()
            for cidr in network.cidrs
            if addresses and all(address in cidr for address in addresses)
        ]
