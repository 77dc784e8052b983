"""Why each route takes a connection or leaves it, step by step as rules.py has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isthmus.programs.sni_router.rules import (
    Found,
    Miss,
    RoutingTable,
    Search,
    SniRoute,
    normal,
    tlv_text,
)
from isthmus.text.addresses import IpAddress


class AskedConnection(NamedTuple):
    """What a connection says of itself, and where it comes from; None is not known."""

    server_name: str = ""
    alpn: tuple[str, ...] = ()
    tlv: bytes | None = None
    source: IpAddress | None = None


def reasons(table: RoutingTable, asked: AskedConnection) -> Iterator[tuple[SniRoute, str]]:
    """Each route with a clause: what matched, or the first step that it fell out of."""
    name, alpn, tlv, source = asked
    search = table.search(name, alpn, tlv=tlv, source=source)
    for route in table.routes:
        if isinstance(search.result, Found) and route is search.result.route:
            yield route, f"yes: {search.result.why}"
        else:
            yield route, f"no: {_why_not(table, route, asked, search)}"


def _why_not(table: RoutingTable, route: SniRoute, asked: AskedConnection, search: Search) -> str:
    if table.goes_by_tlv and asked.tlv is not None and asked.tlv not in route.tlv:
        return f"it is not for the TLV {tlv_text(asked.tlv)}"
    if route.tlv and asked.tlv is None:
        values = " or ".join(map(tlv_text, route.tlv[:3]))
        return f"it is only for connections whose TLV {table.tlv_type:#04x} is {values}"
    if route in search.named:
        return _why_not_named(route, asked, search)
    if route is table.default:
        return _why_not_default(asked, search)
    name = normal(asked.server_name)
    if not search.host and not search.named:
        return f"none of its hosts is {name}" if name else "it has hosts, and no name is sent"
    if not route.hosts:
        return f"a route for {search.host} comes before one for every name"
    ours = {host for host in route.hosts if host in (name, f"*.{name.partition('.')[2]}")}
    if ours:
        return f"{search.host} is more specific than {min(ours)}"
    return f"none of its hosts is {name}" if name else "it has hosts, and no name is sent"


def _why_not_named(route: SniRoute, asked: AskedConnection, search: Search) -> str:
    if route not in search.offered:
        if not route.alpn:
            return f"a route for the protocol {search.alpn}, which the client offers, comes first"
        wanted = " or ".join(route.alpn)
        if search.alpn and set(route.alpn) & set(asked.alpn):
            return f"the route for the protocol {search.alpn} comes first in the file"
        return f"the client does not offer {wanted}"
    return _why_not_source(asked, search)


def _why_not_default(asked: AskedConnection, search: Search) -> str:
    if search.host:
        return f"a route for {search.host} comes before the default route"
    return _why_not_source(asked, search)


def _why_not_source(asked: AskedConnection, search: Search) -> str:
    if isinstance(search.result, Miss):
        return f"{asked.source} is in none of its allowedCIDRs"
    return f"the allowedCIDRs of {search.result.route.name} are more specific for {asked.source}"
