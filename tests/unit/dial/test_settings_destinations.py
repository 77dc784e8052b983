"""Reading --allowed-destination: however it is spelled, and what is wrong with it."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.dial.settings_destinations import (
    MAX_DESTINATIONS,
    Destination,
    parse_destination,
    parse_destinations,
)
from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.settings.options import compose
from isthmus.settings.parsing import load

ON = (f"{CLUSTER_TO_MASTER}=true",)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("localhost:6443", Destination(name="localhost", port=6443)),
        ("API.example.com.:443", Destination(name="API.example.com.", port=443)),
        ("10.0.0.1:6443", Destination(network=ip_network("10.0.0.1/32"), port=6443)),
        ("[fd00::1]:6443", Destination(network=ip_network("fd00::1/128"), port=6443)),
        ("10.0.0.0/28:6443", Destination(network=ip_network("10.0.0.0/28"), port=6443)),
        ("[fd00::/64]:6443", Destination(network=ip_network("fd00::/64"), port=6443)),
        ("0.0.0.0/0:443", Destination(network=ip_network("0.0.0.0/0"), port=443)),
    ],
)
def test_what_can_be_listed(text: str, read: Destination) -> None:
    assert parse_destination(text) == read
    assert str(read) == text


def test_flags_add_up_and_none_lists_nothing() -> None:
    given = {"allowed_destination": ["localhost:6443", "10.0.0.1:1,10.0.0.1:2", "localhost:6443"]}
    listed = load(ServerSettings, given, {}).node_traffic.destinations
    assert list(map(str, listed)) == ["localhost:6443", "10.0.0.1:1", "10.0.0.1:2"]
    assert not ServerSettings().node_traffic.destinations


EXAMPLE = "localhost:6443, 10.0.0.0/28:6443 or [fd00::/64]:6443"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("localhost", f"has no port, list it as {EXAMPLE}"),
        ("localhost:", f"has no port, list it as {EXAMPLE}"),
        ("localhost:0", "port out of range: 0"),
        ("localhost:70000", "port out of range: 70000"),
        ("localhost:https", "not a port: 'https'"),
        ("10.0.0.0/28", f"is not a network and a port, list it as {EXAMPLE}"),
        ("10.0.0.0/28:x", "not a port: 'x'"),
        ("10.0.0.1/28:1", "10.0.0.1/28 has bits below its prefix, did you mean 10.0.0.0/28?"),
        ("10.0.0.0/33:1", "10.0.0.0/33 is not a network such as 10.0.0.0/8, nor an address"),
        ("fd00::/64:6443", f"is not a network and a port, list it as {EXAMPLE}"),
        ("[fd00::]/64:6443", f"is not a network and a port, list it as {EXAMPLE}"),
        ("fd00::1:6443", "an IPv6 address needs brackets: 'fd00::1:6443'"),
        ("[::ffff:10.0.0.1]:1", "is an IPv4 address, list it as 10.0.0.1:1"),
        ("[::ffff:10.0.0.0/120]:1", "is a range of IPv4 addresses, list it as such"),
        ("0.0.0.0:1", "0.0.0.0 is any address of a host and none to dial"),
        ("[::]:1", ":: is any address of a host and none to dial"),
        ("0x7f.1:1", "not a host name or address: '0x7f.1'"),
        ("2130706433:1", "not a host name or address: '2130706433'"),
        ("127.1:1", "not a host name or address: '127.1'"),
        ("*.example.com:1", "not a host name or address: '*.example.com'"),
        ("[fe80::1%eth0]:1", "not an IPv6 address in brackets: '[fe80::1%eth0]:1'"),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_destination(text)
    assert str(caught.value) == f"--allowed-destination {text}: {why}"


def test_there_is_a_bound() -> None:
    many = [f"10.0.0.1:{port}" for port in range(1, MAX_DESTINATIONS + 2)]
    assert len(parse_destinations(many[:-1])) == MAX_DESTINATIONS
    with pytest.raises(ConfigError, match="more than 1000 destinations"):
        parse_destinations(many)


@pytest.mark.parametrize(
    ("gates", "listed", "warning"),
    [
        ((), (), ""),
        (ON, ("localhost:6443",), ""),
        ((), ("localhost:6443",), "has no effect"),
        (ON, (), "nodes can reach nothing"),
        (ON, ("0.0.0.0/0:443",), "every host"),
        (ON, ("[::/0]:443",), "every host"),
    ],
)
def test_what_is_hardly_meant_is_a_warning(
    gates: tuple[str, ...], listed: tuple[str, ...], warning: str
) -> None:
    said = compose(ServerSettings, feature_gates=gates, allowed_destination=listed).warnings()
    assert len(said) == bool(warning)
    assert warning in "".join(said)


def test_agents_that_prove_nothing_and_reach_the_control_plane_are_a_warning() -> None:
    settings = compose(
        ServerSettings,
        feature_gates=ON,
        allowed_destination=("localhost:6443",),
        insecure_agents=True,
    )
    [said] = settings.warnings()
    assert said.startswith("--insecure-agents and EnableClusterToMasterTraffic")
