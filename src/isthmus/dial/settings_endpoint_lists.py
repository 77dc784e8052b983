"""The settings of what an agent may dial at all, and reading --endpoint-allow and --endpoint-deny.

    10.0.0.0/8            a network or an address, of either family
    10.0.0.0/8:443        one port of it, or a range such as 8000-8999
    [fd00::/8]:443        the same of IPv6
    *.example.com:443     every name below this one; without *. one name, and * alone is every name
    loopback              127.0.0.0/8 and ::1

What the lists mean is rules_endpoint_lists.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import ClassVar

from isthmus.dial.rules_endpoint_lists import ALL_PORTS, EndpointLists, Entry
from isthmus.dial.rules_policy import Ports
from isthmus.errors import ConfigError
from isthmus.net.rules_metadata import METADATA
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.text.addresses import IpNetwork, cidr, is_ipv4_range
from isthmus.values import HostPort, is_address

ALLOW, DENY = "--endpoint-allow", "--endpoint-deny"
#: Nothing else is denied unless the operator lists it.
DENIED_BY_DEFAULT = METADATA
LOOPBACK = "loopback"
MAX_ENTRIES = 1000
_GROUP = "Targets"
_WORDS = {LOOPBACK: ("127.0.0.0/8", "::1")}
_EXAMPLE = "10.0.0.0/8, 10.0.0.0/8:443, [fd00::/8]:8000-8999 or *.example.com:443"
_PORTS = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", re.ASCII)
_METAVAR = "CIDR|NAME[:PORT[-PORT]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings(SettingsBlock):
    """What an agent may dial; ``endpoint_lists`` says whether it makes sense."""

    PREFIX: ClassVar = "endpoint"
    GO: ClassVar = OURS

    allow: tuple[str, ...] = option(
        (),
        help="Dial only this network, address or name, and what other flags of this kind list; "
        "what is more specific than an --endpoint-deny goes before it",
        repeat=True,
        filled=True,
        group=_GROUP,
        metavar=_METAVAR,
    )
    deny: tuple[str, ...] = option(
        (),
        help="Never dial this network, address or name, besides where clouds keep credentials: "
        f"{', '.join(DENIED_BY_DEFAULT)}",
        repeat=True,
        filled=True,
        group=_GROUP,
        metavar=_METAVAR,
    )

    @property
    def endpoint_lists(self) -> EndpointLists:
        """Both lists, the defaults included.

        Raises:
            ConfigError: an entry cannot be read; one sentence.
        """
        return EndpointLists(
            allow=parse_entries(ALLOW, self.allow),
            deny=parse_entries(DENY, self.deny),
            deny_by_default=parse_entries(DENY, DENIED_BY_DEFAULT),
        )


def parse_entries(flag: str, texts: Sequence[str]) -> list[Entry]:
    """Read the values of a flag.

    Raises:
        ConfigError: one cannot be read; one sentence.
    """
    if len(texts) > MAX_ENTRIES:
        raise ConfigError(f"{flag}: more than {MAX_ENTRIES} entries")
    found: list[Entry] = []
    for text in texts:
        try:
            found += _entries(text)
        except ValueError as error:
            shown = text if len(text) <= 200 else f"{text[:199]}…"
            raise ConfigError(f"{flag} {shown}: {error}") from error
    return found


def _entries(text: str) -> Iterator[Entry]:
    host, ports = _split(text)
    if host in _WORDS:
        for network in _WORDS[host]:
            yield Entry(text=text, network=ip_network(network), ports=ports)
    elif "/" in host or is_address(host):
        yield Entry(text=text, network=_network(host), ports=ports)
    else:
        yield Entry(text=text, name=_name(host), ports=ports)


def _split(text: str) -> tuple[str, Ports]:
    """What is before the ports, without brackets, and the ports."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError(f"is not written as {_EXAMPLE}")
        return host, _ports(rest[1:]) if rest else ALL_PORTS
    if text.count(":") > 1:
        return text, ALL_PORTS  # IPv6 without brackets: there is no port then
    host, colon, ports = text.partition(":")
    return host, _ports(ports) if colon else ALL_PORTS


def _ports(text: str) -> Ports:
    parts = _PORTS.fullmatch(text)
    low, high = (int(parts[1]), int(parts[2] or parts[1])) if parts is not None else (1, 0)
    if not low <= high < 65536:
        raise ValueError(f"{text!r} is not a port from 1 to 65535, nor a range such as 8000-8999")
    return Ports(low, high)


def _network(text: str) -> IpNetwork:
    try:
        network = cidr(text)
    except ValueError as error:
        raise ValueError(str(error) if "/" in text else f"{text} {error}") from error
    if is_ipv4_range(network):
        raise ValueError("is a range of IPv4 addresses, list it as such")
    return network


def _name(text: str) -> str:
    plain = text.lower().removesuffix(".")
    if plain == "*":
        return plain
    inner = plain.removeprefix("*.")
    if "*" in inner:
        raise ValueError("has a * that is not alone, nor before a name as in *.example.com")
    try:
        HostPort(inner, 1)
    except ValueError:
        raise ValueError(f"is not a network, an address or a name such as {_EXAMPLE}") from None
    return plain
