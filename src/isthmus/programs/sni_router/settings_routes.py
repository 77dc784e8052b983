"""Reading the routes of ``isthmus sni-router``: a document of kind SNIRoutes.

Text comes in; opening the file and reading it again is for the caller. Imports yaml, which takes
its time: import this module only where there is a document to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.programs.sni_router.rules import WILDCARD, ProxyOut, RoutingTable, SniRoute, normal
from isthmus.text.located_yaml import Fields, Located, compose, read_all, short
from isthmus.values import HostPort, is_address
from isthmus.wire.proxy_protocol import AUTHORITY, CRC32C, MAX_HEADER_BYTES, NOOP, Tlv

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "SNIRoutes"
MAX_ROUTES = 5000
MAX_HOSTS = 1000
MAX_BACKENDS = 32
MAX_TLVS = 32
MAX_CONNECTIONS = 1_000_000
_MAX_ALPN = 16
# With the addresses and a server name a header stays below what other programs read.
_MAX_TLV_BYTES = MAX_HEADER_BYTES // 8

_ROUTE_KEYS = ("name", "hosts", "alpn", "backends", "proxyProtocol", "maxConnections")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_TYPE = re.compile(r"0[xX][0-9A-Fa-f]{1,2}|0|[1-9][0-9]{0,2}", re.ASCII)
_WRITTEN_BY_US = {
    AUTHORITY: "is the server name, which 'authority' sends",
    CRC32C: "is a checksum, which is not sent",
    NOOP: "is padding",
}


def parse(text: str, name: str) -> RoutingTable:
    """Read the document; ``name`` is what messages call it, a path as a rule.

    Raises:
        ConfigError: one line for each thing that is wrong, ``name:line:column: field: what``.
    """
    root = compose(text, name, expected=f"a document of kind {KIND} is expected")
    table = _document(root)
    root.errors.raise_any()
    return table


def _document(root: Located) -> RoutingTable:
    keys = ("apiVersion", "kind", "routes", "default")
    found = root.mapping(keys, required=("apiVersion", "kind", "routes"))
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        text = found[key].text() if key in found else None
        if text is not None and text != wanted:
            found[key].error(f"must be {wanted}, not {short(text)}")
    read = [_route(node) for node in found.nodes("routes", most=MAX_ROUTES)]
    _check_names(read)
    _check_hosts(read)
    by_name = {each.route.name: each.route for each in read}
    default = found["default"].reference(by_name, "route") if "default" in found else ""
    for each in read:
        if each.hosts is None and each.node.is_mapping and each.route.name != default:
            each.node.error("has no hosts, which only the default route may lack")
    return RoutingTable([each.route for each in read], by_name.get(default))


class _Read(NamedTuple):
    """A route with its place, and those of its hosts; None when it has no such field."""

    node: Located
    hosts: list[Located] | None
    route: SniRoute


def _route(node: Located) -> _Read:
    found = node.mapping(_ROUTE_KEYS, required=("name", "backends"))
    _not_empty(found, "hosts", "alpn", "backends")
    hosts = found.nodes("hosts", most=MAX_HOSTS)
    backends = found.nodes("backends", most=MAX_BACKENDS)
    proxy = found.get("proxyProtocol")
    route = SniRoute(
        name=found.value("name", _name, ""),
        hosts=read_all(hosts, _host),
        alpn=read_all(found.nodes("alpn", most=_MAX_ALPN), _protocol),
        backends=_each_once(backends, read_all(backends, _backend)),
        proxy=None if proxy is None else _proxy(proxy),
        max_connections=found.integer("maxConnections", 0, 1, MAX_CONNECTIONS),
        where=node.where,
    )
    return _Read(node, hosts if "hosts" in found else None, route)


def _not_empty(found: Fields, *keys: str) -> None:
    for key in keys:
        if key in found and found[key].is_list and found[key].is_empty:
            found[key].error("is empty")


def _each_once(nodes: Sequence[Located], read: tuple[HostPort, ...]) -> tuple[HostPort, ...]:
    if len(read) == len(nodes):
        for index, backend in enumerate(read):
            if backend in read[:index]:
                nodes[index].error(f"{short(str(backend))} is there twice")
    return read


def _check_names(read: Sequence[_Read]) -> None:
    """Each name once: logs and metrics tell routes apart by it."""
    first: dict[str, Located] = {}
    for node, _, route in read:
        other = first.setdefault(route.name, node)
        if route.name and other is not node:
            node.error(f"{short(route.name)} is the name of {other.path} already ({other.where})")


def _check_hosts(read: Sequence[_Read]) -> None:
    """Each host once for each protocol, and once for all others."""
    first: dict[tuple[str, str], SniRoute] = {}
    for _, nodes, route in read:
        known = frozenset(route.hosts)  # without those that are wrong in themselves
        for node in nodes or ():
            host = normal(str(node.node.value))
            for protocol in route.alpn or ("",) if host in known else ():
                other = first.get((host, protocol))
                if other is not None:
                    what = f" for the protocol {short(protocol)}" if protocol else ""
                    node.error(f"{short(host)} is routed{what} already ({other.where})")
                first[host, protocol] = route


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
        node.error("has a value or hex, and not both")
    value = found.text("value").encode() if "value" in found else found.value("hex", _hex, b"")
    if len(value) > _MAX_TLV_BYTES:
        node.error(f"has {len(value)} bytes, at most {_MAX_TLV_BYTES} are possible")
    return Tlv(_type(found["type"]) if "type" in found else 0, value)


def _type(node: Located) -> int:
    # Written as in the specification: YAML reads 0xE0 as a number, and "0xE0" as text.
    text = "" if node.is_list or node.is_mapping else str(node.node.value)
    number = int(text, 0) if _TYPE.fullmatch(text) else 256
    if number > 255:
        node.error(f"must be a number from 0x00 to 0xFF, not {node.kind}")
        return 0
    if number in _WRITTEN_BY_US:
        node.error(f"{text} {_WRITTEN_BY_US[number]}")
    return number


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("is not hexadecimal") from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not a name of at most 63 letters, digits, '.', '_' and '-'")
    return text


def _host(text: str) -> str:
    if not text.isascii():
        raise ValueError("is not ASCII; write it as it is in DNS, with xn--")
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


def _backend(text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ValueError(f"is not HOST:PORT: {error}") from None
