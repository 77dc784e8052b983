"""The settings of the SNI router, and a sentence for each way to get them wrong."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import compose


def settings(**given: Any) -> SniRouterSettings:
    return compose(SniRouterSettings, **{"config": "f", **given})


def test_where_to_listen() -> None:
    found = settings(listen=(":6443", "[::1]:1", "127.0.0.1:0", "127.0.0.1:0", "localhost:2"))
    found.validate()
    assert found.listeners == (
        ("", 6443), ("::1", 1), ("127.0.0.1", 0), ("127.0.0.1", 0), ("localhost", 2),
    )  # fmt: skip
    assert settings().listeners == (("", 6443),)


def test_whom_to_trust() -> None:
    written = ("10.0.0.0/8", "fd00::/8", "192.0.2.1", "::ffff:198.51.100.0/120")
    found = settings(accept_proxy=True, proxy_from=written)
    found.validate()
    read = ("10.0.0.0/8", "fd00::/8", "192.0.2.1/32", "198.51.100.0/24")
    assert found.trusted == tuple(map(ip_network, read))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": ""}, "--config is missing"),
        ({"listen": ()}, "--listen"),
        (
            {"listen": ("6443",)},
            "--listen takes [HOST]:PORT such as :6443 or [::1]:6443, not '6443'",
        ),
        (
            {"listen": (":x",)},
            "--listen takes [HOST]:PORT such as :6443 or [::1]:6443, not ':x'",
        ),
        (
            {"listen": (":65536",)},
            "--listen takes [HOST]:PORT such as :6443 or [::1]:6443, not ':65536'",
        ),
        ({"listen": ("::1:1",)}, "--listen ::1:1: an IPv6 address needs brackets"),
        ({"listen": ("a b:1",)}, "--listen: not a host name or address: 'a b'"),
        ({"listen": (":1", ":1")}, "--listen :1"),
        (
            {"listen": ("[::]:1",), "listen_proxy": ("[::]:1",)},
            "--listen-proxy [::]:1",
        ),
        (
            {"listen_proxy": ("1",)},
            "--listen-proxy takes [HOST]:PORT such as :6443 or [::1]:6443, not '1'",
        ),
        ({"hello_timeout_s": 0.0}, "--hello-timeout must be more than 0"),
        ({"dial_timeout_s": 0.0}, "--dial-timeout must be more than 0"),
        ({"dial_timeout_s": -1.0}, "--dial-timeout must not be negative"),
        ({"max_hellos": 0}, "--max-hellos must be at least 1, not 0"),
        ({"max_connections": 0}, "--max-connections must be at least 1, not 0"),
        (
            {"max_connections_per_source": -1},
            "--max-connections-per-source must be at least 0, not -1",
        ),
        ({"health_port": 65536}, "--health-port must be from 0 to 65535, not 65536"),
        (
            {"health_bind_address": "a b"},
            "--health-bind-address: not a host name or address: 'a b'",
        ),
        (
            {"accept_proxy": True},
            "--accept-proxy needs --proxy-from with the networks of the proxies:",
        ),
        (
            {"proxy_from": ("10.0.0.0/8",)},
            "--proxy-from needs --accept-proxy or --listen-proxy as well",
        ),
        (
            {"accept_proxy": True, "proxy_from": ("x",)},
            "--proxy-from: 'x' is not a network such as 10.0.0.0/8, nor an address",
        ),
        (
            {"accept_proxy": True, "proxy_from": ("1.0.0.0/255.0.0.0",)},
            "--proxy-from: '1.0.0.0/255.0.0.0' is not a network such as 10.0.0.0/8, nor an address",
        ),
        (
            {"accept_proxy": True, "proxy_from": ("10.0.0.1/8",)},
            "--proxy-from: '10.0.0.1/8' has bits below its prefix, did you mean 10.0.0.0/8?",
        ),
    ],
)
def test_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**given).validate()
    lines = zip(str(caught.value).splitlines(), said.splitlines(), strict=True)
    assert all(line.startswith(fact) for line, fact in lines), caught.value
