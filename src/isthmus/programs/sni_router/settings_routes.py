"""Reads the routes of ``isthmus sni-router``: one or more documents of kind SNIRoutes.

Several documents in one file, separated by ``---``, make one table, so that each tenant can have
its own. Text comes in; the caller opens the file and watches it. Imports yaml, which is slow:
import this module only to read a document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Network
from typing import NamedTuple, TypeVar

from isthmus.programs.sni_router.rules import (
    CLUSTER_ID_TLV,
    MAX_TLV_VALUE_BYTES,
    WILDCARD,
    ProxyOut,
    RoutingTable,
    SniRoute,
    normal,
    tlv_text,
)
from isthmus.text.addresses import IpNetwork, as_ipv4, cidr
from isthmus.text.located_yaml import Errors, Fields, Located, compose_all, read_all, short
from isthmus.values import HostPort, is_address
from isthmus.wire.proxy_protocol import AUTHORITY, CRC32C, MAX_HEADER_BYTES, NOOP, Tlv

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "SNIRoutes"
MAX_ROUTES = 5000
MAX_HOSTS = 1000
MAX_BACKENDS = 32
MAX_TLVS = 32
MAX_CONNECTIONS = 1_000_000
#: Twice the limit of HyperShift for one cluster.
MAX_CIDRS = 1000
MAX_TLV_VALUES = 100
#: Routes that differ only in their sources.
MAX_ALIKE = 64
#: Combinations of TLV, host and protocol in one route.
MAX_COMBINATIONS = 20_000
#: Combinations, networks and backends in all routes: YAML anchors can make many from a short text.
MAX_ENTRIES = 200_000
_MAX_ALPN = 16
# With the addresses and a server name, a header stays below the limits of other programs.
_MAX_TLV_BYTES = MAX_HEADER_BYTES // 8

_ROUTE_KEYS = (
    "name", "hosts", "alpn", "tlv", "allowedCIDRs", "backends", "proxyProtocol", "maxConnections",
)  # fmt: skip
# Long enough for a namespace, a dot and the name of a Service.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,125}[A-Za-z0-9])?", re.ASCII)
_TYPE = re.compile(r"0[xX][0-9A-Fa-f]{1,2}|0|[1-9][0-9]{0,2}", re.ASCII)
_WRITTEN_BY_US = {
    AUTHORITY: "is the TLV of the server name; use 'authority' to send that",
    CRC32C: "is the TLV of a checksum, which is not sent",
    NOOP: "is padding",
}
_NO_VALUE = {key: text for key, text in _WRITTEN_BY_US.items() if key != AUTHORITY}
#: What distinguishes connections besides their sources: TLV, host and protocol.
_Key = tuple[bytes | None, str, str]
T = TypeVar("T")


def parse(text: str, name: str) -> RoutingTable:
    """Read the document; ``name`` is its name in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    roots = compose_all(text, name, expected=f"must be a document of kind {KIND}")
    count = _Count(roots[0].errors)
    table = _table([_document(root, count) for root in roots])
    roots[0].errors.raise_any()
    return table


class _Count:
    """Counts the entries of all documents read so far."""

    def __init__(self, errors: Errors) -> None:
        self._errors = errors
        self._entries = 0

    def add(self, read: _Read) -> None:
        """Count a route.

        Raises:
            ConfigError: there are too many; earlier errors are included.
        """
        self._entries += read.entries
        if self._entries > MAX_ENTRIES:
            read.node.error(
                f"exceeds the limit: all routes have more than {MAX_ENTRIES} combinations of tlv,"
                " hosts and alpn, allowedCIDRs and backends together"
            )
            self._errors.raise_any()


class _Document(NamedTuple):
    """One document; its last two fields may be missing."""

    routes: list[_Read]
    default: Located | None
    tlv_type: Located | None


def _document(root: Located, count: _Count) -> _Document:
    keys = ("apiVersion", "kind", "tlvType", "routes", "default")
    found = root.mapping(keys, required=("apiVersion", "kind", "routes"))
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        text = found[key].text() if key in found else None
        if text is not None and text != wanted:
            found[key].error(f"must be {wanted}, not {short(text)}")
    read: list[_Read] = []
    for node in found.nodes("routes", most=MAX_ROUTES):
        read.append(_route(node))
        count.add(read[-1])
    return _Document(read, found.get("default"), found.get("tlvType"))


def _table(documents: Sequence[_Document]) -> RoutingTable:
    read = [each for document in documents for each in document.routes]
    _check_names(read)
    _check_clashes(read)
    default = _default(documents, {each.route.name: each.route for each in read})
    for each in read:
        hostless = each.hosts is None and not each.has_tlv and each.node.is_mapping
        if hostless and (default is None or each.route.name != default.name):
            each.node.error(
                "has no hosts; only the default route and routes with tlv may lack them"
            )
    return RoutingTable([each.route for each in read], default, tlv_type=_tlv_type(documents))


def _default(documents: Sequence[_Document], by_name: Mapping[str, SniRoute]) -> SniRoute | None:
    nodes = [each.default for each in documents if each.default is not None]
    for node in nodes[1:]:
        node.error(f"there is a default route already ({nodes[0].where})")
    route = by_name.get(nodes[0].reference(by_name, "route")) if nodes else None
    if route is not None and route.tlv:
        nodes[0].error(
            f"{short(route.name)} is only for connections with its TLV ({route.where}), and the"
            " default route takes those without"
        )
    return route


def _tlv_type(documents: Sequence[_Document]) -> int:
    """The type of the TLV that is matched; all documents must have the same."""
    said = [
        (CLUSTER_ID_TLV, None) if node is None else (_type(node, _NO_VALUE), node)
        for node in (each.tlv_type for each in documents)
    ]
    for number, node in said:
        other = next((one for one in said if one[0] != number), None)
        if node is not None and other is not None:
            where = "another document" if other[1] is None else other[1].where
            node.error(f"is {number:#04x}, and {other[0]:#04x} in {where}: there can be one")
            break
    return said[0][0]


class _Read(NamedTuple):
    """A route with its location, and those of its hosts; None if there is no such field.

    ``entries`` is the number of table entries it adds, invalid ones included.
    """

    node: Located
    hosts: list[Located] | None
    cidrs: list[Located]
    has_tlv: bool
    entries: int
    route: SniRoute


def _route(node: Located) -> _Read:
    found = node.mapping(_ROUTE_KEYS, required=("name", "backends"))
    _not_empty(found, "hosts", "alpn", "tlv", "backends")
    if "allowedCIDRs" in found and found["allowedCIDRs"].is_list and found["allowedCIDRs"].is_empty:
        found["allowedCIDRs"].error("is empty; leave it out to allow every source")
    hosts = found.nodes("hosts", most=MAX_HOSTS)
    backends = found.nodes("backends", most=MAX_BACKENDS)
    cidrs = found.nodes("allowedCIDRs", most=MAX_CIDRS)
    alpn, tlv = found.nodes("alpn", most=_MAX_ALPN), found.nodes("tlv", most=MAX_TLV_VALUES)
    proxy = found.get("proxyProtocol")
    route = SniRoute(
        name=found.value("name", _name, ""),
        hosts=read_all(hosts, _host),
        alpn=read_all(alpn, _protocol),
        tlv=read_all(tlv, _tlv_value),
        allowed_cidrs=_each_once(cidrs, read_all(cidrs, _cidr)),
        backends=_each_once(backends, read_all(backends, _backend)),
        proxy=None if proxy is None else _proxy(proxy),
        max_connections=found.integer("maxConnections", 0, 1, MAX_CONNECTIONS),
        where=node.where,
    )
    combinations = max(1, len(tlv)) * max(1, len(hosts)) * max(1, len(alpn))
    if combinations > MAX_COMBINATIONS:
        node.error(f"has more than {MAX_COMBINATIONS} combinations of tlv, hosts and alpn")
    return _Read(
        node=node,
        hosts=hosts if "hosts" in found else None,
        cidrs=cidrs,
        has_tlv="tlv" in found,
        entries=combinations + len(cidrs) + len(backends),
        route=route,
    )


def _not_empty(found: Fields, *keys: str) -> None:
    for key in keys:
        if key in found and found[key].is_list and found[key].is_empty:
            found[key].error("is empty")


def _each_once(nodes: Sequence[Located], read: tuple[T, ...]) -> tuple[T, ...]:
    if len(read) == len(nodes):
        seen: set[T] = set()
        for node, value in zip(nodes, read, strict=True):
            if value in seen:
                node.error(f"{short(str(value))} is given twice")
            seen.add(value)
    return read


def _check_names(read: Sequence[_Read]) -> None:
    """Check that names are unique: logs and metrics identify routes by them."""
    first: dict[str, Located] = {}
    for each in read:
        node, route = each.node, each.route
        other = first.setdefault(route.name, node)
        if route.name and other is not node:
            node.error(f"{short(route.name)} is already the name of {other.path} ({other.where})")


def _check_clashes(read: Sequence[_Read]) -> None:
    """Check that each TLV, host and protocol has one route, unless allowedCIDRs differ."""
    before: dict[_Key, list[_Read]] = {}
    compared: set[tuple[str, str]] = set()
    for each in read:
        for node, host in _named(each):
            for key in _keys(each.route, host):
                others = before.setdefault(key, [])
                if _is_taken(node, key, others, each):
                    break
                for other in others:
                    pair = other.route.where, each.route.where
                    if pair not in compared:
                        compared.add(pair)
                        _check_sources(other.route, each)
                others.append(each)


def _named(read: _Read) -> Iterator[tuple[Located, str]]:
    """The valid hosts of a route with their locations."""
    if read.hosts is None and read.route.tlv:
        yield read.node, ""
    for node in read.hosts or ():
        host = normal(str(node.node.value))
        if host in read.route.hosts:
            yield node, host


def _keys(route: SniRoute, host: str) -> Iterator[_Key]:
    for value in route.tlv or (None,):
        for protocol in route.alpn or ("",):
            yield value, host, protocol


def _is_taken(node: Located, key: _Key, others: Sequence[_Read], each: _Read) -> bool:
    """Report routes with this key that allowedCIDRs do not distinguish; whether there are any."""
    cidrs = each.route.allowed_cidrs
    other = next(
        (it for it in others if it is each or not (cidrs and it.route.allowed_cidrs)), None
    )
    if other is None and len(others) < MAX_ALIKE:
        return False
    value, host, protocol = key
    what = short(host) if host else "every name"
    if other is None:
        node.error(f"{what} has more than {MAX_ALIKE} routes that differ only in allowedCIDRs")
        return True
    told = f" for the protocol {short(protocol)}" if protocol else ""
    told += "" if value is None else f" for the TLV {tlv_text(value)}"
    hint = ""
    if cidrs or other.route.allowed_cidrs:
        hint = "; give both allowedCIDRs to distinguish them: 0.0.0.0/0 and ::/0 match all others"
    node.error(
        f"{what} already has a route{told} ({other.route.where}){'' if other is each else hint}"
    )
    return True


def _check_sources(other: SniRoute, each: _Read) -> None:
    """Check that routes that differ only in their sources have no network in common."""
    theirs = frozenset(other.allowed_cidrs)
    if len(each.cidrs) != len(each.route.allowed_cidrs):
        return  # one of them is invalid
    for node, network in zip(each.cidrs, each.route.allowed_cidrs, strict=True):
        if network in theirs:
            node.error(
                f"{network} is already allowed by {short(other.name)}, which is for the same"
                f" connections ({other.where})"
            )


def _proxy(node: Located) -> ProxyOut:
    found = node.mapping(("authority", "tlvs"))
    tlvs = tuple(_tlv(each) for each in found.nodes("tlvs", most=MAX_TLVS))
    if sum(3 + len(tlv.value) for tlv in tlvs) > MAX_HEADER_BYTES // 2:
        found["tlvs"].error(f"are more than {MAX_HEADER_BYTES // 2} bytes together")
    return ProxyOut(authority=found.boolean("authority", True), tlvs=tlvs)


def _tlv(node: Located) -> Tlv:
    found = node.mapping(("type", "value", "hex"), required=("type",))
    if not node.is_mapping:
        return Tlv(0, b"")
    if ("value" in found) == ("hex" in found):
        node.error("must have either value or hex")
    value = found.text("value").encode() if "value" in found else found.value("hex", _hex, b"")
    if len(value) > _MAX_TLV_BYTES:
        node.error(f"has {len(value)} bytes; the maximum is {_MAX_TLV_BYTES}")
    return Tlv(_type(found["type"]) if "type" in found else 0, value)


def _type(node: Located, written_by_us: Mapping[int, str] = _WRITTEN_BY_US) -> int:
    # In the notation of the specification: YAML reads 0xE0 as a number, and "0xE0" as text.
    text = "" if node.is_list or node.is_mapping else str(node.node.value)
    number = int(text, 0) if _TYPE.fullmatch(text) else 256
    if number > 255:
        node.error(f"must be a number from 0x00 to 0xFF, not {node.kind}")
        return 0
    if number in written_by_us:
        node.error(f"{text} {written_by_us[number]}")
    return number


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("is not hexadecimal") from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not a name of at most 127 letters, digits, '.', '_' and '-'")
    return text


def _host(text: str) -> str:
    if not text.isascii():
        raise ValueError("is not ASCII; write it in the form of DNS, with xn--")
    if is_address(text.strip("[]")):
        raise ValueError("is an address, which no client sends as a server name")
    host = normal(text)
    try:
        HostPort(host.removeprefix(WILDCARD), 1)
    except ValueError:
        hint = ", and * stands for the whole first label only" if "*" in host else ""
        raise ValueError(f"is not a host name{hint}") from None
    return host


def _protocol(text: str) -> str:
    if not 0 < len(text.encode()) <= 255 or not text.isascii() or not text.isprintable():
        raise ValueError("is not an ALPN protocol such as h2")
    return text


def _tlv_value(text: str) -> bytes:
    value = text.encode()
    if not 0 < len(value) <= MAX_TLV_VALUE_BYTES:
        raise ValueError(f"is not a value of 1 to {MAX_TLV_VALUE_BYTES} bytes")
    return value


def _cidr(text: str) -> IpNetwork:
    network = cidr(text)
    # Sources are compared as IPv4, even if the socket or the header has a mapped address.
    return as_ipv4(network) if isinstance(network, IPv6Network) else network


def _backend(text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ValueError(f"is not HOST:PORT: {error}") from None
