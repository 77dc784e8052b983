"""What the tests of explaining have in common: one node, its Services, and who sends to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.explaining_flow import Origin, Packet, WalkableRules
from isthmus.programs.node_proxy.rules.explaining_iptables import IptablesRules
from isthmus.programs.node_proxy.rules.explaining_nftables import NftablesRules
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRenderer
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
    family_of,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRenderer
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import categorize_endpoints

NODE = "192.0.2.1"
HERE, THERE = "10.180.0.2:80", "10.180.1.3:80"
BACKENDS = ("iptables", "nftables")


def endpoint(text: str, *, local: bool | None = None, **rest: Any) -> Endpoint:
    """One at ``ip:port``; those in 10.180.0.0/24 and fd00:10:0::/48 are on the node."""
    address, _, port = text.rpartition(":")
    address = address.strip("[]")
    near = address.startswith(("10.180.0.", "fd00:10:0:")) if local is None else local
    return Endpoint(ip=address, port=int(port), local=near, **rest)


def backed(
    name: str, cluster_ip: str, endpoints: Sequence[str | Endpoint] = (HERE, THERE), **rest: Any
) -> BackedPort:
    """A port 80 of ns/NAME."""
    protocol = rest.pop("protocol", PortProtocol.TCP)
    port = ServicePort(
        key=PortKey(ServiceName("ns", name), "p", protocol),
        cluster_ip=cluster_ip,
        **{"port": 80, **rest},
    )
    found = [each if isinstance(each, Endpoint) else endpoint(each) for each in endpoints]
    chosen = categorize_endpoints(
        tuple(sorted(found, key=str)), port, node_name="here", zone="here"
    )
    return BackedPort(port=port, backends=chosen)


def view_of(*ports: BackedPort, family: IpFamily = IpFamily.IPV4) -> ServiceView:
    """All of them."""
    ordered = sorted(ports, key=lambda each: str(each.port.key))
    return ServiceView(family=family, ports={each.port.key: each for each in ordered})


def rules_of(backend: str, view: ServiceView, settings: RuleSettings) -> WalkableRules:
    """The rules of a view by one of the backends."""
    if backend == "iptables":
        return IptablesRules(IptablesRenderer(settings).render(view).ruleset)
    renderer = NftablesRenderer(settings)
    renderer.advance(view)
    return NftablesRules(renderer.ruleset(), settings)


def packet(source: str, destination: str, port: int = 80, **rest: Any) -> Packet:
    """One that comes from outside, unless it is said otherwise."""
    return Packet(
        **{
            "family": family_of(source),
            "source": source,
            "destination": destination,
            "port": port,
            "protocol": PortProtocol.TCP,
            "origin": Origin.OUTSIDE,
            "interface": "eth0",
            "here": frozenset({NODE, "2001:db8::1"}),
            **rest,
        }
    )
