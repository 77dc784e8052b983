"""Which proxy leads to a host: the variables, the proxy's address, the exemptions."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.values import HostPort

PROXY = "http://proxy.example:3128"


def proxied(no_proxy: str, host: str, port: int = 8132) -> bool:
    rules = ProxyRules.from_environment({"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy})
    return rules.proxy_for(host, port) is not None


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        ({}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTP_PROXY": "http://plain.example", "ALL_PROXY": "http://all.example"}, None),
        ({"HTTPS_PROXY": "http://upper.example"}, "upper.example"),
        ({"https_proxy": "http://lower.example"}, "lower.example"),
        ({"https_proxy": "lower.example", "HTTPS_PROXY": "upper.example"}, "upper.example"),
        ({"https_proxy": "lower.example", "HTTPS_PROXY": ""}, "lower.example"),
        ({"HTTPS_PROXY": "p.example", "no_proxy": "server.example"}, None),
        ({"HTTPS_PROXY": "p.example", "no_proxy": "*", "NO_PROXY": "other"}, "p.example"),
        ({"HTTPS_PROXY": "p.example", "NO_PROXY": "", "no_proxy": "*"}, None),
    ],
)
def test_the_variables(environment: dict[str, str], host: str | None) -> None:
    proxy = ProxyRules.from_environment(environment).proxy_for("server.example", 8132)
    assert (proxy and proxy.at.host) == host


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("proxy.example", "http://proxy.example:80"),
        ("proxy.example:3128", "http://proxy.example:3128"),
        ("10.0.0.1:3128", "http://10.0.0.1:3128"),
        ("http://proxy.example", "http://proxy.example:80"),
        ("HTTP://proxy.example:", "http://proxy.example:80"),
        ("https://proxy.example/", "https://proxy.example:443"),
        ("https://proxy.example:8443/path?query#fragment", "https://proxy.example:8443"),
        ("http://[2001:db8::1]", "http://[2001:db8::1]:80"),
        ("[2001:db8::1]:3128", "http://[2001:db8::1]:3128"),
        ("http://bücher.example:3128", "http://xn--bcher-kva.example:3128"),
        (" http://proxy.example:3128\n", "http://proxy.example:3128"),
    ],
)
def test_where_a_proxy_is(text: str, shown: str) -> None:
    assert str(ProxyAddress.parse(text)) == shown
    assert ProxyAddress.parse(text).authorization is None


@pytest.mark.parametrize(
    ("userinfo", "user", "password"),
    [
        ("me:secret", "me", "secret"),
        ("me", "me", ""),
        ("me:", "me", ""),
        (":secret", "", "secret"),
        ("me:se:cret", "me", "se:cret"),
        ("me:se@cret", "me", "se@cret"),
        ("me%40corp:p%2Fw%23", "me@corp", "p/w#"),
        ("me:p+w", "me", "p+w"),
        ("m%C3%A9:%E2%82%AC", "mé", "€"),
    ],
)
def test_who_we_are_there(userinfo: str, user: str, password: str) -> None:
    proxy = ProxyAddress.parse(f"http://{userinfo}@proxy.example:3128")
    assert (proxy.user, proxy.password) == (user, password)
    assert proxy.at == HostPort("proxy.example", 3128)


def test_the_authorization_is_that_of_the_rfc() -> None:
    # RFC 7617 §2, its example.
    proxy = ProxyAddress.parse("http://Aladdin:open%20sesame@proxy.example")
    assert proxy.authorization == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    # Bytes that are no text stay the bytes they are: ff 3a fe.
    assert ProxyAddress.parse("http://%FF:%FE@proxy.example").authorization == "Basic /zr+"


def test_no_secret_is_shown() -> None:
    proxy = ProxyAddress.parse("https://me:secret@proxy.example:3128")
    rules = ProxyRules(proxy=proxy)
    for shown in (str(proxy), repr(proxy), repr(rules), f"{proxy}"):
        assert "secret" not in shown
        assert "proxy.example" in shown


@pytest.mark.parametrize(
    "url",
    [
        "socks5://me:secret@proxy.example:1080",
        "secret://proxy.example",
        "http://me:secret@",
        "http://me:secret@:3128",
        "http:///secret",
        "http://me:secret@proxy.example:port",
        "http://me:secret@proxy.example:0",
        "http://me:secret@proxy.example:65536",
        "http://me:secret@2001:db8::1",
        "http://me:secret@[2001:db8::1",
        "http://me:secret@[proxy.example]:3128",
        "http://me:secret@pro xy.example",
        "http://me:sec ret@proxy.example",
        "http://me:secret%zz@proxy.example",
        "http://me:secret%@proxy.example",
        "http://me:secret/more@proxy.example:3128",
        "http://secret:123456/more@proxy.example:3128",
        "http:proxy.example:3128",
        "//proxy.example",
        "   ",
    ],
)
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_a_bad_address_names_its_variable_and_no_secret(url: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable}: ") as caught:
        ProxyRules.from_environment({variable: url, "NO_PROXY": "*"})
    error: BaseException | None = caught.value
    while error is not None:  # a traceback shows the causes too
        assert "sec" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_host_is_never_reached_through_a_proxy(host: str) -> None:
    assert not proxied("", host)


@pytest.mark.parametrize(
    ("no_proxy", "host", "exempt"),
    [
        ("", "server.example", False),
        ("*", "server.example", True),
        ("*", "192.0.2.1", True),
        ("other, * ,", "server.example", True),
        ("example.com", "example.com", True),
        ("example.com", "EXAMPLE.com", True),
        ("Example.COM", "a.b.example.com", True),
        ("example.com", "badexample.com", False),
        ("example.com", "example.com.evil", False),
        (".example.com", "a.example.com", True),
        (".example.com", "example.com", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("a.*.example.com", "a.b.example.com", False),
        ("one , example.com ,two", "example.com", True),
        ("one example.com", "example.com", False),
        (",,", "example.com", False),
        ("example.com:8132", "example.com", True),
        ("example.com:8133", "example.com", False),
        ("example.com:", "example.com", True),
        (":8132", "example.com", False),
        (".example.com:8132", "a.example.com", True),
        ("bücher.example", "a.xn--bcher-kva.example", True),
        (".bücher.example", "xn--bcher-kva.example", False),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.10", False),
        ("192.0.2.1", "a.192.0.2.1", False),
        ("192.0.2.1:8132", "192.0.2.1", True),
        ("192.0.2.1:8133", "192.0.2.1", False),
        ("192.0.2.0/24", "192.0.2.77", True),
        ("192.0.2.9/24", "192.0.2.77", True),
        ("192.0.2.0/24", "192.0.3.1", False),
        ("192.0.2.0/255.255.255.0", "192.0.2.77", False),
        ("192.0.2.0/33", "192.0.2.0", False),
        ("0.0.0.0/0", "192.0.2.1", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("192.0.2.0/24", "server.example", False),
        ("192.0.2.0/24", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.0/120", "192.0.2.1", True),
        ("::/0", "192.0.2.1", False),
        ("2001:db8::1", "2001:DB8:0::1", True),
        ("2001:db8::/32", "2001:db8:ffff::1", True),
        ("2001:db8::/32", "2001:db9::1", False),
        ("[2001:db8::1]:8132", "2001:db8::1", True),
        ("[2001:db8::1]:8133", "2001:db8::1", False),
        ("[2001:db8::1]", "2001:db8::1", False),  # as in Go: brackets are for ports
        ("[2001:db8::1]]:8132", "2001:db8::1", False),
        ("fe80::/10", "fe80::1%eth0", True),
    ],
)
def test_who_is_exempt(no_proxy: str, host: str, exempt: bool) -> None:
    assert proxied(no_proxy, host) is not exempt
