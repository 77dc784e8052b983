"""Stale UDP flows: which they are."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.kernel.conntrack import UdpFlow, stale_flows
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)

GOOD, GONE = ("10.1.0.1", 5300), ("10.1.0.2", 5300)


def view(
    *serving: tuple[str, int],
    protocol: PortProtocol = PortProtocol.UDP,
    family: IpFamily = IpFamily.IPV4,
    cluster_ip: str = "10.96.0.10",
) -> ServiceView:
    key = PortKey(ServiceName("ns", "dns"), "dns", protocol)
    port = ServicePort(
        key=key, cluster_ip=cluster_ip, port=53, node_port=30053,
        external_ips=("192.0.2.1",), load_balancer_ips=("198.51.100.1",),
    )  # fmt: skip
    endpoints = tuple(Endpoint(ip=ip, port=number) for ip, number in serving)
    backed = BackedPort(port=port, backends=ChosenEndpoints(serving=endpoints))
    return ServiceView(family=family, ports={key: backed})


@pytest.mark.parametrize(
    "to",
    [("10.96.0.10", 53), ("192.0.2.1", 53), ("198.51.100.1", 53), ("172.16.0.1", 30053)],
)
def test_a_flow_to_an_endpoint_that_is_gone_is_stale(to: tuple[str, int]) -> None:
    flows = [UdpFlow(to, GOOD), UdpFlow(to, GONE), UdpFlow(to, (GOOD[0], 1))]
    assert stale_flows(view(GOOD), flows) == flows[1:]


def test_flows_of_anybody_else_are_not_ours_to_judge() -> None:
    flows = [UdpFlow(("10.96.0.11", 53), GONE), UdpFlow(("10.96.0.10", 54), GONE)]
    assert stale_flows(view(GOOD), flows) == []


def test_a_service_without_endpoints_is_left_alone() -> None:
    assert stale_flows(view(), [UdpFlow(("10.96.0.10", 53), GONE)]) == []


def test_tcp_ports_are_left_alone() -> None:
    flows = [UdpFlow(("10.96.0.10", 53), GONE)]
    assert stale_flows(view(GOOD, protocol=PortProtocol.TCP), flows) == []
