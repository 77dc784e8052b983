"""--peer-server and --advertise-agent-address: what they mean, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import changed
from isthmus.settings.parsing import load
from isthmus.values import HostPort

UDS = ServerSettings(
    uds_name="/run/x.sock", cluster_cert="c", cluster_key="k", cluster_ca_cert="ca"
)
ALL = ("a=10.0.0.1:8091", "b=b.example:8091", "c=[2001:db8::1]:8091")


def test_every_replica_can_have_the_same_flags() -> None:
    settings = replace(UDS, server_id="b", peer_server=ALL)
    settings.validate()
    assert settings.peers == {"a": HostPort("10.0.0.1", 8091), "c": HostPort("2001:db8::1", 8091)}
    assert settings.announced_count == 3


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"server_count": 5}, 5),
        ({"server_id": "a", "peer_server": ALL}, 3),
        ({"server_id": "d", "peer_server": ALL}, 4),
        ({"server_id": "a", "peer_server": (ALL[0],)}, 1),
        ({"server_id": "a", "peer_server": (*ALL, ALL[1])}, 3),
        ({"server_id": "a", "peer_server": ALL, "server_count": 2}, 2),
    ],
)
def test_how_many_there_are(changes: dict[str, Any], count: int) -> None:
    settings = changed(UDS, **changes)
    settings.validate()
    assert settings.announced_count == count


def test_the_flag_is_repeatable_and_a_list() -> None:
    given = {"server_id": ["a"], "peer_server": [ALL[0], ",".join(ALL[1:])]}
    assert load(ServerSettings, given, {}).peer_server == ALL
    by_environment = load(ServerSettings, {"peer_server": ALL}, {"PROXY_SERVER_ID": "c"})
    assert set(by_environment.peers) == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"peer_server": ALL},
            "--peer-server needs --server-id as well: agents ask for servers by their ids",
        ),
        (
            {"server_id": "a", "peer_server": ("b",)},
            "--peer-server takes ID=HOST:PORT, such as two=10.0.0.2:8091, not 'b'",
        ),
        ({"server_id": "a", "peer_server": ("b=x",)}, "--peer-server b=x: no port in 'x'"),
        (
            {"server_id": "a", "peer_server": ("b=x:0",)},
            "--peer-server b=x:0: port out of range: 0",
        ),
        (
            {"server_id": "a", "peer_server": ("b=x:1", "b=x:2")},
            "--peer-server: b is there twice, with different addresses",
        ),
        (
            {"server_id": "a", "peer_server": ("b/1=x:1",)},
            "--peer-server b/1=x:1: an id that agents can ask for has 1 to 200 letters, digits,"
            " '.', '_' or '-'",
        ),
        (
            {"server_id": "a@b", "peer_server": ALL},
            "--server-id: an id that agents can ask for has 1 to 200 letters, digits, '.', '_' or"
            " '-'",
        ),
        (
            {"server_id": "a", "peer_server": ("b",), "server_count": 2},
            "--peer-server takes ID=HOST:PORT, such as two=10.0.0.2:8091, not 'b'",
        ),
        ({"server_count": 0}, "--server-count must be at least 1, not 0"),
        (
            {"advertise_agent_address": "10.0.0.1:8091"},
            "--advertise-agent-address needs --enable-lease-controller as well: it is written"
            " to the Lease, where other servers find it",
        ),
        (
            {"advertise_agent_address": "10.0.0.1", "enable_lease_controller": True},
            "--advertise-agent-address: no port in '10.0.0.1'",
        ),
    ],
)
def test_wrong_ones_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(UDS, **changes).validate()
    assert str(raised.value) == sentence


def test_an_odd_id_is_no_trouble_without_peers() -> None:
    replace(UDS, server_id="a@b").validate()
