"""Which route a name gets, and which backend comes first."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from isthmus.programs.sni_router.rules import (
    FAILED_FOR_S,
    Backends,
    Found,
    Miss,
    ProxyOut,
    RoutingTable,
    SniRoute,
)
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import IpPort, Tlv

BACKENDS = (HostPort("10.0.0.1", 1), HostPort("10.0.0.2", 1), HostPort("10.0.0.3", 1))
A, B, C = BACKENDS


def route(name: str, *hosts: str, alpn: tuple[str, ...] = ()) -> SniRoute:
    return SniRoute(name=name, hosts=hosts, alpn=alpn, backends=(A,))


TABLE = (
    route("exact", "api.example.com"),
    route("wild", "*.example.com"),
    route("deep", "*.dev.example.com", "example.com"),
    route("h2", "x.example.com", alpn=("h2",)),
    route("own", "y.example.com", alpn=("isthmus/1", "h2")),
    route("rest", "y.example.com"),
    route("fallback"),
)


def found(name: str, *alpn: str, default: SniRoute | None = None) -> tuple[str, str] | Miss:
    it = RoutingTable(TABLE, default).find(name, alpn)
    return it if isinstance(it, Miss) else (it.route.name, it.why)


@pytest.mark.parametrize(
    ("name", "alpn", "expected"),
    [
        ("api.example.com", (), ("exact", "it is exactly api.example.com")),
        ("API.Example.COM.", (), ("exact", "it is exactly api.example.com")),
        ("b.example.com", ("h2",), ("wild", "it matches *.example.com")),
        ("a.dev.example.com", (), ("deep", "it matches *.dev.example.com")),
        ("dev.example.com", (), ("wild", "it matches *.example.com")),
        ("example.com", (), ("deep", "it is exactly example.com")),
        ("x.example.com", ("h2",), ("h2", "it is exactly x.example.com, and the client offers h2")),
        ("x.example.com", ("http/1.1",), Miss.NO_PROTOCOL),
        ("x.example.com", (), Miss.NO_PROTOCOL),
        (
            "y.example.com",
            ("h2", "isthmus/1"),
            ("own", "it is exactly y.example.com, and the client offers isthmus/1"),
        ),
        ("y.example.com", ("http/1.1",), ("rest", "it is exactly y.example.com")),
        ("a.b.dev.example.com", (), Miss.UNKNOWN_NAME),
        ("com", (), Miss.UNKNOWN_NAME),
        ("", (), Miss.NO_NAME),
    ],
)
def test_who_gets_it(name: str, alpn: tuple[str, ...], expected: tuple[str, str] | Miss) -> None:
    assert found(name, *alpn) == expected


def test_the_default_takes_what_nobody_else_does_but_not_a_known_name() -> None:
    default = TABLE[-1]
    assert found("", default=default) == (
        "fallback",
        "no other route matches, and this is the default route",
    )
    assert found("other.org", default=default)[0] == "fallback"  # type: ignore[index]
    assert found("x.example.com", default=default) is Miss.NO_PROTOCOL


def test_what_a_backend_is_told() -> None:
    source, destination = IpPort(ip_address("::1"), 1), IpPort(ip_address("::2"), 2)
    out = ProxyOut(tlvs=(Tlv(0xE0, b"x"),))
    told = out.header(source=source, destination=destination, server_name="A.b")
    assert (told.source, told.destination) == (source, destination)
    assert told.tlvs == (Tlv(2, b"A.b"), Tlv(0xE0, b"x"))
    told = out.header(source=source, destination=destination, server_name="")
    assert told.tlvs == (Tlv(0xE0, b"x"),)
    assert (
        not ProxyOut(authority=False)
        .header(source=source, destination=destination, server_name="a")
        .tlvs
    )


def test_a_table_counts_its_hosts() -> None:
    assert RoutingTable(TABLE).hosts == 6
    assert isinstance(RoutingTable(TABLE, TABLE[0]).find(""), Found)


# Backends.


def test_the_fewest_connections_first() -> None:
    backends = Backends()
    for it in (A, A, B):
        backends.took(it)
    assert backends.in_order(BACKENDS, now=0.0) == [C, B, A]
    backends.let_go(A)
    backends.let_go(A)
    assert backends.in_order(BACKENDS, now=0.0)[2] == B
    assert (backends.count(A), backends.count(B)) == (0, 1)


def test_those_that_are_alike_take_turns() -> None:
    backends = Backends()
    firsts = [backends.in_order(BACKENDS, now=0.0)[0] for _ in range(6)]
    assert sorted(map(str, firsts)) == sorted(map(str, BACKENDS * 2))
    assert backends.in_order((A,), now=0.0) == [A]


def test_who_failed_comes_last_for_a_while() -> None:
    backends = Backends()
    backends.took(A)
    backends.failed(A, now=1.0)
    backends.took(B)
    backends.took(B)
    backends.took(C)
    assert backends.in_order(BACKENDS, now=1.0) == [C, B, A]
    assert backends.in_order(BACKENDS, now=1.0 + FAILED_FOR_S) == [A, C, B]
    backends.failed(C, now=2.0)
    backends.reached(C)
    assert not backends.has_failed(C, now=2.0)
    backends.let_go(A)  # of one that is not counted: nothing
    assert backends.count(A) == 0
