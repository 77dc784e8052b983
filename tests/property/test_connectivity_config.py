"""Configurations of any text and any shape, and the model written and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity import read
from isthmus.dial.settings_connectivity_fields import KINDS, explain
from isthmus.dial.settings_connectivity_service import TYPES
from isthmus.dial.settings_connectivity_writing import to_connectivity_service, to_egress_selector
from isthmus.dial.settings_egress_selector import NAMES, PROTOCOLS
from isthmus.errors import ConfigError
from isthmus.text.located_yaml import MAX_ERRORS
from isthmus.values import HostPort

KEYS = sorted({field.name for kind in KINDS for field in kind.fields})
WORDS = [
    *(kind.name for kind in KINDS), *(version for kind in KINDS for version in kind.versions),
    *NAMES, *TYPES, *PROTOCOLS, "master", "y", "<<", "1e3", "", "\0", "\ud800", "~", "x" * 300,
    "https://a:1", "http://a:1", "grpc://a:1", "unix:///x", "unix://", "https://", "https://[", "://",
    "10.0.0.0/8", "10.0.0.0/7", "::/0", "*.a", ".a", "a.b",
]  # fmt: skip

words = st.sampled_from([word for word in WORDS if word != "\ud800"]) | st.text(max_size=5)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=3)
    | words
)  # fmt: skip
keys = st.sampled_from([*KEYS, "<<", "name"]) | words | st.integers(0, 3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)
connection = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
documents = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from([one for kind in KINDS for one in kind.versions]),
        "kind": st.sampled_from([kind.name for kind in KINDS]),
    },
    optional={
        "egressSelections": st.lists(
            st.fixed_dictionaries({"name": words, "connection": connection | values}), max_size=3
        ),
        "connectionService": st.fixed_dictionaries(
            {"name": words, "connection": connection | values},
            optional={"cidrs": st.lists(words, max_size=3), "hosts": st.lists(words, max_size=3)},
        ),
        "name": values,
    },
)


def check(text: str) -> ConnectivityConfig | None:
    """Read it; every line of what is wrong begins with the name, and none is empty."""
    try:
        return read(text, name="x.yaml")
    except ConfigError as error:
        lines = str(error).splitlines()
        assert 0 < len(lines) <= MAX_ERRORS + 1
        assert all(line.startswith("x.yaml") for line in lines), lines
        return None


@given(st.text(max_size=200) | st.text("{}[]:-\n\t &*<!'\"abkind", max_size=60))
def test_any_text_is_read_or_told(text: str) -> None:
    check(text)


@given(st.lists(documents | values, max_size=3))
def test_any_documents_are_read_or_told(found: list[Any]) -> None:
    check(yaml.safe_dump_all(found, sort_keys=False))


@given(documents)
@example(
    {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "\r", "connection": {}}, {"name": "\r", "connection": {}}],
    }
)
def test_json_is_yaml(found: dict[str, Any]) -> None:
    text = json.dumps(found, indent="\t", default=str)
    check(text)


@given(st.text(max_size=40) | st.lists(st.sampled_from(KEYS), max_size=5).map(".".join))
def test_anything_is_explained_or_told(asked: str) -> None:
    try:
        assert "KIND: " in explain(asked)
    except ConfigError as error:
        assert str(error).startswith("there is no field")


# Models.

labels = st.text("abcz019-_", min_size=1, max_size=8).filter(lambda text: text.strip("-_") == text)
hostnames = st.lists(labels, min_size=1, max_size=3).map(".".join).map(lambda text: f"{text}.x")
paths = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc", "Cn"]),
    min_size=1,
    max_size=30,
)
targets = st.builds(
    HostPort,
    hostnames | st.ip_addresses().map(str),
    st.integers(1, 65535),
)
pairs = st.builds(ClientTls, ca_bundle=paths | st.just(""), client_cert=paths, client_key=paths,
                  server_name=hostnames | st.just(""))  # fmt: skip
no_pairs = st.builds(ClientTls, ca_bundle=paths | st.just(""), server_name=hostnames)
direct = st.just(NetworkConnection(protocol=NetworkProtocol.DIRECT))
by_uds = st.sampled_from([NetworkProtocol.HTTP_CONNECT, NetworkProtocol.PACKET])
convertible = (
    direct
    | st.builds(NetworkConnection, protocol=by_uds, uds=paths.map("/{}".format))
    | st.builds(
        NetworkConnection, protocol=st.just(NetworkProtocol.HTTP_CONNECT), tcp=targets, tls=pairs
    )
)
proxied = st.sampled_from(
    [NetworkProtocol.HTTP_CONNECT, NetworkProtocol.PACKET, NetworkProtocol.PAYLOAD]
)
any_connection = (
    convertible
    | st.builds(NetworkConnection, protocol=proxied, tcp=targets, tls=pairs | no_pairs | st.none())
    | st.builds(
        NetworkConnection,
        protocol=st.just(NetworkProtocol.CUSTOM),
        dialer=labels,
        options=st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3),
    )
)


def model(connections: dict[str, NetworkConnection]) -> ConnectivityConfig:
    return ConnectivityConfig(
        networks={
            name: NetworkConfig(
                name=name,
                connection=connection,
                cidrs=(
                    ip_network((10 << 24 | number << 16, 16)),
                    ip_network(f"fd{number:02x}::/16"),
                ),
                hosts=(f"{number}.example", f".{number}.svc"),
            )
            for number, (name, connection) in enumerate(connections.items())
        }
    )


def plain(config: ConnectivityConfig) -> list[NetworkConfig]:
    return [replace(network, where="") for network in config.networks.values()]


@given(st.dictionaries(labels.filter(lambda name: name != "master"), any_connection, min_size=1))
def test_written_as_connectivity_service_and_read_again(
    found: dict[str, NetworkConnection],
) -> None:
    config = model(found)
    assert plain(read(to_connectivity_service(config), name="x")) == plain(config)


@given(
    st.dictionaries(st.sampled_from(NAMES), convertible), st.sampled_from(["v1beta1", "v1alpha1"])
)
def test_written_as_egress_selector_and_read_again(
    found: dict[str, NetworkConnection], version: str
) -> None:
    networks = [replace(one, cidrs=(), hosts=()) for one in model(found).networks.values()]
    config = ConnectivityConfig(networks={one.name: one for one in networks})
    again = read(to_egress_selector(config, version=version), name="x")
    assert plain(again) == plain(config)
    if networks:
        there = read(to_connectivity_service(again), name="x")
        assert to_egress_selector(there, version=version) == to_egress_selector(
            config, version=version
        )
