"""Which proxy leads where: the same questions to Go's httpproxy and to us, the same answers."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator

import pytest
from gobuild import build
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import DEFAULT_PORTS, ProxyAddress, ProxyRules
from isthmus.text.addresses import plain_address

pytestmark = pytest.mark.interop

MANY = settings(
    max_examples=10 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow]
)

names = st.sampled_from(
    [
        "example.com",
        "a.example.com",
        "b.a.example.com",
        "badexample.com",
        "com",
        "localhost",
        "EXAMPLE.com",
        "example.com.",
        "x_y.example.com",
        "xn--bcher-kva.example",
        "Localhost",
    ]
)
numbers = st.sampled_from(
    [
        "192.0.2.1",
        "192.0.2.10",
        "192.0.3.1",
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "2001:db8::1",
        "2001:DB8:0::1",
        "2001:db9::1",
        "::1",
        "::",
        "::ffff:192.0.2.1",
        "::ffff:127.0.0.1",
        "fe80::1",
        "192.0.2.01",
        "192.0.2",
        "fe80::1%eth0",
    ]
)
hosts = st.one_of(names, numbers)
ports = st.sampled_from([80, 443, 8132])
prefixes = st.one_of(st.integers(0, 130).map(str), st.sampled_from(["", "x", "08", "-1", "+8"]))
entry = st.one_of(
    st.just("*"),
    hosts,
    st.builds("{}{}".format, st.sampled_from([".", "*.", "*", "..", "*.*."]), hosts),
    st.builds("{}/{}".format, numbers, prefixes),
    st.builds("{}:{}".format, hosts, st.sampled_from(["80", "8132", "", "x", "08132"])),
    st.builds("[{}]:{}".format, hosts, st.sampled_from(["80", "8132", "", "x"])),
    st.builds("[{}]".format, numbers),
    st.text(alphabet="ace.*:[]/0128", max_size=12),
    st.sampled_from(["bücher.example", ".bücher.example", "*.BÜCHER.example", "::ffff:0:0/96"]),
)
lists = st.lists(
    st.builds("{}{}{}".format, st.sampled_from(["", " ", "\t"]), entry, st.sampled_from(["", " "])),
    max_size=3,
).map(",".join)
schemes = st.sampled_from(["", "http://", "https://", "HTTP://"])
places = st.sampled_from(["proxy.example", "10.1.2.3", "[2001:db8::1]"])
proxy_ports = st.one_of(st.just(""), st.just(":"), st.integers(1, 65535).map(":{}".format))
users = st.one_of(
    st.just(""),
    st.from_regex(r"([a-z0-9._~!$&'()*+,;=:@%-]|%[0-9A-F]{2}){0,10}@", fullmatch=True),
    st.text(alphabet="ab:@%4 0/#?", max_size=8).map("{}@".format),
)
paths = st.sampled_from(["", "/", "/path", "?query", "#fragment"])


class Oracle:
    """Asks Go."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, environment: dict[str, str], host: str, port: int) -> dict[str, str] | None:
        question = {"Environment": environment, "Host": host, "Port": str(port)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, str] | None = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with subprocess.Popen(
        [build("proxyoracle")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


def told(proxy: ProxyAddress | None) -> tuple[str, str, int, bytes | None, bytes] | None:
    if proxy is None:
        return None
    user = None if proxy.user is None else proxy.user.encode("utf-8", "surrogateescape")
    password = proxy.password.encode("utf-8", "surrogateescape")
    return proxy.scheme, proxy.at.host, proxy.at.port, user, password


def told_by_go(answer: dict[str, str] | None) -> tuple[str, str, int, bytes | None, bytes] | None:
    if answer is None or not answer["Host"]:  # a path without a host is what it makes of nonsense
        return None
    port = int(answer["Port"] or DEFAULT_PORTS[answer["Scheme"]])
    user = base64.b64decode(answer["User"] or "") if answer["HasUser"] else None
    return answer["Scheme"], answer["Host"], port, user, base64.b64decode(answer["Password"] or "")


def is_any(host: str) -> bool:
    """0.0.0.0 and ::, which are no address of a host."""
    try:
        return plain_address(host).is_unspecified
    except ValueError:
        return False


@MANY
@given(lists, hosts, ports)
def test_the_same_hosts_are_exempt(oracle: Oracle, no_proxy: str, host: str, port: int) -> None:
    assume(not is_any(host))  # loopback here, as for the kernel; see net/rules_proxies.py
    environment = {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": no_proxy}
    ours = ProxyRules.from_environment(environment).proxy_for(host, port)
    assert told(ours) == told_by_go(oracle.ask(environment, host, port))


@MANY
@given(schemes, users, places, proxy_ports, paths)
def test_the_same_proxy_is_meant(
    oracle: Oracle, scheme: str, user: str, place: str, port: str, path: str
) -> None:
    assume(not user.startswith(" "))  # blanks around the whole are forgiven here
    environment = {"HTTPS_PROXY": f"{scheme}{user}{place}{port}{path}"}
    try:
        ours = ProxyRules.from_environment(environment).proxy_for("server.example", 8132)
    except ConfigError:
        # Where we complain Go has no proxy, or one that nobody meant: its name is "http", or a
        # piece of the password.
        theirs = told_by_go(oracle.ask(environment, "server.example", 8132))
        assert theirs is None or theirs[1] != place.strip("[]")
        return
    assume(not set("/#?") & set(user))
    assert told(ours) == told_by_go(oracle.ask(environment, "server.example", 8132))


variables = st.sampled_from(["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"])
values = st.sampled_from(["", "one.example", "two.example:3128", "server.example", "*"])


@MANY
@given(st.dictionaries(variables, values))
def test_the_same_variables_count(oracle: Oracle, environment: dict[str, str]) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        assume(environment.get(name) != "*")
    ours = ProxyRules.from_environment(environment).proxy_for("server.example", 8132)
    assert told(ours) == told_by_go(oracle.ask(environment, "server.example", 8132))
