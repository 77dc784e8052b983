"""Where clouds keep the credentials of their machines: denied by default wherever we dial.

One list for everybody. Whoever needs one of these addresses lists exactly that address, or a range
inside of one of these, where a program says what may be reached: a range around it, such as
0.0.0.0/0, does not mean it.
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
    """Tell whether all of a network is denied by default."""
    return any(_is_inside(network, each) for each in _NETWORKS)


class MetadataGuard:
    """Refuses metadata addresses, except those that are allowed explicitly.

    ``literals`` False leaves addresses alone that were given as such, by whoever configures the
    program: only names do not lead there.
    """

    def __init__(self, allowed: Iterable[IpNetwork] = (), *, literals: bool = True) -> None:
        self._allowed = tuple(each for each in allowed if is_metadata(each))
        self.literals = literals

    def refuse(self, host: str) -> str:
        """Say why an address is not dialed; empty where it may be."""
        found = weigh(reached(host), self._judge)
        if found.verdict is not AddressVerdict.DENIED:
            return ""
        return f"{host} is denied by default: {found.by} is where clouds keep credentials"

    def _judge(self, address: IpAddress) -> Weighed[IpNetwork | None]:
        for each in _NETWORKS:
            if address in each and not any(address in it for it in self._allowed):
                return Weighed(AddressVerdict.DENIED, each)
        return Weighed(AddressVerdict.ALLOWED, None)


def _is_inside(network: IpNetwork, of: IpNetwork) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(of, IPv4Network) and network.subnet_of(of)
    return not isinstance(of, IPv4Network) and network.subnet_of(of)


#: For whoever has no way to allow any.
NO_METADATA = MetadataGuard()
#: For whoever dials only what its own settings name.
NO_METADATA_BY_NAME = MetadataGuard(literals=False)
