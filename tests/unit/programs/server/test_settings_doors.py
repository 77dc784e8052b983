"""Modes, doors and links: where each protocol listens, and each bad combination in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import Door, ServerSettings
from isthmus.settings.options import changed

GRPC = ServerSettings(
    uds_name="/run/g.sock", cluster_cert="c", cluster_key="k", cluster_ca_cert="ca"
)
BOTH = replace(GRPC, mode=("grpc", "http-connect"), http_connect_uds_name="/run/h.sock")
TLS: dict[str, Any] = {"server_cert": "c", "server_key": "k", "server_ca_cert": "ca"}
AGENT = AgentSettings(ca_cert="ca")


def test_the_default_is_grpc_alone_as_in_go() -> None:
    assert ServerSettings().modes == ("grpc",)
    assert GRPC.doors == (Door("grpc", None, "server-port", "/run/g.sock", "uds-name"),)


def test_one_mode_has_the_general_flags() -> None:
    settings = changed(GRPC, mode=("http-connect",), server_port=9000, **TLS)
    settings.validate()
    assert settings.doors == (Door("http-connect", 9000, "server-port", "/run/g.sock", "uds-name"),)


@pytest.mark.parametrize("mode", [("grpc", "http-connect"), ("http-connect", "grpc")])
def test_with_both_the_general_flags_are_grpcs_in_any_order(mode: tuple[str, ...]) -> None:
    settings = changed(BOTH, mode=mode, http_connect_port=9001, **TLS)
    settings.validate()
    assert settings.doors == (
        Door("grpc", None, "server-port", "/run/g.sock", "uds-name"),
        Door("http-connect", 9001, "http-connect-port", "/run/h.sock", "http-connect-uds-name"),
    )


ALONE = "is for --mode=grpc,http-connect; one mode alone listens on --uds-name and --server-port"
MISSING = (
    "--server-cert, --server-key and --server-ca-cert are missing: create the certificates"
    ' with "isthmus pki init", see isthmus pki init -h, or use --uds-name alone'
)


@pytest.mark.parametrize(
    ("base", "changes", "sentence"),
    [
        (GRPC, {"mode": ()}, "--mode must be grpc, http-connect or grpc,http-connect"),
        (
            GRPC,
            {"mode": ("grpc", "grpc")},
            "--mode must be grpc, http-connect or grpc,http-connect",
        ),
        (
            BOTH,
            {"mode": ("grpc", "http-connect", "grpc")},
            "--mode must be grpc, http-connect or grpc,http-connect",
        ),
        (GRPC, {"mode": ("",)}, "--mode must be grpc or http-connect, not ''"),
        (BOTH, {"mode": ("grpc", "http")}, "--mode must be grpc or http-connect, not 'http'"),
        (BOTH, {"mode": ("grpc",)}, f"--http-connect-uds-name {ALONE}"),
        (BOTH, {"mode": ("http-connect",)}, f"--http-connect-uds-name {ALONE}"),
        (GRPC, {"http_connect_port": 0}, f"--http-connect-port {ALONE}"),
        (
            BOTH,
            {"http_connect_uds_name": ""},
            "--http-connect-uds-name or --http-connect-port is missing: with both modes"
            " http-connect needs its own listener",
        ),
        (
            BOTH,
            {"http_connect_uds_name": "/run/g.sock"},
            "--http-connect-uds-name and --uds-name must differ",
        ),
        (
            BOTH,
            {"http_connect_uds_name": "/" + "x" * 107},
            "--http-connect-uds-name is longer than the 107 bytes allowed",
        ),
        (BOTH, {"http_connect_port": 9001}, MISSING),
        (BOTH, {"uds_name": ""}, MISSING),  # grpc then has a port
        (
            BOTH,
            {"http_connect_port": 70000, **TLS},
            "--http-connect-port must be from 0 to 65535, not 70000",
        ),
        (
            GRPC,
            {"link": "yamux"},
            "--link must be auto or mux or grpc, not 'yamux', did you mean mux?",
        ),
        (GRPC, {"link": ""}, "--link must be auto or mux or grpc, not ''"),
    ],
)
def test_bad_combinations_are_one_sentence(
    base: ServerSettings, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(base, **changes).validate()
    assert str(caught.value) == sentence


def test_compat_keeps_gos_ports_for_the_second_door_too() -> None:
    settings = changed(BOTH, uds_name="", http_connect_port=443, compat="konnectivity", **TLS)
    with pytest.raises(ConfigError, match=r"^--http-connect-port .*--compat=konnectivity"):
        settings.validate()


@pytest.mark.parametrize(
    ("link", "ours"),
    [("auto", ("isthmus/1", "h2")), ("mux", ("isthmus/1",)), ("grpc", ("h2",))],
)
def test_what_is_offered_follows_link(link: str, ours: tuple[str, ...]) -> None:
    assert replace(GRPC, link=link).agent_alpn == ours
    assert replace(AGENT, link=link).alpn == ours


def test_names_of_the_agents_own_come_between() -> None:
    assert replace(AGENT, alpn_proto=("lb",)).alpn == ("isthmus/1", "lb", "h2")
