"""Reading a range of addresses, strictly: as people write them, and as what they mean."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

_PREFIX = re.compile(r"[^/%]+(/[0-9]{1,3})?", re.ASCII)


def cidr(text: str) -> IPv4Network | IPv6Network:
    """Read a network or an address; ipaddress would take netmasks and zones too.

    Raises:
        ValueError: it is none; a clause that goes behind the text.
    """
    try:
        if not _PREFIX.fullmatch(text):
            raise ValueError
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError("is not a network such as 10.0.0.0/8, nor an address") from None
    if network.network_address != ip_address(text.partition("/")[0]):
        raise ValueError(f"has bits below its prefix, did you mean {network}?")
    return network
