"""Cluster networks: which one a target belongs to, and which one an agent is in.

Routing is by the destination's address alone, so networks must not overlap. A name has no address
here: names are resolved where they are dialed, and the client or the agents that serve the name
determine the network; it is never guessed. rules_policy.py decides what may be dialed;
dial/dialers/by_network.py dials.

    NAME=CIDR[,CIDR…][;via=WAY]
    WAY  agents                     through the agents of the network; the default
         direct                     from the server itself
         server:PROTOCOL://HOST:PORT[?OPTION=VALUE&…]     through another server, by mutual TLS
         server:PROTOCOL:///PATH[?half-close=false]       the same at a UNIX socket
         dialer:NAME[?OPTION=VALUE&…]                     by a custom dialer

PROTOCOL is http-connect, konnectivity (its gRPC) or kep (that of KEP-1281). The OPTIONs of a server
are ca, cert, key, name (in its certificate) and half-close; those of a dialer are its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Network
from typing import ClassVar, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from isthmus.dial.rules_agents import Agents, ChoosableLink
from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.errors import ConfigError
from isthmus.net.rules_near import Nearness
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import parse_bool
from isthmus.text.addresses import (
    IpAddress,
    IpNetwork,
    as_ipv4,
    is_ipv4_range,
    plain_network,
    reached,
)
from isthmus.text.addresses import cidr as parse_cidr
from isthmus.text.suggestions import nearest
from isthmus.values import HostPort, is_address

_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNetwork:
    """A named set of addresses, and how to reach it; ``via`` None is through its agents.

    ``keeps_half_close`` is False for a server that does not preserve half-closes, as
    konnectivity's; None: detected.
    """

    name: str
    cidrs: tuple[IpNetwork, ...]
    via: NetworkConnection | None = None
    keeps_half_close: bool | None = None

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.cidrs))})"

    def holds(self, host: str) -> bool:
        """Whether an address, not a name, is in the network."""
        where = reached(host)
        if any(where.address in it for it in self.cidrs):
            return True
        return bool(where.translated) and all(
            any(each in it for it in self.cidrs) for each in where.translated
        )


@dataclass(frozen=True, slots=True)
class Nowhere:
    """A target has no network to be dialed in; ``why`` is the reason."""

    why: str


class Networks:
    """The networks of a server; each address is in at most one of them."""

    def __init__(self, networks: Iterable[ClusterNetwork]) -> None:
        """Build the set of networks.

        Raises:
            ValueError: two have the same name or share addresses; the message names both.
        """
        self._by_name: dict[str, ClusterNetwork] = {}
        # By version and prefix length, longest first; few networks have few lengths.
        self._tables: dict[tuple[int, int], dict[int, ClusterNetwork]] = {}
        for network in networks:
            if network.name in self._by_name:
                raise ValueError(f"network {network.name} is defined twice")
            self._check_overlaps(network)
            self._by_name[network.name] = network
            for inside in network.cidrs:
                table = self._tables.setdefault((inside.version, inside.prefixlen), {})
                bits = inside.max_prefixlen - inside.prefixlen
                table[int(inside.network_address) >> bits] = network

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ClusterNetwork]:
        return iter(self._by_name.values())

    def __str__(self) -> str:
        shown = [str(network) for network in list(self)[:_MOST_SHOWN]]
        more = len(self) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def _check_overlaps(self, new: ClusterNetwork) -> None:
        for cidr in new.cidrs:
            if isinstance(cidr, IPv6Network) and is_ipv4_range(cidr):
                raise ValueError(
                    f"{cidr} of network {new.name} is a range of IPv4 addresses, list it as"
                    f" {as_ipv4(cidr)}"
                )
        seen = [(network, cidr) for network in self for cidr in network.cidrs]
        for cidr in new.cidrs:
            for other, theirs in seen:
                if cidr.version == theirs.version and cidr.overlaps(theirs):
                    raise ValueError(
                        f"{cidr} of network {new.name} and {theirs} of network {other.name}"
                        " overlap, and a destination is routed by its address alone"
                    )
            seen.append((new, cidr))

    def named(self, name: str) -> ClusterNetwork | None:
        """Find a network by its name, without regard to case."""
        return self._by_name.get(name.lower())

    def holding(self, host: str) -> ClusterNetwork | None:
        """Find the network of an address, which must not be a name."""
        where = reached(host)
        found = self._holding(where.address)
        if found is None and where.translated:
            # The translator's meaning is unknown: one network has to contain all of them.
            several = {self._holding(each) for each in where.translated}
            found = several.pop() if len(several) == 1 else None
        return found

    def _holding(self, address: IpAddress) -> ClusterNetwork | None:
        number, bits = int(address), address.max_prefixlen
        for (version, length), table in self._tables.items():
            if version == address.version:
                network = table.get(number >> (bits - length))
                if network is not None:
                    return network
        return None

    @property
    def only(self) -> ClusterNetwork | None:
        """The network, if there is just one."""
        return next(iter(self)) if len(self) == 1 else None

    def route(
        self, target: HostPort, asked: str, claimed: Callable[[str], Collection[str]]
    ) -> ClusterNetwork | Nowhere:
        """Find the network of a target.

        ``asked`` is the network that the client named, or empty; ``claimed(host)`` the names
        of the networks in which agents serve a host name.
        """
        # Clients have their own names: with an egress selector every network here is "cluster".
        wanted = self.named(asked) if asked else None
        if not is_address(target.host):
            return wanted or self.only or self._by_claim(target.host, asked, claimed(target.host))
        found = self.holding(target.host)
        if found is None:
            return Nowhere(f"{target.host} is in none of the networks {self}")
        if wanted is not None and wanted is not found:
            return Nowhere(
                f"{target.host} is in network {found}, and the client asked for {wanted}"
            )
        return found

    def _by_claim(self, host: str, asked: str, claims: Collection[str]) -> ClusterNetwork | Nowhere:
        if len(claims) == 1:
            return self._by_name[next(iter(claims))]
        names = ", ".join(sorted(claims or self._by_name)[:_MOST_SHOWN])
        if claims:
            return Nowhere(f"agents of several networks stand for {host}: {names}")
        said = f"said {asked!r} and not" if asked else "did not say"
        return Nowhere(
            f"{host} is a name, no agent stands for it (host={host}), and the client {said} in"
            f" which of the networks {names} it is"
        )

    def network_of_agent(self, network: str, identifiers: Identifiers) -> ClusterNetwork | Nowhere:
        """Find the one network of an agent.

        The one that it names. If it names none, the only one; with several, the one that contains
        its addresses: some have to be inside, and none may be in another.
        """
        if network:
            found = self.named(network)
            return found or Nowhere(f"there is no network {network!r} here, only {self}")
        if self.only is not None:
            return self.only
        claims = list(_addresses(identifiers))
        touched = [it for it in self if any(_overlap(claim, it.cidrs) for claim in claims)]
        if len(touched) > 1:
            names = ", ".join(it.name for it in touched[:_MOST_SHOWN])
            return Nowhere(
                f"its identifiers have addresses of several networks: {names}; say which one it is"
                " in by --agent-network"
            )
        inside = [it for it in touched if any(_inside(claim, it.cidrs) for claim in claims)]
        if inside:
            return inside[0]
        return Nowhere(
            f"it names no network, and none of {self} has the addresses of its identifiers; say"
            " which one it is in by --agent-network"
        )


def _addresses(identifiers: Identifiers) -> Iterator[IpNetwork]:
    hosts = (host for host in identifiers.host if is_address(host))
    for text in (*identifiers.ipv4, *identifiers.ipv6, *identifiers.cidr, *hosts):
        if "%" in text:
            continue  # a zone is valid on one machine only
        yield plain_network(text)


def _overlap(claim: IpNetwork, cidrs: Sequence[IpNetwork]) -> bool:
    return any(claim.version == cidr.version and claim.overlaps(cidr) for cidr in cidrs)


def _inside(claim: IpNetwork, cidrs: Sequence[IpNetwork]) -> bool:
    return any(_overlap(claim, (cidr,)) and claim.prefixlen >= cidr.prefixlen for cidr in cidrs)


class NetworkBackend(ChoosableLink, Protocol):
    """A link to an agent that may have named its network."""

    @property
    def network(self) -> str:
        """The network that the agent named; empty if none."""


B = TypeVar("B", bound=NetworkBackend)


class AgentsByNetwork(Agents[B]):
    """The links that may carry dials, grouped by network.

    As a whole it answers for all of them, but never chooses: that would cross networks. A link
    without a network is counted here but never chosen; ``strayed(link, why)`` is called for it.
    """

    def __init__(
        self,
        strategies: Sequence[str],
        pick: Callable[[int], int],
        *,
        networks: Networks,
        strayed: Callable[[B, str], None],
        near: Nearness | None = None,
    ) -> None:
        super().__init__(strategies, pick, near)
        self.networks = networks
        self._strayed = strayed
        self._within: dict[str, Agents[B]] = {
            network.name: Agents(strategies, pick, near) for network in networks
        }

    def within(self, network: str) -> Agents[B]:
        """The links into a network, by its name."""
        return self._within[network]

    def standing_for(self, host: str) -> list[str]:
        """The networks with an agent that names this host."""
        return [name for name, agents in self._within.items() if agents.stand_for(host)]

    def add(self, backend: B) -> None:
        super().add(backend)
        found = self.networks.network_of_agent(backend.network, backend.identifiers)
        if isinstance(found, Nowhere):
            self._strayed(backend, found.why)
        elif found.via is not None:
            self._strayed(backend, f"network {found.name} is not reached through agents")
        else:
            self._within[found.name].add(backend)

    def remove(self, backend: B) -> None:
        super().remove(backend)
        for agents in self._within.values():
            agents.remove(backend)

    def choose(self, target: HostPort, tried: Collection[B] = ()) -> B | None:
        """Return None: use ``within`` a network."""
        return None

    def ready_by_strategy(self) -> dict[str, int]:
        """The number of agents that each strategy could choose from, in all networks together."""
        counts: dict[str, int] = {}
        for agents in self._within.values():
            for strategy, count in agents.ready_by_strategy().items():
                counts[strategy] = counts.get(strategy, 0) + count
        return counts


FLAG = "--cluster-network"
METAVAR = "NAME=CIDR[,CIDR...][;via=WAY]"
MAX_NETWORKS = 1000
_GROUP = "Networks and policy"
_EXAMPLE = "east=10.1.0.0/16,fd00:1::/48"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
# Lists may be joined by commas or repeated: each network starts with its name.
_BEGINS = re.compile(r",(?=[A-Za-z0-9._-]+=)", re.ASCII)
_DIALER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_MAX_UDS_BYTES = 107  # struct sockaddr_un, see programs/server/settings.py
PROTOCOLS = {
    "http-connect": NetworkProtocol.HTTP_CONNECT,
    "konnectivity": NetworkProtocol.PACKET,
    "kep": NetworkProtocol.PAYLOAD,
}
_WAYS = ("agents", "direct", "server", "dialer")
_TLS_OPTIONS = {
    "ca": "ca_bundle",
    "cert": "client_cert",
    "key": "client_key",
    "name": "server_name",
}
_HALF_CLOSE = "half-close"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(SettingsBlock):
    """What clients may reach and how; ``check()`` checks it."""

    GO: ClassVar = OURS

    cluster_network: tuple[str, ...] = option(
        (),
        help="Network to serve, by name and addresses; nothing outside of such networks is "
        "served; via is agents (its own, without via), direct, server:URL or dialer:NAME",
        repeat=True,
        group=_GROUP,
        metavar=METAVAR,
        filled=True,
    )
    policy_file: str = option(
        "",
        once=True,
        help="File of rules that dials must satisfy; read again when it changes",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )

    @property
    def networks(self) -> Networks | None:
        """The networks, or None when there is no restriction.

        Raises:
            ConfigError: an entry is invalid, or two overlap.
        """
        return parse_networks(self.cluster_network)

    def check(self) -> None:
        """Read the networks.

        Raises:
            ConfigError: names the invalid one and says why.
        """
        _ = self.networks


def parse_networks(texts: Sequence[str]) -> Networks | None:
    """Read the values of --cluster-network; None without any.

    Raises:
        ConfigError: an entry is invalid, or two overlap.
    """
    if not texts:
        return None
    if not all(texts):
        raise ConfigError(f"{FLAG} is empty: say {METAVAR}, or leave it out")
    whole = ",".join(texts)
    parts = _BEGINS.split(whole)
    if len(parts) > MAX_NETWORKS:
        raise ConfigError(f"{FLAG}: more than {MAX_NETWORKS} networks")
    found = [parse_network(text) for text in parts]
    try:
        return Networks(found)
    except ValueError as error:
        raise ConfigError(f"{FLAG}: {error}") from error


def parse_network(text: str) -> ClusterNetwork:
    """Read one network.

    Raises:
        ConfigError: invalid.
    """
    try:
        return _network(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else f"{text[:199]}…"
        raise ConfigError(f"{FLAG} {shown}: {error}") from error


def _network(text: str) -> ClusterNetwork:
    named, *rest = text.split(";")
    name, equals, cidrs = named.partition("=")
    if not equals:
        raise ValueError(f"is not NAME=CIDR, such as {_EXAMPLE}")
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of at most 63 letters, digits, '.', '_' and '-'")
    make = partial(ClusterNetwork, name=name, cidrs=tuple(map(_cidr, cidrs.split(","))))
    if not rest:
        return make()
    key, equals, way = rest[0].partition("=")
    if key != "via" or not equals or len(rest) > 1:
        raise ValueError("only ;via=WAY may follow the addresses, once")
    return _via(make, way)


def _cidr(text: str) -> IpNetwork:
    text = text.strip()
    try:
        return parse_cidr(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


def _via(make: partial[ClusterNetwork], way: str) -> ClusterNetwork:
    kind, _, rest = way.partition(":")
    if kind not in _WAYS:
        hint = nearest(kind, list(_WAYS))
        raise ValueError(f"via is agents, direct, server:URL or dialer:NAME, not {way!r}{hint}")
    if kind in ("agents", "direct"):
        if way != kind:
            raise ValueError(f"via={kind} takes nothing behind it")
        return make(
            via=NetworkConnection(protocol=NetworkProtocol.DIRECT) if kind == "direct" else None
        )
    if kind == "dialer":
        name, _, query = rest.partition("?")
        if not _DIALER.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a dialer")
        return make(
            via=NetworkConnection(
                protocol=NetworkProtocol.CUSTOM, dialer=name, options=_options(query, None)
            )
        )
    return _via_server(make, rest)


def _via_server(make: partial[ClusterNetwork], url: str) -> ClusterNetwork:
    parts = urlsplit(url)
    protocol = PROTOCOLS.get(parts.scheme)
    if protocol is None or "://" not in url:
        hint = nearest(parts.scheme, list(PROTOCOLS))
        raise ValueError(
            f"a server is http-connect://, konnectivity:// or kep:// with HOST:PORT or /PATH"
            f" behind it, not {url!r}{hint}"
        )
    if parts.fragment:
        raise ValueError("a # has to be written %23 in a URL")
    if not parts.netloc:
        options = _options(parts.query, (_HALF_CLOSE,))
        connection = NetworkConnection(protocol=protocol, uds=_path(parts.path))
    else:
        if parts.path not in ("", "/"):
            raise ValueError(
                f"a URL has HOST:PORT or /PATH, not both: {parts.netloc}{parts.path};"
                f" a UNIX socket has three slashes, {parts.scheme}:///PATH"
            )
        options = _options(parts.query, (*_TLS_OPTIONS, _HALF_CLOSE))
        connection = NetworkConnection(
            protocol=protocol, tcp=HostPort.parse(parts.netloc), tls=_tls(options)
        )
    keeps = parse_bool(options[_HALF_CLOSE]) if _HALF_CLOSE in options else None
    return make(via=connection, keeps_half_close=keeps)


def _path(quoted: str) -> str:
    path = unquote(quoted)
    if len(path) < 2 or "\0" in path or len(path.encode()) > _MAX_UDS_BYTES:
        raise ValueError(f"{path!r} is not the path of a UNIX socket, in {_MAX_UDS_BYTES} bytes")
    return path


def _tls(options: dict[str, str]) -> ClientTls:
    if ("cert" in options) != ("key" in options):
        there, missing = ("cert", "key") if "cert" in options else ("key", "cert")
        raise ValueError(f"{there}= needs {missing}= as well")
    if "name" in options:
        HostPort(options["name"], 1)  # certificates have no other names
    named = {field: options[key] for key, field in _TLS_OPTIONS.items() if key in options}
    return ClientTls(**named)


def _options(query: str, known: Sequence[str] | None) -> dict[str, str]:
    """Read ``key=value&…``; any key if ``known`` is None."""
    found: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, max_num_fields=100):
        if known is not None and key not in known:
            raise ValueError(f"unknown option {key!r}{nearest(key, list(known))}")
        if key in found:
            raise ValueError(f"option {key} is there twice")
        if not value:
            raise ValueError(f"option {key} is empty")
        found[key] = value
    return found
