"""Reading --cluster-network: however it is spelled, and what is wrong with it."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.dial.settings_networks import ClusterNetwork, parse_network, parse_networks
from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.settings.parsing import load
from isthmus.values import HostPort

A, B = "east=10.1.0.0/16,fd00:1::/48;via=direct", "west=10.2.0.0/16"
EAST = ClusterNetwork(
    name="east",
    cidrs=(ip_network("10.1.0.0/16"), ip_network("fd00:1::/48")),
    via=NetworkConnection(protocol=NetworkProtocol.DIRECT),
)
WEST = ClusterNetwork(name="west", cidrs=(ip_network("10.2.0.0/16"),))


def test_none_means_no_restriction() -> None:
    assert parse_networks(()) is None
    assert ServerSettings().network.networks is None


@pytest.mark.parametrize("given", [[A, B], [f"{A},{B}"]])
def test_flags_add_up(given: list[str]) -> None:
    settings = load(ServerSettings, {"cluster_network": given}, {})
    assert settings.network.networks is not None
    assert list(settings.network.networks) == [EAST, WEST]


@pytest.mark.parametrize("given", [[""], [A, ""], [" "], [","]])
def test_an_empty_flag_lifts_no_restriction(given: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ServerSettings, {"cluster_network": given}, {})
    said = "--cluster-network is empty: say NAME=CIDR[,CIDR...][;via=WAY], or leave it out"
    assert str(caught.value) == said
    with pytest.raises(ConfigError, match="--policy-file is empty: say FILE, or leave it out"):
        load(ServerSettings, {"policy_file": ["policy.yaml", ""]}, {})


@pytest.mark.parametrize("texts", [("",), (A, "")])
def test_nor_does_an_empty_text(texts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--cluster-network is empty"):
        parse_networks(texts)


def test_settings_may_be_made_of_whole_texts() -> None:
    networks = compose(ServerSettings, cluster_network=(A, B)).network.networks
    assert networks is not None
    assert list(networks) == [EAST, WEST]


def test_names_are_folded() -> None:
    assert parse_network("Master=192.0.2.1").name == "master"


def via(text: str) -> ClusterNetwork:
    return parse_network(f"n=10.0.0.0/8;via={text}")


@pytest.mark.parametrize(
    ("text", "connection"),
    [
        ("agents", None),
        ("direct", NetworkConnection(protocol=NetworkProtocol.DIRECT)),
        ("dialer:vpn", NetworkConnection(protocol=NetworkProtocol.CUSTOM, dialer="vpn")),
        (
            "dialer:vpn?device=tun0&key=a%26b",
            NetworkConnection(
                protocol=NetworkProtocol.CUSTOM,
                dialer="vpn",
                options={"device": "tun0", "key": "a&b"},
            ),
        ),
        (
            "server:http-connect:///run/a%2Cb%20c.sock",
            NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, uds="/run/a,b c.sock"),
        ),
        (
            "server:konnectivity:///run/k.sock",
            NetworkConnection(protocol=NetworkProtocol.PACKET, uds="/run/k.sock"),
        ),
        (
            "server:kep://[fd00::1]:8090?ca=/pki/ca.crt&cert=/pki/c.crt&key=/pki/c.key&name=proxy",
            NetworkConnection(
                protocol=NetworkProtocol.PAYLOAD,
                tcp=HostPort("fd00::1", 8090),
                tls=ClientTls(
                    ca_bundle="/pki/ca.crt",
                    client_cert="/pki/c.crt",
                    client_key="/pki/c.key",
                    server_name="proxy",
                ),
            ),
        ),
        (
            "server:http-connect://proxy.example:8090",
            NetworkConnection(
                protocol=NetworkProtocol.HTTP_CONNECT,
                tcp=HostPort("proxy.example", 8090),
                tls=ClientTls(),
            ),
        ),
    ],
)
def test_every_way(text: str, connection: NetworkConnection | None) -> None:
    found = via(text)
    assert found.via == connection
    assert found.keeps_half_close is None  # the server says it


def test_a_server_that_keeps_no_half_closes() -> None:
    found = via("server:konnectivity:///run/k.sock?half-close=false")
    assert found.keeps_half_close is False


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("east", "is not NAME=CIDR, such as east="),
        ("=10.0.0.0/8", "'' is not a name"),
        ("e ast=10.0.0.0/8", "'e ast' is not a name"),
        ("east=", "'' is not a network such as 10.0.0.0/8, nor an address"),
        ("east=10.0.0.0/8,", "'' is not a network"),
        ("east=10.0.0.0/33", "'10.0.0.0/33' is not a network"),
        ("east=10.0.0.0/255.0.0.0", "is not a network"),
        ("east=fe80::1%eth0", "is not a network"),
        ("east=10.0.0.1/8", "'10.0.0.1/8' has bits below its prefix, did you mean 10.0.0.0/8?"),
        ("east=db.example", "'db.example' is not a network"),
        ("east=10.0.0.0/8;by=agents", "only ;via=WAY may follow the addresses, once"),
        ("east=10.0.0.0/8;via=direct;via=agents", "only ;via=WAY may follow"),
        ("east=10.0.0.0/8;via=agent", "not 'agent', did you mean agents?"),
        ("east=10.0.0.0/8;via=direct:x", "via=direct takes nothing behind it"),
        ("east=10.0.0.0/8;via=dialer:", "'' is not the name of a dialer"),
        ("east=10.0.0.0/8;via=server:/run/x.sock", "a server is http-connect://"),
        ("east=10.0.0.0/8;via=server:konectivity:///x", "did you mean konnectivity?"),
        ("east=10.0.0.0/8;via=server:https://proxy:1", "a server is http-connect://"),
        ("east=10.0.0.0/8;via=server:kep://", "'' is not the path of a UNIX socket"),
        ("east=10.0.0.0/8;via=server:kep://run/x.sock", "a UNIX socket has three slashes"),
        ("east=10.0.0.0/8;via=server:kep://proxy", "no port in 'proxy'"),
        ("east=10.0.0.0/8;via=server:kep://proxy:1?cert=a", "cert= needs key= as well"),
        ("east=10.0.0.0/8;via=server:kep://proxy:1?crt=a", "unknown option 'crt', did you mean"),
        ("east=10.0.0.0/8;via=server:kep://proxy:1?ca=a&ca=b", "option ca is there twice"),
        ("east=10.0.0.0/8;via=server:kep://proxy:1?ca=", "option ca is empty"),
        (
            "east=10.0.0.0/8;via=server:kep://proxy:1?name=a%20b",
            "not a host name or address: 'a b'",
        ),
        ("east=10.0.0.0/8;via=server:kep:///x?ca=a", "unknown option 'ca'"),
        ("east=10.0.0.0/8;via=server:kep:///x?half-close=maybe", "neither true nor false"),
        (f"east=10.0.0.0/8;via=server:kep:///{'x' * 107}", "in 107 bytes"),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_network(text)
    said = str(caught.value)
    assert said.startswith("--cluster-network ")
    assert what in said
    assert "\n" not in said


def test_overlaps_are_refused_with_both_ranges() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_networks(["east=10.0.0.0/8", "west=192.0.2.0/24,10.2.0.0/16"])
    assert str(caught.value) == (
        "--cluster-network: 10.2.0.0/16 of network west and 10.0.0.0/8 of network east overlap,"
        " and a destination is routed by its address alone"
    )


def test_there_are_not_too_many() -> None:
    texts = [f"n{i}=10.{i // 256}.{i % 256}.0/24" for i in range(1001)]
    assert len(parse_networks(texts[:1000]) or ()) == 1000
    with pytest.raises(ConfigError, match="more than 1000 networks"):
        parse_networks(texts)
