"""Names in nftables: the vectors are those of kube-proxy's own tests."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import Endpoint, PortKey, PortProtocol
from isthmus.programs.node_proxy.rules.nftables.base import (
    NftContainer,
    endpoint_base,
    is_port_chain,
    port_base,
)


def key(namespace: str, name: str, port: str = "p80") -> PortKey:
    return PortKey(ServiceName(namespace, name), port, PortProtocol.TCP)


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("ns1", "svc1", "ULMVA6XW-ns1/svc1/tcp/p80"),
        ("ns2", "svc2", "42NFTM6N-ns2/svc2/tcp/p80"),
        ("ns3", "svc3", "4AT6LBPK-ns3/svc3/tcp/p80"),
        ("ns4", "svc4", "LAUZTJTB-ns4/svc4/tcp/p80"),
        ("ns5", "svc5", "HVFWP5L3-ns5/svc5/tcp/p80"),
    ],
)
def test_a_port_is_named_as_by_kube_proxy(namespace: str, name: str, expected: str) -> None:
    assert port_base(key(namespace, name)) == expected


def test_an_endpoint_is_named_as_by_kube_proxy() -> None:
    named = endpoint_base(key("ns5", "svc5"), Endpoint(ip="10.180.0.3", port=80))
    assert named == "GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80"


def test_a_port_without_a_name_ends_with_a_slash() -> None:
    assert port_base(key("ns1", "svc1", "")).endswith("-ns1/svc1/tcp/")


def test_colons_become_dots() -> None:
    named = endpoint_base(key("ns1", "svc1"), Endpoint(ip="fd00:10::1", port=8443))
    assert named.endswith("__fd00.10..1/8443")


def test_what_is_too_long_is_cut_and_still_told_apart() -> None:
    long = key("n" * 63, "s" * 63, "p" * 63)
    one, two = (
        endpoint_base(long, Endpoint(ip=f"fd00:1111:2222:3333:4444:5555:6666:777{each}", port=80))
        for each in (1, 2)
    )
    assert len(one) == len(two) == 240
    assert one.endswith("...")
    assert one != two


def test_only_chains_of_ports_have_slashes() -> None:
    assert is_port_chain("service-" + port_base(key("a", "b")))
    assert not any(is_port_chain(container) for container in NftContainer)
