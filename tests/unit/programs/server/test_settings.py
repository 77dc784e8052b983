from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import changed, compose, given_in_vain, options_of

AGENT_SIDE = {"cluster_cert": "c", "cluster_key": "k", "cluster_ca_cert": "ca"}
UDS = compose(ServerSettings, uds_name="/run/x.sock", **AGENT_SIDE)  # type: ignore[arg-type]  # all str
TCP = replace(UDS, uds_name="", server_cert="c", server_key="k", server_ca_cert="ca")

TOKENS: dict[str, Any] = {
    "agent_namespace": "n",
    "agent_service_account": "s",
    "authentication_audience": "a",
}

# Reference E1: what konnectivity's proxy-server has when no flag is given.
GO_DEFAULTS = {
    "server-cert": "", "server-key": "", "server-ca-cert": "", "cluster-cert": "",
    "cluster-key": "", "cluster-ca-cert": "", "mode": "grpc", "uds-name": "",
    "delete-existing-uds-file": "true", "server-port": "8090", "server-bind-address": "",
    "agent-port": "8091", "agent-bind-address": "", "health-port": "8092",
    "health-bind-address": "", "admin-port": "8095", "admin-bind-address": "127.0.0.1",
    "keepalive-time": "1h", "frontend-keepalive-time": "1h", "enable-profiling": "false",
    "enable-contention-profiling": "false", "server-id": "", "server-count": "1",
    "agent-namespace": "", "agent-service-account": "", "authentication-audience": "",
    "kubeconfig": "", "kubeconfig-qps": "0", "kubeconfig-burst": "0",
    "kube-api-content-type": "application/vnd.kubernetes.protobuf",
    "proxy-strategies": "default", "cipher-suites": "", "tls-min-version": "VersionTLS12",
    "xfr-channel-size": "10", "enable-lease-controller": "false",
    "lease-namespace": "kube-system", "lease-label": "k8s-app=konnectivity-server",
    "graceful-shutdown-timeout": "0", "backend-dial-timeout": "0",
    "warn-on-channel-limit": "true", "v": "4",
}  # fmt: skip
OURS_DIFFER = {
    "server-port": "8090, none with --uds-name",
    "graceful-shutdown-timeout": "25s",
    "backend-dial-timeout": "10s",
    "v": "2",
}


def test_every_go_flag_is_there_with_its_default_or_a_known_difference() -> None:
    ours = {each.flag: each.shown for each in options_of(ServerSettings)}
    assert {flag: ours[flag] for flag in GO_DEFAULTS} == GO_DEFAULTS | OURS_DIFFER


def test_a_difference_in_the_default_is_told_in_the_reference() -> None:
    told = {each.flag: each.go for each in options_of(ServerSettings)}
    for flag in OURS_DIFFER:
        assert told[flag].startswith(GO_DEFAULTS[flag])


@pytest.mark.parametrize("settings", [UDS, TCP, replace(UDS, compat="konnectivity")])
def test_good_settings_pass(settings: ServerSettings) -> None:
    settings.validate()


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        ({"uds_name": ""}, 8090),
        ({"uds_name": "", "server_port": 0}, 0),
        ({"uds_name": "", "server_port": 443}, 443),
        ({}, None),
        ({"server_port": 0}, None),
        ({"server_port": 0, "server_cert": "c"}, 0),
        ({"server_port": 9000}, 9000),
    ],
)
def test_which_tcp_port_the_frontend_has(changes: dict[str, Any], port: int | None) -> None:
    assert changed(UDS, **changes).frontend_port == port


@pytest.mark.parametrize(
    ("base", "changes", "sentence"),
    [
        (UDS, {"mode": ("http",)}, "--mode must be grpc or http-connect, not 'http'"),
        (
            UDS,
            {"link": "yamux"},
            "--link must be auto or mux or grpc, not 'yamux', did you mean mux?",
        ),
        (UDS, {"compat": "go"}, "--compat must be konnectivity, not 'go'"),
        (UDS, {"log_format": "xml"}, "--log-format must be text or json, not 'xml'"),
        (UDS, {"agent_port": 65536}, "--agent-port must be from 0 to 65535, not 65536"),
        (UDS, {"health_port": -1}, "--health-port must be from 0 to 65535, not -1"),
        (TCP, {"server_port": 70000}, "--server-port must be from 0 to 65535, not 70000"),
        (UDS, {"cluster_cert": ""}, "--cluster-cert is missing: the agent port is always TLS"),
        (UDS, {"cluster_key": ""}, "--cluster-key is missing: the agent port is always TLS"),
        (TCP, {"server_key": ""}, "--server-cert needs --server-key as well"),
        (TCP, {"server_cert": ""}, "--server-key needs --server-cert as well"),
        (
            TCP,
            {"server_ca_cert": ""},
            "--server-ca-cert is missing: a TCP frontend needs --server-cert, --server-key and"
            " --server-ca-cert, or use --uds-name alone",
        ),
        (
            UDS,
            {"server_port": 9000},
            "--server-cert, --server-key and --server-ca-cert are missing: create the certificates"
            ' with "isthmus pki init", see isthmus pki init -h, or use --uds-name alone',
        ),
        (
            UDS,
            {
                "server_port": 9000,
                "server_bind_address": "127.0.0.1",
                "server_auth": "none-on-loopback",
            },
            "--server-cert and --server-key are missing: create the certificates"
            ' with "isthmus pki init", see isthmus pki init -h, or use --uds-name alone',
        ),
        (
            UDS,
            {"cluster_ca_cert": ""},
            "--cluster-ca-cert is missing: without it, or --agent-namespace,"
            " --agent-service-account and --authentication-audience for tokens, agents cannot"
            " be authenticated, and only --insecure-agents accepts that",
        ),
        (
            UDS,
            {"insecure_agents": True},
            "--insecure-agents and --cluster-ca-cert exclude each other",
        ),
        (
            UDS,
            {"agent_namespace": "ns"},
            "--agent-service-account is missing: agent tokens need --agent-namespace,"
            " --agent-service-account and --authentication-audience together",
        ),
        (
            UDS,
            TOKENS,
            "--agent-namespace and --cluster-ca-cert exclude each other",
        ),
        (
            UDS,
            {**TOKENS, "cluster_ca_cert": "", "insecure_agents": True},
            "--insecure-agents and --agent-namespace exclude each other",
        ),
        (
            UDS,
            {"proxy_strategies": ()},
            "--proxy-strategies needs at least one strategy, such as default",
        ),
        (
            UDS,
            {"proxy_strategies": ("default", "desthost")},
            "--proxy-strategies must be default or destHost or defaultRoute, not 'desthost',"
            " did you mean destHost?",
        ),
        (UDS, {"uds_name": "/" + "x" * 107}, "--uds-name is longer than the 107 bytes allowed"),
        (UDS, {"backend_dial_timeout_s": -1.0}, "--backend-dial-timeout must not be negative"),
        (UDS, {"server_count": 0}, "--server-count must be at least 1, not 0"),
        (
            UDS,
            {"server_id": "a b"},
            "--server-id must be at most 253 printable characters without spaces",
        ),
        (
            UDS,
            {"agent_bind_address": "[::]"},
            "--agent-bind-address: not a host name or address: '[::]'",
        ),
        (
            UDS,
            {"admin_bind_address": "0.0.0.0"},
            "--admin-bind-address 0.0.0.0 would open the admin port to the network, which needs"
            " --admin-cert and --admin-key, and --admin-client-ca or --admin-token-file; or use"
            " a loopback address",
        ),
        (
            UDS,
            {"admin_bind_address": ""},
            "--admin-bind-address empty would open the admin port to the network, which needs"
            " --admin-cert and --admin-key, and --admin-client-ca or --admin-token-file; or use"
            " a loopback address",
        ),
        (
            UDS,
            {"admin_bind_address": "10.0.0.1", "admin_cert": "c", "admin_key": "k"},
            "--admin-bind-address 10.0.0.1 would show all of the network who talks to whom,"
            " so it needs --admin-client-ca or --admin-token-file as well; or use a loopback"
            " address",
        ),
        (UDS, {"admin_cert": "c"}, "--admin-cert needs --admin-key as well"),
        (
            UDS,
            {"admin_client_ca": "c"},
            "--admin-client-ca needs --admin-cert and --admin-key as well",
        ),
        (
            UDS,
            {"enable_contention_profiling": True},
            "--enable-contention-profiling needs --enable-profiling as well",
        ),
        (
            UDS,
            {"tls_min_version": "VersionTLS11"},
            "--tls-min-version VersionTLS11 is not safe, use VersionTLS12 or VersionTLS13",
        ),
        (
            UDS,
            {"tls_min_version": "1.2"},
            "--tls-min-version must be VersionTLS12 or VersionTLS13, not '1.2'",
        ),
    ],
)
def test_bad_settings_are_one_sentence(
    base: ServerSettings, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(base, **changes).validate()
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("base", "changes", "flag"),
    [
        (UDS, {"agent_port": 443}, "--agent-port"),
        (UDS, {"admin_port": 49152}, "--admin-port"),
        (TCP, {"server_port": 0}, "--server-port"),
        (TCP, {"uds_name": "/run/x.sock", "server_port": 9000}, "--server-cert"),
        (UDS, {"server_port": 9000}, "--server-port"),
        (UDS, {"server_ca_cert": "ca"}, "--server-ca-cert"),
    ],
)
def test_compat_keeps_gos_rules(base: ServerSettings, changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} .*--compat=konnectivity"):
        changed(base, **changes, compat="konnectivity").validate()


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (UDS, {"agent_port": 0, "health_port": 443, "admin_port": 65535}),
        (UDS, {"cluster_ca_cert": "", "insecure_agents": True}),
        (UDS, {"cluster_ca_cert": "", **TOKENS}),
        (TCP, {"uds_name": "/run/x.sock", "server_port": 9000}),
        (UDS, {"admin_bind_address": "::1"}),
        (UDS, {"admin_cert": "c", "admin_key": "k"}),
        (UDS, {"admin_token_file": "t"}),
        (
            UDS,
            {
                "admin_bind_address": "",
                "admin_cert": "c",
                "admin_key": "k",
                "admin_token_file": "t",
            },
        ),
        (
            UDS,
            {
                "admin_bind_address": "0.0.0.0",
                "admin_cert": "c",
                "admin_key": "k",
                "admin_client_ca": "ca",
            },
        ),
        (UDS, {"server_port": 0, "compat": "konnectivity"}),
        (UDS, {"tls_min_version": "VersionTLS13", "cipher_suites": ("TLS_AES_128_GCM_SHA256",)}),
    ],
)
def test_allowed_on_purpose(base: ServerSettings, changes: dict[str, Any]) -> None:
    changed(base, **changes).validate()


def test_no_dial_limit_means_the_ceiling() -> None:
    assert UDS.dial_limit_s == 10.0
    assert replace(UDS, backend_dial_timeout_s=0.0).dial_limit_s == 30.0


def test_flags_without_effect_are_told() -> None:
    used = (
        "kubeconfig",
        "enable_contention_profiling",
        "xfr_channel_size",
        "warn_on_channel_limit",
    )
    assert given_in_vain(ServerSettings, {name: ["1"] for name in used}) == [
        "--enable-contention-profiling",
        "--xfr-channel-size",
        "--warn-on-channel-limit",
    ]
