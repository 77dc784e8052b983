"""The settings of what nodes may reach, and reading --allowed-destination.

    HOST:PORT            a name or an IPv4 address
    [ADDRESS]:PORT       an IPv6 address
    NETWORK/BITS:PORT    every address of a network
    [NETWORK/BITS]:PORT  the same of IPv6

What the list means is rules_destinations.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import ClassVar

from isthmus.dial.rules_destinations import Destination, Destinations
from isthmus.errors import ConfigError
from isthmus.settings.gates import CLUSTER_TO_MASTER, NODE_TRAFFIC
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.text.addresses import cidr, is_ipv4_range, plain_address, reached_address
from isthmus.values import HostPort, is_address

FLAG = "--allowed-destination"
MAX_DESTINATIONS = 1000
_EXAMPLE = "localhost:6443, 10.0.0.0/28:6443 or [fd00::/64]:6443"
_CIDR = re.compile(r"(?:\[([0-9A-Fa-f:.]+/[0-9]{1,3})\]|([0-9.]+/[0-9]{1,2}))", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings(SettingsBlock):
    """What nodes may reach; ``check()`` says whether it makes sense."""

    GO: ClassVar = OURS

    allowed_destination: tuple[str, ...] = option(
        (),
        help="Let nodes reach this address and port of the control plane through their agents: a "
        f"name, an address or a network; nothing else is, and nothing without {CLUSTER_TO_MASTER}",
        repeat=True,
        group=NODE_TRAFFIC,
        metavar="HOST|CIDR:PORT",
    )

    @property
    def destinations(self) -> Destinations:
        """What is listed.

        Raises:
            ConfigError: one cannot be read.
        """
        return parse_destinations(self.allowed_destination)

    def check(self, *, on: bool) -> list[str]:
        """Read the destinations; gives what is allowed, but hardly meant.

        Raises:
            ConfigError: one sentence that says what is wrong with which.
        """
        listed = self.destinations
        warnings = []
        if listed and not on:
            warnings.append(
                f"{FLAG} has no effect: --feature-gates={CLUSTER_TO_MASTER}=true is not set"
            )
        if on and not listed:
            warnings.append(
                f"{CLUSTER_TO_MASTER} is on and no {FLAG} is given: nodes can reach nothing"
            )
        warnings += [
            f"{FLAG} {each} lets nodes reach that port of every host that this server can reach"
            for each in listed
            if each.network is not None and each.network.prefixlen == 0
        ]
        return warnings


def parse_destinations(texts: Sequence[str]) -> Destinations:
    """Read the values of --allowed-destination.

    Raises:
        ConfigError: one cannot be read; one sentence.
    """
    if len(texts) > MAX_DESTINATIONS:
        raise ConfigError(f"{FLAG}: more than {MAX_DESTINATIONS} destinations")
    return Destinations(dict.fromkeys(map(parse_destination, texts)))


def parse_destination(text: str) -> Destination:
    """Read one destination.

    Raises:
        ConfigError: it is none; one sentence.
    """
    try:
        return _destination(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else f"{text[:199]}…"
        raise ConfigError(f"{FLAG} {shown}: {error}") from error


def _destination(text: str) -> Destination:
    if "/" in text:
        return _network(text)
    if text.rpartition(":")[2] == "" or ":" not in text:
        raise ValueError(f"has no port, list it as {_EXAMPLE}")
    read = HostPort.parse(text)
    if not is_address(read.host):
        return Destination(name=read.host, port=read.port)
    address = plain_address(read.host)
    if address != reached_address(read.host):
        raise ValueError(f"{address} is any address of a host and none to dial")
    if address != ip_address(read.host):
        raise ValueError(f"is an IPv4 address, list it as {address}:{read.port}")
    return Destination(network=ip_network(address), port=read.port)


def _network(text: str) -> Destination:
    host, _, port = text.rpartition(":")
    found = _CIDR.fullmatch(host)
    if found is None:
        raise ValueError(f"is not a network and a port, list it as {_EXAMPLE}")
    written = found[1] or found[2]
    try:
        network = cidr(written)
    except ValueError as error:
        raise ValueError(f"{written} {error}") from error
    if is_ipv4_range(network):
        raise ValueError("is a range of IPv4 addresses, list it as such")
    # For the port alone, whose sentences are the same everywhere.
    return Destination(network=network, port=HostPort.parse(f"any:{port}").port)
