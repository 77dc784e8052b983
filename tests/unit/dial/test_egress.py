"""The table of kube-apiserver's requests: complete, documented, and explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.dial import settings_egress_selector as egress
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_egress_selector import (
    BY_NAME,
    KINDS,
    SELECTABLE,
    Explanation,
    RequestKind,
    Today,
    explain_destination,
    way_text,
)
from isthmus.values import HostPort

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "egress-requests.md").read_text()
UDS = NetworkConnection(protocol=NetworkProtocol.PACKET, uds="/run/server.sock")
DIRECT = NetworkConnection(protocol=NetworkProtocol.DIRECT)


def config(**networks: NetworkConnection) -> ConnectivityConfig:
    return ConnectivityConfig(
        networks={
            name: NetworkConfig(name=name, connection=connection)
            for name, connection in networks.items()
        }
    )


def explain(kind: RequestKind, config: ConnectivityConfig) -> Explanation:
    return egress.explain(kind, config, config)


# The seed's list and kube-apiserver's call sites, typed from them.
@pytest.mark.parametrize(
    ("name", "network", "today"),
    [
        ("etcd", "etcd", "etcd"),
        ("pods/exec", "cluster", "cluster"),
        ("pods/attach", "cluster", "cluster"),
        ("pods/log", "cluster", "cluster"),
        ("pods/portforward", "cluster", "cluster"),
        ("pods/proxy", "cluster", "cluster"),
        ("nodes/proxy", "cluster", "cluster"),
        ("services/proxy", "cluster", "cluster"),
        ("admission-webhook/service", "cluster", "cluster"),
        ("admission-webhook/url", "controlplane", "controlplane"),
        ("conversion-webhook/service", "cluster", "cluster"),
        ("conversion-webhook/url", "controlplane", "controlplane"),
        ("webhook/own-api", "controlplane", Today.LOOPBACK),
        ("aggregated-api/service", "cluster", "cluster"),
        ("aggregated-api/url", "controlplane", "cluster"),
        ("authentication-webhook", "controlplane", "controlplane"),
        ("authorization-webhook", "controlplane", "controlplane"),
        ("audit-webhook", "controlplane", "controlplane"),
        ("image-policy-webhook", "controlplane", Today.DIRECT),
        ("kms", "controlplane", Today.DIRECT),
        ("oidc", "controlplane", Today.PER_ISSUER),
        ("tracing", "controlplane", "controlplane"),
        ("peer-proxy", "controlplane", "controlplane"),
    ],
)
def test_network_of_each_kind(name: str, network: str, today: str | Today) -> None:
    kind = BY_NAME[name]
    assert (kind.network, kind.today) == (network, today)


def test_no_kind_is_left_out() -> None:
    assert len(KINDS) == len(BY_NAME) == 23
    assert {kind.network for kind in KINDS} == set(SELECTABLE)
    assert all(kind.note for kind in KINDS if kind.differs)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_page_has_it(kind: RequestKind) -> None:
    today = kind.today.value if isinstance(kind.today, Today) else kind.today
    shown = f"**{today}**" if kind.differs else today
    row = f"| `{kind.name}` | {kind.title} | {kind.network} | {shown} | {kind.note} |"
    assert row in PAGE


def test_a_configured_network() -> None:
    found = explain(BY_NAME["pods/exec"], config(cluster=UDS))
    assert found.way is not None and found.way.connection == UDS
    assert found.today == "cluster, by GRPC at unix:/run/server.sock"


def test_a_network_that_is_not_configured_is_dialed_directly_by_kube_apiserver() -> None:
    found = explain(BY_NAME["etcd"], config(cluster=UDS))
    assert found.way is None
    assert found.today == "directly: etcd is not configured"


def test_master_is_the_control_plane() -> None:
    found = explain(BY_NAME["audit-webhook"], config(master=DIRECT))
    assert found.way is not None
    assert found.today == "controlplane, directly"


@pytest.mark.parametrize(
    ("name", "today"),
    [
        ("webhook/own-api", "itself, by loopback"),
        ("kms", "directly, whatever is configured"),
        ("oidc", "as each issuer's egressSelectorType says, directly if it is empty"),
    ],
)
def test_what_no_selection_changes(name: str, today: str) -> None:
    assert explain(BY_NAME[name], config(controlplane=UDS, cluster=UDS)).today == today


def test_what_kube_apiserver_does_not_read_it_does_not_do() -> None:
    kind, both = BY_NAME["pods/exec"], config(cluster=UDS, etcd=DIRECT)
    found = egress.explain(kind, both, config(etcd=DIRECT))
    assert found.way is not None
    assert found.today == "directly: cluster is not configured"
    found = egress.explain(kind, both, None)
    assert found.today == "cluster, of an egress selector: it cannot read this file"


def test_a_destination_without_a_network_depends_on_the_request() -> None:
    selector = config(cluster=UDS, etcd=DIRECT)
    found = explain_destination(HostPort("10.0.0.1", 443), selector, selector)
    assert [(one.network, one.way is not None, one.today) for one in found] == [
        ("controlplane", False, "directly: controlplane is not configured"),
        ("cluster", True, "cluster, by GRPC at unix:/run/server.sock"),
        ("etcd", True, "etcd, directly"),
    ]
    kinds = [kind for one in found for kind in one.note.removeprefix("for ").split(", ")]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == {kind.name for kind in KINDS if isinstance(kind.today, str)}


def test_ways_in_words() -> None:
    tcp = NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=HostPort("fd00::1", 8090))
    custom = NetworkConnection(protocol=NetworkProtocol.CUSTOM, dialer="vpn")
    assert way_text(tcp) == "by HTTPConnect at [fd00::1]:8090"
    assert way_text(custom) == "by the dialer vpn"
