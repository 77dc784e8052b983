"""Stale UDP flows in a real kernel: it forgets them, and no others."""

from __future__ import annotations

import socket
import subprocess

import pytest
from own_network import needs_root, own_network

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.kernel.conntrack import forget_stale_flows
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


def view(serving: tuple[str, int], *, family: IpFamily, cluster_ip: str) -> ServiceView:
    key = PortKey(ServiceName("ns", "dns"), "dns", PortProtocol.UDP)
    port = ServicePort(key=key, cluster_ip=cluster_ip, port=53)
    endpoints = (Endpoint(ip=serving[0], port=serving[1]),)
    backed = BackedPort(port=port, backends=ChosenEndpoints(serving=endpoints))
    return ServiceView(family=family, ports={key: backed})


def send(to: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", to)


@needs_root
@pytest.mark.parametrize(
    ("family", "tool", "cluster_ip", "other", "behind"),
    [
        (IpFamily.IPV4, "iptables", "10.96.0.10", "10.96.0.99", "127.0.0.1"),
        (IpFamily.IPV6, "ip6tables", "fd00:96::10", "fd00:96::99", "::1"),
    ],
)
def test_the_kernel_forgets_them(
    family: IpFamily, tool: str, cluster_ip: str, other: str, behind: str
) -> None:
    bracketed = f"[{behind}]" if ":" in behind else behind

    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, timeout=20)

    with own_network():
        ip = ["ip", "-6"] if family is IpFamily.IPV6 else ["ip"]
        run(*ip, "route", "add", "default", "dev", "lo")
        for address in (cluster_ip, other):
            run(tool, "-t", "nat", "-A", "OUTPUT", "-p", "udp", "-d", address, "--dport", "53",
                "-j", "DNAT", "--to-destination", f"{bracketed}:5300")  # fmt: skip
        for address in (cluster_ip, cluster_ip, other):
            send((address, 53))
        stays = view((behind, 5300), family=family, cluster_ip=cluster_ip)
        assert forget_stale_flows(stays) == 0
        goes = view(("10.1.0.1", 5300), family=family, cluster_ip=cluster_ip)
        assert forget_stale_flows(goes) == 2
        assert forget_stale_flows(goes) == 0
        # That of the other address is still there.
        rest = view(("10.1.0.1", 5300), family=family, cluster_ip=other)
        assert forget_stale_flows(rest) == 1
