"""Writes Services with the endpoints behind them, each in both IP families.

node_proxy_kinds.py has the whole set.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kube.node_proxy_ground import NODE_NAME
from kube.node_proxy_writing import Object

NAMESPACE = "default"
FAMILIES = ("IPv4", "IPv6")
OTHER_NODE = "node-b"


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """One endpoint: its number among the addresses, where it is and how it feels."""

    number: int
    local: bool = False
    ready: bool | None = True
    serving: bool | None = None
    terminating: bool | None = None
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def body(self, family: str) -> Object:
        """Write it for an EndpointSlice."""
        conditions = {
            name: said
            for name in ("ready", "serving", "terminating")
            if (said := getattr(self, name)) is not None
        }
        body: Object = {
            "addresses": [address(self.number, family, local=self.local)],
            "conditions": conditions,
            "nodeName": NODE_NAME if self.local else OTHER_NODE,
        }
        hints: Object = {}
        if self.zones:
            hints["forZones"] = [{"name": zone} for zone in self.zones]
        if self.nodes:
            hints["forNodes"] = [{"name": node} for node in self.nodes]
        return body | ({"hints": hints} if hints else {})


def address(number: int, family: str, *, local: bool = False) -> str:
    """Make a pod's address, of this node's range or of another's."""
    net = 0 if local else 1 + number // 250
    if family == "IPv4":
        return f"10.180.{net}.{1 + number % 250}"
    # The API takes canonical text only.
    return str(ipaddress.ip_address(f"fd00:180:0:{net:x}::{1 + number % 250:x}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of a Service, and the one behind it."""

    port: int = 80
    name: str = ""
    protocol: str = "TCP"
    target: int = 8080
    node_port: int = 0

    def of_service(self) -> Object:
        """Write it for a Service."""
        body: Object = {"port": self.port, "protocol": self.protocol, "targetPort": self.target}
        if self.name:
            body["name"] = self.name
        return body | ({"nodePort": self.node_port} if self.node_port else {})

    def of_slice(self) -> Object:
        """Write it for an EndpointSlice."""
        return {"name": self.name, "port": self.target, "protocol": self.protocol}


PLAIN = (Port(),)
LOCAL, FAR, FAR2 = At(number=1, local=True), At(number=2), At(number=3)
THREE = (LOCAL, FAR, FAR2)


@dataclass(slots=True)
class Objects:
    """Services and EndpointSlices, as they are written."""

    services: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(300))

    def add(
        self,
        name: str,
        ats: Sequence[At] | None,
        *,
        ports: Sequence[Port] = PLAIN,
        status: Sequence[str] = (),
        ip_mode: str = "",
        families: Sequence[str] = FAMILIES,
        labels: dict[str, str] | None = None,
        namespace: str = NAMESPACE,
        **spec: Any,
    ) -> None:
        """Add a Service and a slice per family; None means no slice at all.

        ``status`` are addresses of its load balancer.
        """
        ips = cluster_ips(next(self.numbers))
        chosen = [ips[family] for family in families]
        policy = "SingleStack" if len(families) == 1 else "RequireDualStack"
        meta: Object = {"name": name, "namespace": namespace, "labels": labels or {}}
        body: Object = {
            "metadata": meta,
            "spec": {
                "ports": [port.of_service() for port in ports],
                "clusterIP": chosen[0],
                "clusterIPs": chosen,
                "ipFamilies": list(families),
                "ipFamilyPolicy": policy,
                **spec,
            },
        }
        if status:
            mode = {"ipMode": ip_mode} if ip_mode else {}
            body["status"] = {"loadBalancer": {"ingress": [{"ip": ip, **mode} for ip in status]}}
        self.services.append(body)
        if ats is not None:
            for family in families:
                self.slices.append(slice_of(name, family, ats, ports, namespace=namespace))


def slice_of(
    service: str,
    family: str,
    ats: Sequence[At],
    ports: Sequence[Port] = PLAIN,
    *,
    namespace: str = NAMESPACE,
    suffix: str = "",
    labels: dict[str, str] | None = None,
) -> Object:
    """Write the EndpointSlice of a Service for one family."""
    return {
        "metadata": {
            "name": f"{service}-{family.lower()}{suffix}",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service, **(labels or {})},
        },
        "addressType": family,
        "endpoints": [at.body(family) for at in ats],
        "ports": [port.of_slice() for port in ports],
    }


def external(number: int) -> list[str]:
    """Make addresses from outside, one of each family."""
    return [f"203.0.113.{number}", f"2001:db8::{number:x}"]


def cluster_ips(number: int) -> dict[str, str]:
    """Make a Service's addresses by its number, of each family."""
    ip = f"10.{96 + (number >> 16)}.{number >> 8 & 0xFF}.{number & 0xFF}"
    return {"IPv4": ip, "IPv6": f"fd00:10:96::{number:x}"}


def marker(number: int) -> tuple[Objects, tuple[str, ...]]:
    """Make a Service to write after others, and what shows in rules when it is programmed.

    A proxy that shows its endpoints has seen every EndpointSlice and Service written before.
    """
    made = Objects(numbers=itertools.count(0xF000 + number))
    at = At(number=200 + number)
    made.add(f"marker-{number}", (at,), ports=(Port(port=9),))
    return made, tuple(address(at.number, family) for family in FAMILIES)
