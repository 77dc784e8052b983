"""What an agent may dial: a list of allowed and a list of denied destinations.

The most specific matching entry decides: the longer prefix, or the longer suffix of a name,
then the fewer ports; of two equal entries the one that denies, unless it is a default. The
order of entries does not matter.

Both the requested destination and every address that it resolves to are checked: neither may be
denied, and if anything is listed as allowed, one of the two has to be.

    10.0.0.0/8            a network or an address, of either family
    10.0.0.0/8:443        one port of it, or a range such as 8000-8999
    [fd00::/8]:443        the same of IPv6
    *.example.com:443     every name below this one; without *. one name, and * alone is every name
    loopback              127.0.0.0/8 and ::1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network
from typing import ClassVar

from isthmus.dial.rules_policy import Ports
from isthmus.errors import ConfigError
from isthmus.net.rules_metadata import METADATA
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.text.addresses import (
    AddressVerdict,
    IpAddress,
    IpNetwork,
    Weighed,
    cidr,
    is_ipv4_range,
    reached,
    weigh,
)
from isthmus.values import HostPort, is_address

#: Shown if nothing denies the destination, but nothing allows it either.
UNLISTED = "(not allowed)"
ALL_PORTS = Ports(1, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a list: addresses or names, and ports.

    Either ``network`` or ``name`` is given. A name that starts with ``*.`` matches every
    name below it, and ``*`` alone every name. ``text`` is how it was typed.
    """

    text: str
    network: IpNetwork | None = None
    name: str = ""
    ports: Ports = ALL_PORTS

    def rank(self) -> tuple[int, int]:
        """How specific it is; larger is more specific."""
        if self.network is not None:
            reach = self.network.prefixlen
        elif self.name.startswith("*"):
            reach = len(self.name)
        else:
            reach = 1000  # a whole name is shorter than this, and more than any pattern
        return reach, self.ports.low - self.ports.high

    def has_name(self, name: str) -> bool:
        """Whether it matches this name, given in lower case without a final dot."""
        if self.name.startswith("*"):
            return name.endswith(self.name[1:])
        return name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRefusal:
    """Why a destination may not be dialed: the ``entry`` of the list, and a message."""

    entry: str
    why: str


class EndpointLists:
    """Both lists of an agent; each query checks every entry, and is cached."""

    def __init__(
        self,
        *,
        allow: Iterable[Entry] = (),
        deny: Iterable[Entry] = (),
        deny_by_default: Iterable[Entry] = (),
    ) -> None:
        """Build the lists; exactly listing a default denial allows it."""
        deny, deny_by_default = tuple(deny), tuple(deny_by_default)
        self.allow = tuple(dict.fromkeys(allow))
        self.deny = tuple(dict.fromkeys((*deny_by_default, *deny)))
        # The most specific first; of equal ones, the denial first.
        both = [(it, AddressVerdict.DENIED) for it in deny]
        both += [(it, AddressVerdict.ALLOWED) for it in self.allow]
        both += [(it, AddressVerdict.DENIED) for it in deny_by_default]
        ranked = sorted(both, key=lambda it: it[0].rank(), reverse=True)  # a stable sort
        self._networks = [it for it in ranked if it[0].network is not None]
        self._names = [it for it in ranked if it[0].network is None]
        # Cached, because targets repeat.
        self.refuse_address = lru_cache(maxsize=4096)(self._refuse_address)

    def refuse_name(self, name: str, port: int) -> EndpointRefusal | None:
        """Why a name may not be resolved; None: its addresses decide."""
        verdict, by = self._of_name(name, port)
        return (
            _denied(by, name, port) if verdict is AddressVerdict.DENIED and by is not None else None
        )

    def refuse_found(self, name: str, host: str, port: int) -> EndpointRefusal | None:
        """Why an address that a name resolves to may not be dialed."""
        verdict, by = self._of_host(host, port)
        if verdict is AddressVerdict.DENIED and by is not None:
            return _denied(by, host, port)
        allowed = AddressVerdict.ALLOWED in (verdict, self._of_name(name, port)[0])
        return None if allowed or not self.allow else _unlisted(host, port)

    def _refuse_address(self, host: str, port: int) -> EndpointRefusal | None:
        """Why a requested address may not be dialed."""
        verdict, by = self._of_host(host, port)
        if verdict is AddressVerdict.DENIED and by is not None:
            return _denied(by, host, port)
        return (
            _unlisted(host, port) if self.allow and verdict is not AddressVerdict.ALLOWED else None
        )

    def _of_name(self, name: str, port: int) -> tuple[AddressVerdict, Entry | None]:
        plain = name.lower().removesuffix(".")
        for entry, verdict in self._names:
            if entry.ports.low <= port <= entry.ports.high and entry.has_name(plain):
                return verdict, entry
        return AddressVerdict.UNLISTED, None

    def _of_host(self, host: str, port: int) -> tuple[AddressVerdict, Entry | None]:
        found = weigh(reached(host), lambda address: self._of_address(address, port))
        return found.verdict, found.by

    def _of_address(self, address: IpAddress, port: int) -> Weighed[Entry | None]:
        for entry, verdict in self._networks:
            assert entry.network is not None  # these entries have one
            if entry.ports.low <= port <= entry.ports.high and address in entry.network:
                return Weighed(verdict, entry)
        return Weighed(AddressVerdict.UNLISTED, None)


def _denied(by: Entry, host: str, port: int) -> EndpointRefusal:
    return EndpointRefusal(
        entry=by.text, why=f"{by.text} of the agent's --endpoint-deny has {_shown(host, port)}"
    )


def _unlisted(host: str, port: int) -> EndpointRefusal:
    return EndpointRefusal(
        entry=UNLISTED, why=f"the agent's --endpoint-allow does not have {_shown(host, port)}"
    )


def _shown(host: str, port: int) -> str:
    return str(HostPort(host.partition("%")[0], port))


ALLOW, DENY = "--endpoint-allow", "--endpoint-deny"
#: Only these are denied unless the operator lists more.
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
    """What an agent may dial; ``endpoint_lists`` checks it."""

    PREFIX: ClassVar = "endpoint"
    GO: ClassVar = OURS

    allow: tuple[str, ...] = option(
        (),
        help="Network, address or name that may be dialed; with any, nothing else may be; an "
        "entry more specific than an --endpoint-deny overrides it",
        repeat=True,
        filled=True,
        group=_GROUP,
        metavar=_METAVAR,
        common=True,
    )
    deny: tuple[str, ...] = option(
        (),
        help="Network, address or name that is never dialed, besides those where clouds keep "
        "credentials: "
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
            ConfigError: an entry is invalid.
        """
        return EndpointLists(
            allow=parse_entries(ALLOW, self.allow),
            deny=parse_entries(DENY, self.deny),
            deny_by_default=parse_entries(DENY, DENIED_BY_DEFAULT),
        )


def parse_entries(flag: str, texts: Sequence[str]) -> list[Entry]:
    """Read the values of a flag.

    Raises:
        ConfigError: an entry is invalid.
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
    """The part before the ports, without brackets, and the ports."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError(f"is not written as {_EXAMPLE}")
        return host, _ports(rest[1:]) if rest else ALL_PORTS
    if text.count(":") > 1:
        return text, ALL_PORTS  # IPv6 without brackets has no port
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
