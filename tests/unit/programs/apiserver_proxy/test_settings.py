"""The settings of the apiserver proxy, and a sentence for each way to get them wrong."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.apiserver_proxy.plan import CheckPlan, Checks, ProxyPlan, ThroughPlan
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.settings.options import compose
from isthmus.settings.parsing import load
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

API = HostPort("api.example", 6443)


def settings(**given: Any) -> ApiserverProxySettings:
    return compose(ApiserverProxySettings, **{"upstream": ("api.example:6443",), **given})


def test_the_defaults_are_those_of_hypershift() -> None:
    plan = settings().plan()
    assert plan == ProxyPlan(upstreams=(API,))
    assert plan.listen == (("172.20.0.1", 6443),)
    assert plan.managed == (ip_address("172.20.0.1"),)
    assert plan.check == CheckPlan(
        kind=Checks.HTTPS, path="/version", interval_s=10.0, bounds=Bounds(fall=3, rise=3)
    )
    assert (plan.connect_timeout_s, plan.idle_timeout_s, plan.retries) == (10.0, 600.0, 3)
    assert (plan.max_connections, plan.max_connections_per_source) == (7000, 0)


def test_what_flags_say() -> None:
    plan = settings(
        listen=("[fd00::1]:443", "127.0.0.1:6443", ":7"),
        send_proxy_v2=True,
        proxy_v2_tlv=("0x20=cluster=1", "224="),
        http_proxy="https://u:p@proxy",
        no_proxy=("a", "b"),
        health_check="tcp",
        health_check_statuses=("418",),
    ).plan()
    assert plan.listen == (("fd00::1", 443), ("127.0.0.1", 6443), ("", 7))
    assert plan.managed == (ip_address("fd00::1"),)
    assert plan.proxy_protocol == (Tlv(0x20, b"cluster=1"), Tlv(0xE0, b""))
    assert plan.through is not None
    assert plan.through.proxy.at == HostPort("proxy", 443)
    assert plan.check.kind is Checks.TCP
    assert [plan.check.is_alive(status) for status in (200, 399, 401, 418, 500)] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert settings(manage_address=False).plan().managed == ()


def test_the_flags_of_kubernetes_default_proxy() -> None:
    given = {"listen": ["172.20.0.1:6443"], "http_proxy": ["proxy:3128"], "upstream": ["a:6443"]}
    plan = load(ApiserverProxySettings, given, {"NO_PROXY": "x,y"}).plan()
    assert plan.through == ThroughPlan(
        proxy=ProxyAddress(scheme="http", at=HostPort("proxy", 3128)), no_proxy=("x", "y")
    )


@pytest.mark.parametrize(
    ("no_proxy", "upstream", "proxied"),
    [
        ("", "api.example:6443", True),
        ("example", "api.example:6443", False),
        (".example", "api.example:6443", False),
        ("api.example:443", "api.example:6443", True),
        ("api.example:6443", "api.example:6443", False),
        ("other.example", "api.example:6443", True),
        ("ample", "api.example:6443", True),
        ("10.0.0.0/8", "10.1.2.3:6443", False),
        ("10.0.0.0/8", "11.1.2.3:6443", True),
        ("*", "api.example:6443", False),
        ("kubernetes", "api.example:6443", False),
        ("x.kubernetes.default.svc", "api.example:6443", False),
        ("172.31.0.0/16", "api.example:6443", False),
        ("10.132.0.0/14", "api.example:6443", False),
        ("172.31.0.0/17", "api.example:6443", True),
        ("fd01::/48", "api.example:6443", True),
        ("172.20.0.1", "api.example:6443", False),
        ("172.20.0.0/16", "api.example:6443", False),
        ("172.20.0.1:7443", "api.example:443", False),
        ("172.20.0.1:443", "api.example:443", True),
        ("172.20.0.2", "api.example:6443", True),
        (".internal.example", "api.example:6443", False),
        ("127.0.0.0/8,localhost", "api.example:6443", True),
    ],
)
def test_no_proxy_as_hypershift_reads_it(no_proxy: str, upstream: str, proxied: bool) -> None:
    through = ThroughPlan(
        proxy=ProxyAddress.parse("http://proxy"),
        no_proxy=tuple(filter(None, no_proxy.split(","))),
        networks=("172.31.0.0/16", "10.132.0.0/14"),
    )
    listen = (("172.20.0.1", 7443), ("node.internal.example", 6443), ("127.0.0.1", 6443), ("", 1))
    plan = ProxyPlan(listen=listen, through=through)
    assert (plan.proxy_for(HostPort.parse(upstream)) is not None) is proxied
    assert ProxyPlan(listen=listen).proxy_for(HostPort.parse(upstream)) is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"upstream": ()}, "--upstream is missing"),
    ({"upstream": ("a",)}, "--upstream: 'a' is not HOST:PORT: no port in 'a'"),
    ({"upstream": ("a:1", "a:1")}, '--upstream a:1'),
    ({"upstream": ("172.20.0.1:6443",)},
     '--upstream 172.20.0.1:6443'),
    ({"upstream": ("127.0.0.1:6443",), "listen": (":6443",)},
     '--upstream 127.0.0.1:6443'),
    ({"upstream": tuple(f"a{i}:1" for i in range(65))}, '--upstream: 65'),
    ({"listen": ()}, '--listen'),
    ({"listen": ("172.20.0.1",)},
     "--listen: '172.20.0.1' is not [HOST]:PORT such as 172.20.0.1:6443 or [fd00::1]:6443"),
    ({"listen": ("fd00::1:443",)},
     "--listen: 'fd00::1:443' has an IPv6 address, which needs brackets"),
    ({"listen": ("a b:1",)},
     "--listen: 'a b:1' is not [HOST]:PORT: not a host name or address: 'a b'"),
    ({"listen": (":1", ":1")}, '--listen:  port 1'),
    ({"listen": ("224.0.0.1:1",)}, "--listen 224.0.0.1 is a multicast address; use an address that"
     " is free in your networks, such as one of 10.0.0.0/8 or fd00::/8"),
    ({"uplink_interface": ("none", "eth0")},
     '--uplink-interface=none'),
    ({"uplink_interface": ("lo",)},
     "--uplink-interface lo would drop the connections of this node"),
    ({"uplink_interface": ("a b",)}, "--uplink-interface requires an interface name of at most 15"
     " letters, digits, dots, dashes and underscores, not 'a b'"),
    ({"health_check": "http"},
     "--health-check must be https or tcp or none, not 'http', did you mean https?"),
    ({"health_check_path": "version"},
     "--health-check-path: 'version' is not a path such as /version, percent-encoded"),
    ({"health_check_statuses": ("200",)},
     "--health-check-statuses: '200' is not an HTTP status from 400 to 599"),
    ({"health_check_server_name": "a b"},
     "--health-check-server-name: not a host name or address: 'a b'"),
    ({"health_check_interval_s": 0.0}, "--health-check-interval must be more than 0"),
    ({"health_check_interval_s": -1.0}, "--health-check-interval must not be negative"),
    ({"health_check_fall": 0}, "--health-check-fall must be at least 1, not 0"),
    ({"health_check_rise": 101}, "--health-check-rise must be at most 100, not 101"),
    ({"client_cert": "f"}, "--client-cert needs --client-key as well"),
    ({"connect_timeout_s": 0.0}, "--connect-timeout must be more than 0"),
    ({"resolve_interval_s": 0.0}, "--resolve-interval must be more than 0"),
    ({"retries": -1}, "--retries must be at least 0, not -1"),
    ({"retries": 17}, "--retries must be at most 16, not 17"),
    ({"max_connections": 0}, "--max-connections must be at least 1, not 0"),
    ({"max_connections": 1_000_001}, "--max-connections must be at most 1000000, not 1000001"),
    ({"max_connections_per_source": -1}, "--max-connections-per-source must be at least 0, not -1"),
    (
        {"max_connections_per_source": 1_000_001},
        "--max-connections-per-source must be at most 1000000, not 1000001",
    ),
    ({"idle_timeout_s": -1.0}, "--idle-timeout must not be negative"),
    ({"proxy_v2_tlv": ("0x20=a",)}, "--proxy-v2-tlv needs --send-proxy-v2 as well"),
    ({"send_proxy_v2": True, "proxy_v2_tlv": ("0x20",)},
     "--proxy-v2-tlv: '0x20' is not TYPE=TEXT such as 0x20=my-cluster"),
    ({"send_proxy_v2": True, "proxy_v2_tlv": ("256=a",)},
     "--proxy-v2-tlv: '256=a' is not a TLV type from 0x00 to 0xFF"),
    ({"send_proxy_v2": True, "proxy_v2_tlv": ("3=a",)},
     "--proxy-v2-tlv: '3=a'"),
    ({"send_proxy_v2": True, "proxy_v2_tlv": ("1=" + "a" * 2000,)},
     "--proxy-v2-tlv: these have a value of more than 1024 bytes"),
    ({"http_proxy": "ftp://x"},
     "--http-proxy: the scheme of a proxy must be http or https"),
    ({"http_proxy_ca_cert": "f"}, "--http-proxy-ca-cert needs --http-proxy as well"),
    ({"health_port": 65536}, "--health-port must be from 0 to 65535, not 65536"),
    ({"health_bind_address": "a b"}, "--health-bind-address: not a host name or address: 'a b'"),
    ({"config": "f"}, '--upstream'),
    ({"config": "f", "upstream": (), "retries": 1},
     '--retries'),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**given).validate()
    lines = zip(str(caught.value).splitlines(), said.splitlines(), strict=True)
    assert all(line.startswith(fact) for line, fact in lines), caught.value


def test_a_file_instead() -> None:
    settings(config="f", upstream=(), no_proxy=("from", "the", "environment")).validate()
