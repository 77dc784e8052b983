"""Configurations that are good: what becomes of them, one file or several, one kind or both."""

from __future__ import annotations

import os
import shutil
from ipaddress import ip_network
from pathlib import Path

import pytest

from isthmus.dial.connectivity_files import load
from isthmus.dial.rules_connectivity import (
    ClientTls,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity import read, read_part
from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort

# KEP-1281's own sample, word for word.
SAMPLE = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: direct
  connection:
    type: direct
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: Master
  connection:
    type: grpc
    url: grpc://1.2.3.4:5678
    caBundle: file1.ca
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: Cluster
  connection:
    type: grpc
    url: grpc://1.2.3.5:5679
    caBundle: file2.ca

"""
HEAD = "apiVersion: connectivityservice.k8s.io/v1alpha1\nkind: ConnectivityServiceConfiguration\n"
EGRESS = """\
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- {name: etcd, connection: {proxyProtocol: Direct}}
"""


def service(connection: str, more: str = "", name: str = "cluster") -> str:
    return f"{HEAD}connectionService: {{name: {name}, connection: {{{connection}}}{more}}}\n"


def one(connection: str, more: str = "") -> NetworkConfig:
    (network,) = read(service(connection, more), name="x").networks.values()
    return network


def test_the_sample_of_the_kep() -> None:
    config = read(SAMPLE, name="sample.yaml")
    assert config.networks == {
        "direct": NetworkConfig(
            name="direct",
            connection=NetworkConnection(protocol=NetworkProtocol.DIRECT),
            where="sample.yaml:4",
        ),
        "master": NetworkConfig(
            name="master",
            connection=NetworkConnection(
                protocol=NetworkProtocol.PAYLOAD,
                tcp=HostPort("1.2.3.4", 5678),
                tls=ClientTls(ca_bundle="file1.ca"),
            ),
            where="sample.yaml:11",
        ),
        "cluster": NetworkConfig(
            name="cluster",
            connection=NetworkConnection(
                protocol=NetworkProtocol.PAYLOAD,
                tcp=HostPort("1.2.3.5", 5679),
                tls=ClientTls(ca_bundle="file2.ca"),
            ),
            where="sample.yaml:20",
        ),
    }
    assert config.network("MASTER") is config.network("controlplane") is not None


TLS = ClientTls(ca_bundle="a", client_cert="c", client_key="k", server_name="s")


@pytest.mark.parametrize(
    ("text", "connection"),
    [
        (
            "type: grpc, url: 'grpc://a:1', caBundle: a, clientCert: c, clientKey: k,"
            " tlsServerName: s",
            NetworkConnection(protocol=NetworkProtocol.PAYLOAD, tcp=HostPort("a", 1), tls=TLS),
        ),
        (
            "type: http-connect, url: 'https://[::1]:1/'",
            NetworkConnection(
                protocol=NetworkProtocol.HTTP_CONNECT, tcp=HostPort("::1", 1), tls=ClientTls()
            ),
        ),
        (
            "type: konnectivity, url: 'https://a:1'",
            NetworkConnection(
                protocol=NetworkProtocol.PACKET, tcp=HostPort("a", 1), tls=ClientTls()
            ),
        ),
        (
            "type: konnectivity, url: 'unix:///run/a b%20.sock'",
            NetworkConnection(protocol=NetworkProtocol.PACKET, uds="/run/a b%20.sock"),
        ),
        (
            "type: http-connect, url: 'http://a:1', insecure: true",
            NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=HostPort("a", 1)),
        ),
        (
            "type: grpc, url: 'grpc://a:1', insecure: false",
            NetworkConnection(
                protocol=NetworkProtocol.PAYLOAD, tcp=HostPort("a", 1), tls=ClientTls()
            ),
        ),
        (
            "type: custom, dialer: vpn, options: {gateway: 'a:1', empty: ''}",
            NetworkConnection(
                protocol=NetworkProtocol.CUSTOM,
                dialer="vpn",
                options={"gateway": "a:1", "empty": ""},
            ),
        ),
    ],
)
def test_our_additions(text: str, connection: NetworkConnection) -> None:
    assert one(text).connection == connection


def test_destinations_of_a_network() -> None:
    more = ", cidrs: [10.0.0.0/8, 'fd00::/8', 192.0.2.1], hosts: [A.example., .svc]"
    network = one("type: direct", more)
    assert network.cidrs == tuple(map(ip_network, ("10.0.0.0/8", "fd00::/8", "192.0.2.1/32")))
    assert network.hosts == ("a.example", ".svc")


def test_neighbours_do_not_overlap() -> None:
    cidrs = "[10.0.0.0/9, 10.128.0.0/9, 11.0.0.0/8, '::/1', '8000::/1', 0.0.0.0/8]"
    assert len(one("type: direct", f", cidrs: {cidrs}").cidrs) == 6


def test_both_kinds_side_by_side() -> None:
    part = read_part(service("type: direct") + "---\n" + EGRESS, name="x")
    assert [kind for kind, _ in part.kinds] == [
        "ConnectivityServiceConfiguration",
        "EgressSelectorConfiguration",
    ]
    assert part.warnings == ("x:5: kube-apiserver reads the first document only",)
    config = read(service("type: direct") + "---\n" + EGRESS, name="x")
    assert [*config.networks] == ["cluster", "etcd"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = pki.init("pki")
    for file in (made.ca_cert, made.client_cert, made.client_key, made.server_key):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_several_files_are_one_configuration(here: Path) -> None:
    (here / "a.yaml").write_text(service("type: direct"))
    (here / "b.yaml").write_text(EGRESS)
    assert [*load(["a.yaml", "b.yaml"]).config.networks] == ["cluster", "etcd"]


def test_all_errors_of_all_files(here: Path) -> None:
    (here / "a.yaml").write_text(service("type: direct", ", cidrs: [10.0.0.0/8]"))
    second = service("type: grpc, url: 'grpc://a:1', caBundle: nope", ", cidrs: [10.1.0.0/16]", "b")
    (here / "b.yaml").write_text(second)
    line = second.splitlines()[2]
    (here / "c.yaml").write_text(service("type: direct"))
    (here / "d.yaml").write_text("[")
    (here / "e.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as caught:
        load(["a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"])
    assert sorted(str(caught.value).splitlines()) == [
        f"b.yaml:3:{line.index('nope') + 1}: connectionService.connection.caBundle:"
        " nope: no such file",
        f"b.yaml:3:{line.index('10.1') + 1}: connectionService.cidrs[0]:"
        " 10.1.0.0/16 overlaps 10.0.0.0/8 of network cluster at a.yaml:3",
        "c.yaml:3:27: connectionService.name: 'cluster' is defined already: cluster at a.yaml:3",
        "cannot read e.yaml: not UTF-8 text",
        "d.yaml:1:2: not YAML: while parsing a flow node, expected the node content,"
        " but found '<stream end>'",
    ]


def test_a_pair_that_fits(here: Path) -> None:
    tls = "caBundle: ca.crt, clientCert: client.crt, clientKey: client.key"
    (here / "a.yaml").write_text(service(f"type: grpc, url: 'grpc://a:1', {tls}"))
    assert load(["a.yaml"]).warnings == ()
    os.chmod("client.key", 0o644)
    (warning,) = load(["a.yaml"]).warnings
    assert warning == (
        "a.yaml:3: connectionService.connection.clientKey: client.key is readable by every user"
    )
    assert load(["a.yaml"], check_files=False).warnings == ()


def test_a_pair_that_does_not_fit(here: Path) -> None:
    tls = "clientCert: client.crt, clientKey: server.key"
    (here / "a.yaml").write_text(service(f"type: grpc, url: 'grpc://a:1', {tls}"))
    with pytest.raises(ConfigError, match=r"clientKey: server\.key: key does not match the cert"):
        load(["a.yaml"])


def test_no_client_certificate_is_a_warning(here: Path) -> None:
    (here / "a.yaml").write_text(service("type: grpc, url: 'grpc://a:1', caBundle: ca.crt"))
    (warning,) = load(["a.yaml"]).warnings
    assert "network cluster has no client certificate" in warning


def test_master_is_a_warning() -> None:
    part = read_part(EGRESS.replace("etcd", "master"), name="x")
    assert part.warnings == (
        "x:4: egressSelections[0].name: master is the old name of controlplane",
    )
