"""The settings of both sidecars: HyperShift's flags and defaults, and what makes no sense."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import compose, options_of
from isthmus.settings.parsing import load

SHARED = {
    "konnectivity-hostname": "konnectivity-server-local",
    "konnectivity-port": "8090",
    "serving-port": "8090",
    "connect-directly-to-cloud-apis": "false",
    "prefer-ipv4": "false",
    "ca-cert-path": "/etc/konnectivity/proxy-ca/ca.crt",
    "tls-cert-path": "/etc/konnectivity/proxy-client/tls.crt",
    "tls-key-path": "/etc/konnectivity/proxy-client/tls.key",
}
NAMES = {
    "resolve-from-guest-cluster-dns": "false",
    "resolve-from-management-cluster-dns": "false",
    "disable-resolver": "false",
}
PROXIES = {"http-proxy": "", "https-proxy": "", "no-proxy": ""}


def defaults(settings: type) -> dict[str, str]:
    return {option.flag: option.shown for option in options_of(settings)}


def test_flags_and_defaults_are_hypershifts() -> None:
    socks5, https = defaults(Socks5ProxySettings), defaults(HttpsProxySettings)
    assert SHARED.items() | NAMES.items() <= socks5.items()
    assert SHARED.items() | PROXIES.items() <= https.items()
    assert not NAMES.keys() & https.keys()
    assert not PROXIES.keys() & socks5.keys()


def test_both_may_run_in_one_pod() -> None:
    first, second = Socks5ProxySettings(), HttpsProxySettings()
    ports = [port for each in (first, second) for port in (each.admin.health_port, each.admin.port)]
    assert len({*ports, 8090, 8092}) == 6


def test_how_https_resolves_is_fixed() -> None:
    settings = HttpsProxySettings()
    assert settings.resolve_before_dial and settings.resolve_from_guest_cluster_dns
    assert not settings.disable_resolver
    assert not Socks5ProxySettings().resolve_before_dial


def test_the_environment_names_the_kubeconfig() -> None:
    environment = {"KUBECONFIG": "/etc/kubernetes/secrets/kubeconfig/kubeconfig"}
    assert load(Socks5ProxySettings, {}, environment).kubeconfig == environment["KUBECONFIG"]
    given = {"kubeconfig": ["mine"]}
    assert load(Socks5ProxySettings, given, environment).kubeconfig == "mine"


def test_defaults_make_sense() -> None:
    Socks5ProxySettings().validate()
    HttpsProxySettings().validate()


def test_the_hosted_clusters_proxy() -> None:
    settings = HttpsProxySettings(
        http_proxy="http://plain.example:3128",
        https_proxy="https://me:secret@secure.example",
        no_proxy=".svc,10.0.0.0/8",
    )
    settings.validate()
    assert settings.never_cloud_hosts == ("plain.example", "secure.example")
    assert str(settings.connect_rules.proxy_for("a.example", 443)) == "https://secure.example:443"
    assert settings.connect_rules.proxy_for("a.b.svc", 443) is None
    assert str(settings.plain_rules.proxy_for("a.example", 80)) == "http://plain.example:3128"
    assert HttpsProxySettings(http_proxy="x:1").connect_rules.proxy is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"konnectivity_hostname": ""}, "--konnectivity-hostname"),
    ({"konnectivity_port": 0}, "--konnectivity-port must be from 1 to 65535, not 0"),
    ({"konnectivity_uds": "/" + "x" * 107}, "--konnectivity-uds is longer"),
    ({"konnectivity_protocol": "tcp"}, "--konnectivity-protocol must be http-connect or grpc"),
    ({"ca_cert_path": ""}, "--ca-cert-path is empty"),
    ({"tls_key_path": ""}, "--tls-key-path is empty"),
    ({"serving_address": "0.0.0.0"}, "--serving-address 0.0.0.0 would open the guest cluster"),
    ({"serving_address": ""}, "--serving-address empty would open"),
    ({"serving_address": "a b"}, "--serving-address"),
    ({"serving_port": 70000}, "--serving-port must be from 0 to 65535"),
    ({"username": "me"}, "--username needs --password-file as well"),
    ({"password_file": "x"}, "--password-file needs --username as well"),
    ({"username": "a:b", "password_file": "x"}, "--username must have no colon"),
    ({"username": "x" * 256, "password_file": "x"}, "--username is longer than the 255 bytes"),
    ({"guest_dns_service": "dns"}, "--guest-dns-service takes NAMESPACE/NAME"),
    ({"cluster_domain": "a b"}, "--cluster-domain"),
    ({"cloud_api_suffix": ("example.com",)}, "--cloud-api-suffix example.com "),
    ({"cloud_api_suffix": (".a b",)}, "--cloud-api-suffix"),
    ({"max_connections": 0}, "--max-connections must be at least 1"),
    ({"max_connections_per_source": -1}, "--max-connections-per-source must be at least 0, not -1"),
    ({"handshake_timeout_s": 0.0}, "--handshake-timeout must be more than 0"),
    ({"dial_timeout_s": -1.0}, "--dial-timeout must not be negative"),
    ({"health_port": -1}, "--health-port"),
    ({"admin_bind_address": "0.0.0.0"}, "--admin-bind-address"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_makes_no_sense(given: dict[str, Any], said: str) -> None:
    for settings in (Socks5ProxySettings, HttpsProxySettings):
        with pytest.raises(ConfigError) as caught:
            compose(settings, **given).validate()
        assert str(caught.value).startswith(said)


@pytest.mark.parametrize("flag", ["http_proxy", "https_proxy"])
@pytest.mark.parametrize("url", ["socks5://secret:1", "http://a:secret/@b", "http://secret:99999"])
def test_a_wrong_proxy_is_named_and_not_quoted(flag: str, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(HttpsProxySettings, **{flag: url}).validate()  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"--{flag.replace('_', '-')}: ")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"allow_unauthenticated": True},
        {"username": "me", "password_file": "file"},
    ],
)
def test_other_addresses_need_a_word(given: dict[str, Any]) -> None:
    for address in ("0.0.0.0", "::", "", "10.0.0.1"):
        compose(Socks5ProxySettings, serving_address=address, **given).validate()
    for address in ("127.0.0.2", "::1", "localhost"):
        Socks5ProxySettings(serving_address=address).validate()


def test_a_unix_socket_needs_no_certificates() -> None:
    settings = Socks5ProxySettings(konnectivity_uds="/run/s", ca_cert_path="", tls_cert_path="")
    settings.validate()
    assert settings.server_at is None
