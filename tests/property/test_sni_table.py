"""The SNI router's table against the same four steps written down once more, the slow way."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.programs.sni_router.rules import (
    AskedConnection,
    Found,
    Miss,
    RoutingTable,
    SniRoute,
    reasons,
)
from isthmus.programs.sni_router.settings_routes import parse
from isthmus.text.addresses import IpAddress
from isthmus.text.go_yaml import to_yaml

HEAD = {"apiVersion": "isthmus.dev/v1alpha1", "kind": "SNIRoutes"}
HOSTS = ("a.x", "b.x", "*.x", "x")
NETWORKS = ("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "2001:db8::/32")

few = {"max_size": 2, "unique": True}
route = st.fixed_dictionaries(
    {"backends": st.just(["1.2.3.4:1"])},
    optional={
        "hosts": st.lists(st.sampled_from(HOSTS), min_size=1, **few),  # type: ignore[arg-type]
        "alpn": st.lists(st.sampled_from(["h2", "h3"]), min_size=1, **few),  # type: ignore[arg-type]
        "tlv": st.lists(st.sampled_from(["s", "t"]), min_size=1, **few),  # type: ignore[arg-type]
        "allowedCIDRs": st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=3, unique=True),
    },
)
documents = st.lists(route, min_size=1, max_size=6)
sources = st.sampled_from(["10.1.2.3", "10.1.9.9", "10.9.9.9", "8.8.8.8", "2001:db8::7", "fd00::1"])


def narrowest(route: SniRoute, source: IpAddress) -> int:
    fit = [it.prefixlen for it in route.allowed_cidrs if source in it]
    return max(fit, default=-1) if route.allowed_cidrs else 0


def slow(table: RoutingTable, name: str, alpn: str, tlv: bytes | None, source: IpAddress) -> str:
    """The name of the route, or of the miss."""
    routes: Sequence[SniRoute] = table.routes
    default = table.default
    if any(it.tlv for it in routes):
        if tlv is not None and not any(tlv in it.tlv for it in routes):
            return Miss.UNKNOWN_TLV.name
        default = default if tlv is None else None
        routes = [it for it in routes if (tlv in it.tlv if tlv is not None else not it.tlv)]
    for host in (name, "*." + name.partition(".")[2], None):
        every_name = [it for it in routes if it.tlv and not it.hosts]
        named = [it for it in routes if host in it.hosts] if host else every_name
        if named:
            break
    else:
        if default is not None:
            allowed = narrowest(default, source) >= 0
            return default.name if allowed else Miss.NOT_ALLOWED.name
        return Miss.UNKNOWN_NAME.name if name else Miss.NO_NAME.name
    named = [it for it in named if alpn in it.alpn] or [it for it in named if not it.alpn]
    if not named:
        return Miss.NO_PROTOCOL.name
    best = max(named, key=lambda it: narrowest(it, source))
    return best.name if narrowest(best, source) >= 0 else Miss.NOT_ALLOWED.name


def read(document: list[dict[str, object]], *, has_default: bool = False) -> RoutingTable:
    """The table of those routes that do not clash with one before them."""
    kept: list[dict[str, object]] = []
    table = RoutingTable(())
    for index, each in enumerate(document):
        trial: dict[str, object] = {**HEAD, "routes": [*kept, {"name": f"r{index}", **each}]}
        if has_default:
            trial["default"] = f"r{index}" if not kept else str(kept[0]["name"])
        with contextlib.suppress(ConfigError):
            table = parse(to_yaml([trial]), "f")
            kept.append({"name": f"r{index}", **each})
    return table


@given(
    documents,
    st.sampled_from(["", "a.x", "b.x", "c.x", "x", "y"]),
    st.sampled_from(["h2", "h3", "h4"]),
    st.sampled_from([None, b"s", b"t", b"u", b""]),
    sources.map(ip_address),
    st.booleans(),
)
def test_the_table_finds_what_its_steps_say(
    document: list[dict[str, object]],
    name: str,
    alpn: str,
    tlv: bytes | None,
    source: IpAddress,
    has_default: bool,
) -> None:
    table = read(document, has_default=has_default)
    found = table.find(name, (alpn,), tlv=tlv, source=source)
    expected = slow(table, name, alpn, tlv, source)
    assert (found.route.name if isinstance(found, Found) else found.name) == expected
    # Whoever asks why is told the same, of every route.
    told = dict(
        (route.name, why)
        for route, why in reasons(table, AskedConnection(name, (alpn,), tlv, source))
    )
    assert told.keys() == {it.name for it in table.routes}
    assert [it for it, why in told.items() if why.startswith("yes: ")] == [
        it.name for it in table.routes if it.name == expected
    ]


@given(st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=3, unique=True), sources)
def test_a_source_is_never_joined_where_it_is_not_allowed(cidrs: list[str], source: str) -> None:
    table = read([{"hosts": ["a.x"], "backends": ["1.2.3.4:1"], "allowedCIDRs": cidrs}])
    allowed = any(ip_address(source) in ip_network(each) for each in cidrs)
    found = table.find("a.x", source=ip_address(source))
    assert isinstance(found, Found) is allowed
    if isinstance(found, Found):
        assert found.network is not None and ip_address(source) in found.network
