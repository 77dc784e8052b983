"""Sorts the addresses of a name as this host's routes have it (RFC 6724); the rules are core's."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from isthmus.net.rules_address_order import in_order

_ANY_PORT = 9  # nothing is sent: a connected datagram socket only asks the routing table


def ordered(addresses: Sequence[str]) -> list[str]:
    """Put the best address first; one alone costs nothing."""
    if len(addresses) < 2:
        return list(addresses)
    return in_order([(address, _source(address)) for address in addresses])


def _source(address: str) -> str:
    """The address of this host that it would be reached from; empty if no route leads there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # One for each: what it is bound to stays with a datagram socket that connects again.
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect((address, _ANY_PORT))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:  # no route, no such family here, or no more descriptors
        return ""
