"""Addresses at which clouds serve machine credentials: denied by default for all dials.

All programs share one list. To use one of these addresses, list exactly that address, or a range
inside one of these, where the program configures its destinations: a wider range, such as
0.0.0.0/0, does not include it.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, ip_network

from isthmus.text.addresses import AddressVerdict, IpAddress, IpNetwork, Weighed, reached, weigh

METADATA = (
    "169.254.0.0/16",  # link-local: AWS, Azure, GCP, OpenStack, DigitalOcean and most others
    "fe80::/10",
    "fd00:ec2::254",  # AWS by IPv6
    "fd00:ec2::23",  # EKS Pod Identity by IPv6
    "fd20:ce::254",  # GCP by IPv6
    "100.100.100.200",  # Alibaba Cloud
    "192.0.0.192",  # Oracle Cloud, as older images have it
    "fd00:c1::a9fe:a9fe",  # Oracle Cloud by IPv6
    "fd00:a9fe:a9fe::1",  # Akamai (Linode) by IPv6
    "fd00:42::42",  # Scaleway by IPv6
    "168.63.129.16",  # Azure's platform: its wire server has the machine's certificates
)
_NETWORKS: tuple[IpNetwork, ...] = tuple(map(ip_network, METADATA))


def is_metadata(network: IpNetwork) -> bool:
    """Whether all of a network is denied by default."""
    return any(_is_inside(network, each) for each in _NETWORKS)


class MetadataGuard:
    """Refuses metadata addresses, except explicitly allowed ones.

    ``literals`` False allows addresses that the program's configuration contains literally:
    only names must not resolve to them.
    """

    def __init__(self, allowed: Iterable[IpNetwork] = (), *, literals: bool = True) -> None:
        self._allowed = tuple(each for each in allowed if is_metadata(each))
        self.literals = literals

    def refuse(self, host: str) -> str:
        """Why an address must not be dialed; empty if it may."""
        found = weigh(reached(host), self._judge)
        if found.verdict is not AddressVerdict.DENIED:
            return ""
        return f"{host} is denied by default: clouds serve credentials at {found.by}"

    def _judge(self, address: IpAddress) -> Weighed[IpNetwork | None]:
        for each in _NETWORKS:
            if address in each and not any(address in it for it in self._allowed):
                return Weighed(AddressVerdict.DENIED, each)
        return Weighed(AddressVerdict.ALLOWED, None)


def _is_inside(network: IpNetwork, of: IpNetwork) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(of, IPv4Network) and network.subnet_of(of)
    return not isinstance(of, IPv4Network) and network.subnet_of(of)


#: For programs without a setting to allow any.
NO_METADATA = MetadataGuard()
#: For programs that dial only what their own settings name.
NO_METADATA_BY_NAME = MetadataGuard(literals=False)
