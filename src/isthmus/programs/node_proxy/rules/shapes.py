"""The fields of API objects that the node proxy reads: targets for msgspec's JSON decoder.

Every field may be missing or null: Go omits empty fields or writes null. reading.py interprets
them.
"""

# ruff: noqa: D101  # the classes have the API's names and need no further description

from __future__ import annotations

from msgspec import Struct, field


class NamedMeta(Struct, gc=False):
    name: str | None = None
    namespace: str | None = None


class Named(Struct, gc=False):
    metadata: NamedMeta


class ServiceLabels(Struct, gc=False):
    proxy_name: str | None = field(default=None, name="service.kubernetes.io/service-proxy-name")


class ServiceMeta(Struct, gc=False):
    name: str | None = None
    namespace: str | None = None
    labels: ServiceLabels | None = None


class ServicePortShape(Struct, gc=False, rename="camel"):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    node_port: int | None = None


class ClientIp(Struct, gc=False, rename="camel"):
    timeout_seconds: int | None = None


class AffinityConfig(Struct, gc=False):
    client_ip: ClientIp | None = field(default=None, name="clientIP")


class ServiceSpec(Struct, gc=False, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    ip_families: list[str] | None = None
    ports: list[ServicePortShape] | None = None
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    source_ranges: list[str] | None = field(default=None, name="loadBalancerSourceRanges")
    session_affinity: str | None = None
    session_affinity_config: AffinityConfig | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    health_check_node_port: int | None = None


class Ingress(Struct, gc=False, rename="camel"):
    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancer(Struct, gc=False):
    ingress: list[Ingress] | None = None


class ServiceStatus(Struct, gc=False, rename="camel"):
    load_balancer: LoadBalancer | None = None


class ServiceShape(Struct, gc=False):
    metadata: ServiceMeta
    spec: ServiceSpec = field(default_factory=ServiceSpec)
    status: ServiceStatus = field(default_factory=ServiceStatus)


class SliceLabels(Struct, gc=False):
    service_name: str | None = field(default=None, name="kubernetes.io/service-name")
    headless: str | None = field(default=None, name="service.kubernetes.io/headless")


class SliceAnnotations(Struct, gc=False):
    changed_at: str | None = field(
        default=None, name="endpoints.kubernetes.io/last-change-trigger-time"
    )


class SliceMeta(Struct, gc=False):
    name: str | None = None
    namespace: str | None = None
    labels: SliceLabels | None = None
    annotations: SliceAnnotations | None = None


class SlicePortShape(Struct, gc=False):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class Conditions(Struct, gc=False):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(Struct, gc=False):
    name: str | None = None


class Hints(Struct, gc=False, rename="camel"):
    for_zones: list[Hint] | None = None
    for_nodes: list[Hint] | None = None


class SliceEndpointShape(Struct, gc=False, rename="camel"):
    addresses: list[str] | None = None
    conditions: Conditions | None = None
    node_name: str | None = None
    hints: Hints | None = None


class SliceShape(Struct, gc=False, rename="camel"):
    metadata: SliceMeta
    address_type: str | None = None
    ports: list[SlicePortShape] | None = None
    endpoints: list[SliceEndpointShape] | None = None


class NodeMeta(Struct, gc=False, rename="camel"):
    name: str | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Taint(Struct, gc=False):
    key: str | None = None


class NodeSpec(Struct, gc=False):
    pod_cidr: str | None = field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None


class NodeAddress(Struct, gc=False):
    type: str | None = None
    address: str | None = None


class NodeStatus(Struct, gc=False):
    addresses: list[NodeAddress] | None = None


class NodeShape(Struct, gc=False):
    metadata: NodeMeta
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class CidrSpec(Struct, gc=False):
    cidrs: list[str] | None = None


class ServiceCidrShape(Struct, gc=False):
    metadata: NamedMeta
    spec: CidrSpec = field(default_factory=CidrSpec)
