"""The model of all connectivity service configurations: networks, and how to reach them.

Created from ConnectivityServiceConfiguration or EgressSelectorConfiguration, used by the
client library. Values only; the code that opens files checks whether they exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from isthmus.text.addresses import IpAddress, IpNetwork, reached
from isthmus.values import HostPort, is_address

CONTROL_PLANE = "controlplane"
#: The seed's name of the control plane; the same network.
MASTER = "master"


class NetworkProtocol(Enum):
    """The protocol of a connectivity server; CUSTOM is a custom dialer."""

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
    """How to reach a network: a protocol and an address.

    Direct has neither ``uds`` nor ``tcp``; ``tls`` is None for a UNIX socket and for plain TCP.
    ``dialer`` names a custom one, with its ``options``.
    """

    protocol: NetworkProtocol
    uds: str = ""
    tcp: HostPort | None = None
    tls: ClientTls | None = None
    dialer: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """One network: its name in lower case, its connection, and its destinations.

    ``where`` is its position in a file, for messages.
    """

    name: str
    connection: NetworkConnection
    cidrs: tuple[IpNetwork, ...] = ()
    hosts: tuple[str, ...] = ()  # names, or suffixes that start with a dot
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
        """Find the network of a destination: the narrowest that names it, or None."""
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
