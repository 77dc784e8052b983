"""resolv.conf, hosts and nsswitch.conf as their manual pages have them."""

from __future__ import annotations

import pytest

from isthmus.net.rules_names import (
    FILES_THEN_DNS,
    LookupStatus,
    NameSource,
    ResolvConf,
    parse_hosts,
    parse_nsswitch,
    parse_resolv_conf,
)


def test_a_file_as_kubelet_writes_it() -> None:
    conf = parse_resolv_conf(
        "search default.svc.cluster.local svc.cluster.local cluster.local\n"
        "nameserver 10.96.0.10\noptions ndots:5\n"
    )
    assert conf.servers == ("10.96.0.10",) and conf.ndots == 5
    assert conf.questions("api.prod") == (
        "api.prod.default.svc.cluster.local",
        "api.prod.svc.cluster.local",
        "api.prod.cluster.local",
        "api.prod",
    )
    assert conf.questions("api.prod.") == ("api.prod",)
    assert conf.questions("a.b.c.d.e.f")[0] == "a.b.c.d.e.f"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", ResolvConf()),
        ("nameserver ::1\nnameserver fe80::1%eth0", ResolvConf(servers=("::1", "fe80::1%eth0"))),
        ("nameserver 1.1.1.1 # x\n" * 5, ResolvConf(servers=("1.1.1.1",) * 3)),
        ("nameserver one.example\n nameserver 1.1.1.1\n#nameserver 2.2.2.2\n;x", ResolvConf()),
        ("domain Example.COM.\n", ResolvConf(search=("example.com",))),
        ("search a.example\nsearch b.example c.example", ResolvConf(search=("b.example", "c.example"))),  # noqa: E501
        ("search . a..b a.example", ResolvConf(search=("a.example",))),
        ("options timeout:2 attempts:3 rotate", ResolvConf(timeout_s=2, attempts=3, rotate=True)),
        ("options use-vc edns0 no-aaaa", ResolvConf(use_tcp=True, edns=True, ask_ipv6=False)),
        ("options ndots:99 timeout:0 attempts:99", ResolvConf(ndots=15, timeout_s=1, attempts=5)),
        ("options ndots:x timeout:-1 ndots", ResolvConf()),
    ],
)  # fmt: skip
def test_resolv_conf(text: str, meant: ResolvConf) -> None:
    assert parse_resolv_conf(text) == meant


def test_the_domain_of_the_host_is_searched_where_nothing_else_is() -> None:
    assert parse_resolv_conf("nameserver 1.1.1.1", "node1.example.com").search == ("example.com",)
    assert parse_resolv_conf("search", "node1.example.com").search == ()
    assert parse_resolv_conf("", "node1").search == ()


def test_hosts() -> None:
    found = parse_hosts(
        "127.0.0.1\tlocalhost Local\n::1 localhost # the other family\n"
        "# 192.0.2.1 no\nname 192.0.2.2\n192.0.2.3\n192.0.2.4 a.example. a.example\n"
    )
    assert found == {
        "localhost": ("127.0.0.1", "::1"),
        "local": ("127.0.0.1",),
        "a.example": ("192.0.2.4",),
    }


ENDS = frozenset({LookupStatus.SUCCESS})


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", FILES_THEN_DNS),
        ("passwd: files\n# hosts: dns", FILES_THEN_DNS),
        ("hosts:\tdns  files # not the other way round", (NameSource("dns"), NameSource("files"))),
        ("hosts: files\nhosts: dns\n", (NameSource("dns"),)),
        ("hosts:", ()),
        (
            "hosts: files mdns4_minimal [NOTFOUND=return] dns",
            (
                NameSource("files"),
                NameSource("mdns4_minimal", ENDS | {LookupStatus.NOT_FOUND}),
                NameSource("dns"),
            ),
        ),
        (
            "hosts: resolve [!UNAVAIL=return] dns",
            (
                NameSource("resolve", frozenset(LookupStatus) - {LookupStatus.UNAVAILABLE}),
                NameSource("dns"),
            ),
        ),
        ("hosts: files[success=continue]dns",
         (NameSource("files", frozenset()), NameSource("dns"))),
        ("hosts: files [UNAVAIL=return TRYAGAIN=return]",
         (NameSource("files", ENDS | {LookupStatus.UNAVAILABLE, LookupStatus.TRY_AGAIN}),)),
        ("hosts: files [NOTFOUND", (NameSource("[NOTFOUND", frozenset()),)),
        ("hosts: files [WHAT=ever]", (NameSource("[WHAT=ever]", frozenset()),)),
    ],
)  # fmt: skip
def test_nsswitch(text: str, meant: tuple[NameSource, ...]) -> None:
    assert parse_nsswitch(text) == meant


def test_what_only_the_c_library_can_do() -> None:
    assert all(it.is_plain for it in FILES_THEN_DNS)
    for text in ("hosts: sss", "hosts: files [SUCCESS=merge]", "hosts: files [what]"):
        assert not any(it.is_plain for it in parse_nsswitch(text))
