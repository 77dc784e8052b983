from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.agent.settings import AgentSettings, is_srv_name
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.options import changed, given_in_vain, options_of

GOOD = AgentSettings(ca_cert="ca", agent_cert="c", agent_key="k")

# Reference E2: what konnectivity's proxy-agent has when no flag is given.
GO_DEFAULTS = {
    "agent-cert": "", "agent-key": "", "ca-cert": "", "proxy-server-host": "127.0.0.1",
    "proxy-server-port": "8091", "alpn-proto": "", "health-server-host": "",
    "health-server-port": "8093", "admin-bind-address": "127.0.0.1", "admin-server-port": "8094",
    "enable-profiling": "false", "enable-contention-profiling": "false", "agent-id": "",
    "agent-identifiers": "", "sync-interval": "1s", "sync-interval-cap": "10s",
    "probe-interval": "1s", "keepalive-time": "1h", "service-account-token-path": "",
    "warn-on-channel-limit": "false", "sync-forever": "false", "xfr-channel-size": "150",
    "count-server-leases": "false", "lease-namespace": "kube-system",
    "lease-label-selector": "k8s-app=konnectivity-server", "server-count-source": "default",
    "kubeconfig": "", "kube-api-content-type": "application/vnd.kubernetes.protobuf",
}  # fmt: skip


def test_every_go_flag_is_there_with_its_default() -> None:
    ours = {each.flag: each.shown for each in options_of(AgentSettings)}
    assert {flag: ours[flag] for flag in GO_DEFAULTS} == GO_DEFAULTS


def test_good_settings_pass() -> None:
    GOOD.validate()
    used = ("agent_id", "probe_interval_s", "sync_forever")
    vain = given_in_vain(AgentSettings, {name: ["1"] for name in used})
    assert vain == ["--probe-interval", "--sync-forever"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"ca_cert": ""},
            '--ca-cert is missing: create the certificates with "isthmus pki init",'
            " see isthmus pki init -h",
        ),
        ({"agent_key": ""}, "--agent-cert needs --agent-key as well"),
        ({"link": "yamux"}, "--link must be auto or mux or grpc, not 'yamux', did you mean mux?"),
        ({"proxy_server_host": ()}, "--proxy-server-host needs at least one host"),
        (
            {"proxy_server_host": ("ok", "a b")},
            "--proxy-server-host: not a host name or address: 'a b'",
        ),
        ({"proxy_server_port": 0}, "--proxy-server-port must be from 1 to 65535, not 0"),
        (
            {"health_server_port": 65536},
            "--health-server-port must be from 0 to 65535, not 65536",
        ),
        (
            {"compat": "konnectivity", "admin_server_port": 0},
            "--admin-server-port must be at least 1, not 0",
        ),
        (
            {"sync_interval_s": 11.0},
            "--sync-interval must not be longer than --sync-interval-cap",
        ),
        ({"probe_interval_s": 0.0}, "--probe-interval must be longer than 0"),
        ({"dial_timeout_s": 0.0}, "--dial-timeout must be longer than 0"),
        ({"keepalive_time_s": -1.0}, "--keepalive-time must not be negative"),
        (
            {"agent_identifiers": "hots=a"},
            "--agent-identifiers: unknown key 'hots', did you mean host?",
        ),
        (
            {"agent_identifiers": "ipv4=::1"},
            "--agent-identifiers: ipv4=::1 is not a value for ipv4",
        ),
        (
            {"host_alias": ("demo.internal",)},
            "--host-alias takes NAME=ADDRESS[:PORT], such as db.internal=10.0.0.5 or"
            " web.internal=[fd00::5]:8080, not 'demo.internal'",
        ),
        (
            {"host_alias": ("web=::1:80000",)},
            "--host-alias takes NAME=ADDRESS[:PORT], such as db.internal=10.0.0.5 or"
            " web.internal=[fd00::5]:8080, not 'web=::1:80000'",
        ),
        (
            {"host_alias": ("10.0.0.1=10.0.0.2",)},
            "--host-alias takes NAME=ADDRESS[:PORT], such as db.internal=10.0.0.5 or"
            " web.internal=[fd00::5]:8080, not '10.0.0.1=10.0.0.2'",
        ),
        ({"alpn_proto": ("x" * 256,)}, "--alpn-proto must be at most 255 ASCII characters"),
        ({"server_count_source": "min"}, "--server-count-source must be default or max, not 'min'"),
    ],
)
def test_bad_settings_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(GOOD, **changes).validate()
    assert str(caught.value) == sentence


def test_aliases_are_found_by_lower_case_name() -> None:
    settings = replace(
        GOOD, host_alias=("Demo.Internal.=10.0.0.1", "demo.internal=::1", "x=[::2]:80")
    )
    settings.validate()
    assert settings.aliases == {"demo.internal": ("10.0.0.1", "::1"), "x": ("[::2]:80",)}


def test_identifiers_are_read() -> None:
    settings = replace(GOOD, agent_identifiers="host=Node1&default-route=true&ipv4=&ipv4=")
    settings.validate()
    assert settings.warnings() == ["--agent-identifiers: ipv4= has no value and is ignored"]
    assert settings.sent_identifiers == "host=Node1&default-route=true"
    assert settings.identifiers == Identifiers(host=("node1",), default_route=True)


@pytest.mark.parametrize(
    ("host", "srv"),
    [
        ("_agents._tcp.example.com", True),
        ("_agents._TCP.x", True),
        ("_agents._udp.example.com", False),
        ("agents.example.com", False),
        ("127.0.0.1", False),
    ],
)
def test_srv_names(host: str, srv: bool) -> None:
    assert is_srv_name(host) is srv
    replace(GOOD, proxy_server_host=(host,)).validate()
