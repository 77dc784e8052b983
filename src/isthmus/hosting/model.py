"""The values of a plan: what a hosted control plane publishes, how, and who can reach it.

The terms are HyperShift's. models.py declares what each version of its API publishes; document.py
reads a document into these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from isthmus.values import HostPort


class ControlPlaneService(Enum):
    """A part of the control plane that clients elsewhere reach."""

    API_SERVER = "APIServer"
    OAUTH_SERVER = "OAuthServer"
    OIDC = "OIDC"
    KONNECTIVITY = "Konnectivity"
    IGNITION = "Ignition"
    OVN_SB_DB = "OVNSbDb"


class Strategy(Enum):
    """How a part is made reachable."""

    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"
    ROUTE = "Route"
    NONE = "None"
    S3 = "S3"


class Platform(Enum):
    """Where the nodes of the hosted cluster live."""

    AWS = "AWS"
    AZURE = "Azure"
    GCP = "GCP"
    KUBEVIRT = "KubeVirt"
    AGENT = "Agent"
    OPENSTACK = "OpenStack"
    POWERVS = "PowerVS"
    IBMCLOUD = "IBMCloud"
    NONE = "None"


class EndpointAccess(Enum):
    """The topology: from where endpoints can be reached."""

    PUBLIC = "Public"
    PUBLIC_AND_PRIVATE = "PublicAndPrivate"
    PRIVATE = "Private"


class Viewpoint(Enum):
    """The network position of a client."""

    INTERNET = "internet"
    GUEST_VPC = "guest VPC"
    MANAGEMENT = "management cluster"
    SAME_CLUSTER = "control plane namespace"


class StrategyVerdict(Enum):
    """The effect of a strategy on a service."""

    PUBLISHED = "published"
    REFUSED = "refused"
    IGNORED = "ignored"
    HIDDEN = "not published"  # as the document asks


@dataclass(frozen=True, slots=True)
class VisibleServices:
    """The services that a topology publishes to all, and to the guest's own network only."""

    public: frozenset[ControlPlaneService]
    private: frozenset[ControlPlaneService]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingModel:
    """What a version of the API publishes, how, and who sees it: tables that the engine reads.

    ``only_on`` are combinations that only one platform has. ``shown`` says for each topology who
    sees a Route or a load balancer; ``open_balancers`` are services whose load balancer is public
    in any topology, ``sharded`` those whose Route a separate public ingress serves on platforms
    with topologies. A node port is always reachable where the management cluster's nodes are.
    """

    api_version: str
    matrix: Mapping[ControlPlaneService, Mapping[Strategy, StrategyVerdict]]
    only_on: Mapping[tuple[ControlPlaneService, Strategy], Platform]
    required: tuple[ControlPlaneService, ...]
    platforms: frozenset[Platform]
    with_access: frozenset[Platform]
    shown: Mapping[EndpointAccess, VisibleServices]
    open_balancers: frozenset[ControlPlaneService] = frozenset()
    sharded: frozenset[ControlPlaneService] = frozenset()

    @property
    def version(self) -> str:
        """The version without its group, for people."""
        return self.api_version.rpartition("/")[2]

    @property
    def unused(self) -> frozenset[ControlPlaneService]:
        """Services that can be listed but have no effect."""
        published = StrategyVerdict.PUBLISHED
        return frozenset(each for each, row in self.matrix.items() if published not in row.values())

    def verdict(
        self, service: ControlPlaneService, strategy: Strategy, platform: Platform
    ) -> StrategyVerdict:
        if self.only_on.get((service, strategy), platform) is not platform:
            return StrategyVerdict.REFUSED
        return self.matrix[service][strategy]

    def possible(self, service: ControlPlaneService, platform: Platform) -> tuple[Strategy, ...]:
        """The strategies that publish a service."""
        published = StrategyVerdict.PUBLISHED
        return tuple(
            each for each in Strategy if self.verdict(service, each, platform) is published
        )

    def accepted(self, service: ControlPlaneService, platform: Platform) -> tuple[Strategy, ...]:
        """The strategies with an effect: those that publish a service or hide it."""
        meant = (StrategyVerdict.PUBLISHED, StrategyVerdict.HIDDEN)
        return tuple(each for each in Strategy if self.verdict(service, each, platform) in meant)

    def required_on(self, platform: Platform) -> tuple[ControlPlaneService, ...]:
        """The services that must be listed: IBM Cloud starts its nodes without Ignition."""
        without = ControlPlaneService.IGNITION if platform is Platform.IBMCLOUD else None
        return tuple(each for each in self.required if each is not without)


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """A location in a document: the line, from 1, and the path of the field."""

    line: int = 0
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """One entry of spec.services. ``node_port`` 0 means that Kubernetes chooses."""

    service: ControlPlaneService
    strategy: Strategy
    hostname: str = ""
    node_address: str = ""
    node_port: int = 0
    has: frozenset[str] = frozenset()
    """The sections of the entry: loadBalancer, nodePort, route."""
    place: DocumentPlace = DocumentPlace()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNetwork:
    """The guest's pod network, besides its ranges.

    ``subnets`` are the ranges that OVN-Kubernetes reserves, by field path; default ranges have the
    path of the field that could change them.
    """

    type: str = "OVNKubernetes"
    allocates_node_cidrs: bool = False
    without_multus: bool = False
    subnets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementNetwork:
    """The management cluster: addresses of its API server, ranges of its pods and Services.

    No document contains them, and pods are not kept away from unknown addresses.
    """

    api: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedCluster:
    """The contents of a HostedCluster document that matter for publishing.

    ``access`` is the effective topology; ``has_access`` whether the document sets it.
    ``control_plane`` is the namespace of the control plane's pods on the management cluster.
    ``model`` is that of the document's version. ``places`` are the locations of fields, by field
    path. ``host_bits`` are networks, by field path, that the document writes with host bits.
    """

    model: PublishingModel
    name: str
    namespace: str
    control_plane: str
    platform: Platform
    access: EndpointAccess
    has_access: bool = False
    management_platform: Platform | None = None
    management: ManagementNetwork = ManagementNetwork()
    forwards_metrics: bool = False
    services: tuple[Publishing, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    cluster_cidrs: tuple[str, ...] = ()
    machine_cidrs: tuple[str, ...] = ()
    advertise_address: str = ""
    api_port: int = 6443
    allowed_cidrs: tuple[str, ...] = ()
    node_port_range: tuple[int, int] = (30000, 32767)
    named_certificates: tuple[str, ...] = ()
    host_bits: Mapping[str, str] = field(default_factory=dict)
    guest_network: GuestNetwork = GuestNetwork()
    base_domain: str = ""
    base_domain_prefix: str | None = None
    api_dns_name: str = ""  # another name of kube-apiserver, with its own kubeconfig
    proxy_for_http: str = ""
    proxy_for_https: str = ""
    no_proxy: tuple[str, ...] = ()
    azure_private_type: str = ""
    azure_workload_identities: bool = False
    swift: bool = False
    shared_ingress: bool = False
    cluster_id: str = ""
    issuer_url: str = ""
    region: str = ""  # of AWS: its nodes have names there
    places: Mapping[str, DocumentPlace] = field(default_factory=dict)

    def publishing(self, service: ControlPlaneService) -> Publishing | None:
        """The first entry for a service."""
        return next((each for each in self.services if each.service is service), None)


class Weight(Enum):
    """The severity of a finding: with an error there is no plan."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFinding:
    """A problem or a surprise, its location, and what to do.

    ``rule`` is its stable name, listed in the documentation; ``missed_by`` says who does not detect
    it today, such as "the CRD".
    """

    rule: str
    weight: Weight
    says: str
    do: str = ""
    place: DocumentPlace = DocumentPlace()
    missed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEndpoint:
    """One way to reach a part of the control plane.

    ``address`` is a known host, or empty if the platform chooses it later; then ``by`` names the
    object that will have it. ``sni`` is its server name at a shared address, and ``through`` what
    listens there: ``Service/router``, or a text of visibility.py for anything that is not an object
    of this plan. ``restricted``: the allowed CIDR blocks apply to it.
    """

    service: ControlPlaneService
    name: str
    strategy: Strategy
    address: str = ""
    port: int = 0
    by: str = ""
    sni: str = ""
    through: str = ""
    visible_from: frozenset[Viewpoint] = frozenset()
    restricted: bool = False

    @property
    def target(self) -> HostPort | None:
        """Its address and port, once known."""
        return HostPort(self.address, self.port) if self.address and self.port else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """A checked document and its consequences.

    ``objects`` are manifests in the order to apply them. A plan with errors has neither endpoints
    nor objects.
    """

    cluster: HostedCluster
    findings: tuple[PlanFinding, ...] = ()
    endpoints: tuple[PlannedEndpoint, ...] = ()
    objects: tuple[Mapping[str, Any], ...] = ()

    @property
    def errors(self) -> tuple[PlanFinding, ...]:
        return tuple(each for each in self.findings if each.weight is Weight.ERROR)
