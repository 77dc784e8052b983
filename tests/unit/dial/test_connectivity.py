"""Finding a network by name and by destination."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.values import HostPort

DIRECT = NetworkConnection(protocol=NetworkProtocol.DIRECT)


def network(name: str, *cidrs: str, hosts: tuple[str, ...] = ()) -> NetworkConfig:
    return NetworkConfig(
        name=name, connection=DIRECT, cidrs=tuple(map(ip_network, cidrs)), hosts=hosts
    )


CONFIG = ConnectivityConfig(
    networks={
        one.name: one
        for one in (
            network("cluster", "10.0.0.0/8", "fd00::/8", hosts=(".svc", "kubelet.example.com")),
            network("pods", "10.1.0.0/16", hosts=(".pods.svc",)),
            network("master"),
        )
    }
)


def name_of(found: NetworkConfig | None) -> str | None:
    return found.name if found else None


@pytest.mark.parametrize("name", ["cluster", "Cluster", "CLUSTER"])
def test_names_have_no_case(name: str) -> None:
    assert name_of(CONFIG.network(name)) == "cluster"


def test_master_and_controlplane_are_one() -> None:
    assert name_of(CONFIG.network("controlplane")) == name_of(CONFIG.network("Master")) == "master"
    other = ConnectivityConfig(networks={"controlplane": network("controlplane")})
    assert name_of(other.network("master")) == "controlplane"


def test_an_unknown_network_is_none() -> None:
    assert CONFIG.network("etcd") is None


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("10.9.0.1:443", "cluster"),
        ("10.1.0.1:443", "pods"),  # the narrowest
        ("[fd00::1]:443", "cluster"),
        ("192.0.2.1:443", None),
        ("[2001:db8::1]:443", None),
        ("web.default.svc:80", "cluster"),
        ("WEB.default.SVC.:80", "cluster"),
        ("a.pods.svc:80", "pods"),
        ("kubelet.example.com:10250", "cluster"),
        ("other.example.com:10250", None),
        ("svc:80", None),  # a suffix is not the name itself
    ],
)
def test_the_network_of_a_destination(target: str, found: str | None) -> None:
    assert name_of(CONFIG.network_of(HostPort.parse(target))) == found
