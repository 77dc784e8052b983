from __future__ import annotations

import shlex

import pytest

from isthmus.lab.commands import admin_url, kind, ready_url


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("isthmus server --x", "server"),
        ("isthmus agent", "agent"),
        ("isthmus sni-router --config=x", "sni-router"),
        ("isthmus socks5-proxy run --serving-port=1", "socks5-proxy"),
        ("isthmus https-proxy", "https-proxy"),
        ("isthmus apiserver-proxy --upstream=x:1", "apiserver-proxy"),
        ("isthmus pki init", ""),
        ("isthmus", ""),
        ("", ""),
        ("server isthmus", ""),
        ("other server", ""),
    ],
)
def test_kinds(command: str, expected: str) -> None:
    assert kind(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("isthmus server", "http://127.0.0.1:8092/healthz"),
        ("isthmus agent", "http://127.0.0.1:8093/readyz"),
        ("isthmus server --health-port=1234", "http://127.0.0.1:1234/healthz"),
        ("isthmus server --health-port 1234 --x", "http://127.0.0.1:1234/healthz"),
        ("isthmus server --health-port=1 --health-port=2", "http://127.0.0.1:2/healthz"),
        ("isthmus server --health-bind-address=10.0.0.1", "http://10.0.0.1:8092/healthz"),
        ("isthmus server --health-bind-address fd00::1", "http://[fd00::1]:8092/healthz"),
        ("isthmus server --health-bind-address=0.0.0.0", "http://127.0.0.1:8092/healthz"),
        ("isthmus server --health-bind-address=::", "http://[::1]:8092/healthz"),
        ("isthmus server --health-bind-address={a.address}", "http://{a.address}:8092/healthz"),
        ("isthmus server --health-bind-address={a.address6}", "http://[{a.address6}]:8092/healthz"),
        ("isthmus server --health-server-port=1", "http://127.0.0.1:8092/healthz"),
        ("isthmus server --health-port=0", ""),
        ("isthmus agent --health-server-port=1 --health-server-host=::1", "http://[::1]:1/readyz"),
        ("isthmus agent --health-port=1", "http://127.0.0.1:8093/readyz"),
        ("isthmus sni-router", "http://127.0.0.1:8096/readyz"),
        ("isthmus socks5-proxy --health-port=1", "http://127.0.0.1:1/readyz"),
        ("isthmus https-proxy", "http://127.0.0.1:8100/readyz"),
        ("isthmus apiserver-proxy", "http://127.0.0.1:8102/readyz"),
        ("python -m http.server", ""),
    ],
)
def test_where_readiness_is_asked(command: str, expected: str) -> None:
    assert ready_url(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("isthmus server", "http://127.0.0.1:8095"),
        ("isthmus agent", "http://127.0.0.1:8094"),
        ("isthmus server --admin-port=1", "http://127.0.0.1:1"),
        ("isthmus agent --admin-server-port 1", "http://127.0.0.1:1"),
        ("isthmus agent --admin-bind-address=::1", "http://[::1]:8094"),
        ("isthmus server --admin-cert={a.cert} --admin-key=k", "https://127.0.0.1:8095"),
        ("isthmus agent --admin-cert c --admin-bind-address ::1", "https://[::1]:8094"),
        ("isthmus server --admin-cert=", "http://127.0.0.1:8095"),
        ("isthmus server --admin-port=0", ""),
        ("isthmus sni-router", "http://127.0.0.1:8097"),
        ("nginx", ""),
    ],
)
def test_where_the_admin_port_is(command: str, expected: str) -> None:
    assert admin_url(shlex.split(command)) == expected
