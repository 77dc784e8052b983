"""Destinations of the control plane that nodes may reach: only listed ones.

An address has to be listed, alone or within a network. A listed name stands for whatever
the server itself resolves it to; of any other name, only listed addresses may be dialed.
A name therefore never bypasses the list, and exactly the checked addresses are dialed.

    HOST:PORT            a name or an IPv4 address
    [ADDRESS]:PORT       an IPv6 address
    NETWORK/BITS:PORT    every address of a network
    [NETWORK/BITS]:PORT  the same of IPv6
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.gates import CLUSTER_TO_MASTER, NODE_TRAFFIC
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.text.addresses import (
    IpAddress,
    IpNetwork,
    Reached,
    cidr,
    is_ipv4_range,
    plain_address,
    reached,
    reached_address,
)
from isthmus.values import HostPort, is_address

#: Shown instead of a destination if none is listed, or if the feature is off.
UNLISTED = "(unlisted)"
BY_GATE = "(gate)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A listed destination: either a name or addresses, and a port."""

    port: int
    name: str = ""
    network: IpNetwork | None = None

    def __str__(self) -> str:
        """As typed."""
        if self.network is None:
            return f"{self.name}:{self.port}"
        alone = self.network.prefixlen == self.network.max_prefixlen
        host = str(self.network.network_address if alone else self.network)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision on a request.

    ``target`` is what to dial instead of the request, spelled as listed; None: denied.
    ``by`` is the destination that permits it, or None if that depends on the addresses of
    ``target``, a name.
    """

    target: HostPort | None = None
    by: Destination | None = None


DENIED = Ruling()


class Destinations:
    """The listed destinations."""

    def __init__(self, listed: Iterable[Destination] = ()) -> None:
        self._listed = tuple(listed)
        self._names = {(_plain_name(it.name), it.port): it for it in self._listed if it.name}
        self._networks: dict[int, list[tuple[IpNetwork, Destination]]] = {}
        for each in self._listed:
            if each.network is not None:
                self._networks.setdefault(each.port, []).append((each.network, each))

    def __len__(self) -> int:
        return len(self._listed)

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._listed)

    def judge(self, asked: HostPort) -> Ruling:
        """Decide on a node's request, before resolving anything."""
        if is_address(asked.host):
            where = reached(asked.host)
            by = self._covering(where, asked.port)
            if by is None:
                return DENIED
            return Ruling(target=HostPort(str(where.address), asked.port), by=by)
        by = self._names.get((_plain_name(asked.host), asked.port))
        if by is not None:
            # As listed: with or without a final dot, a resolver may find another host.
            return Ruling(target=HostPort(by.name, by.port), by=by)
        if asked.port in self._networks:
            return Ruling(target=asked)
        return DENIED  # no address of this name could be listed, so it is not resolved

    def covering(self, host: str, port: int) -> Destination | None:
        """The destination that lists an address, not a name; None if none does."""
        if "%" in host:  # with a zone its meaning depends on the interface
            return None
        return self._covering(reached(host), port)

    def _covering(self, where: Reached, port: int) -> Destination | None:
        own = self._listing(where.address, port)
        if own is not None or not where.translated:
            return own
        # The translator's meaning is unknown: all of them have to be listed.
        found = [self._listing(each, port) for each in where.translated]
        return found[0] if None not in found else None

    def _listing(self, address: IpAddress, port: int) -> Destination | None:
        listed = self._networks.get(port, ())
        return next((by for network, by in listed if address in network), None)


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".")


FLAG = "--allowed-destination"
MAX_DESTINATIONS = 1000
_EXAMPLE = "localhost:6443, 10.0.0.0/28:6443 or [fd00::/64]:6443"
_CIDR = re.compile(r"(?:\[([0-9A-Fa-f:.]+/[0-9]{1,3})\]|([0-9.]+/[0-9]{1,2}))", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings(SettingsBlock):
    """What nodes may reach; ``check()`` checks it."""

    GO: ClassVar = OURS

    allowed_destination: tuple[str, ...] = option(
        (),
        help="Address and port of the control plane that nodes may reach through their agents: a "
        "name, an address or a network; nothing else can be reached, and nothing at all without "
        f"{CLUSTER_TO_MASTER}",
        repeat=True,
        group=NODE_TRAFFIC,
        metavar="HOST|CIDR:PORT",
    )

    @property
    def destinations(self) -> Destinations:
        """The listed destinations.

        Raises:
            ConfigError: an entry is invalid.
        """
        return parse_destinations(self.allowed_destination)

    def check(self, *, on: bool) -> list[str]:
        """Check the destinations; returns warnings about probably unintended ones.

        Raises:
            ConfigError: names the invalid one and says why.
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
        ConfigError: an entry is invalid.
    """
    if len(texts) > MAX_DESTINATIONS:
        raise ConfigError(f"{FLAG}: more than {MAX_DESTINATIONS} destinations")
    return Destinations(dict.fromkeys(map(parse_destination, texts)))


def parse_destination(text: str) -> Destination:
    """Read one destination.

    Raises:
        ConfigError: invalid.
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
    # For the port alone, whose messages are the same everywhere.
    return Destination(network=network, port=HostPort.parse(f"any:{port}").port)
