"""What is published of a hosted control plane, how, and who can reach it: the values of a plan.

The words are HyperShift's. What each version of its API publishes is declared in models.py;
document.py reads a document into these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from isthmus.values import HostPort


class ControlPlaneService(Enum):
    """A part of the control plane that is reached from elsewhere."""

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
    """From where the endpoints are to be reached: the topology of the seed."""

    PUBLIC = "Public"
    PUBLIC_AND_PRIVATE = "PublicAndPrivate"
    PRIVATE = "Private"


class Viewpoint(Enum):
    """Where somebody stands who wants to reach an endpoint."""

    INTERNET = "internet"
    GUEST_VPC = "guest VPC"
    MANAGEMENT = "management cluster"
    SAME_CLUSTER = "control plane namespace"


class StrategyVerdict(Enum):
    """What becomes of a service with a strategy."""

    PUBLISHED = "published"
    REFUSED = "refused"
    IGNORED = "ignored"
    HIDDEN = "not published"  # as the document asks


@dataclass(frozen=True, slots=True)
class VisibleServices:
    """What a topology shows to everybody, and what to the guest's own network only."""

    public: frozenset[ControlPlaneService]
    private: frozenset[ControlPlaneService]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingModel:
    """What a version of the API publishes, how, and who is to see it: tables that the engine reads.

    ``only_on`` are pairs that one platform alone has. ``shown`` says for each topology who sees a
    Route or a load balancer; ``open_balancers`` are services whose load balancer is for everybody
    whatever the topology, ``sharded`` those whose Route a public ingress of its own serves, where
    there are topologies. A node port is always where the nodes of the management cluster are.
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
        """Services that can be listed and that nothing publishes."""
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
        """The strategies that have an effect: those that publish a service, and that hide it."""
        meant = (StrategyVerdict.PUBLISHED, StrategyVerdict.HIDDEN)
        return tuple(each for each in Strategy if self.verdict(service, each, platform) in meant)

    def required_on(self, platform: Platform) -> tuple[ControlPlaneService, ...]:
        """The services that have to be listed: IBM Cloud brings its nodes up without Ignition."""
        without = ControlPlaneService.IGNITION if platform is Platform.IBMCLOUD else None
        return tuple(each for each in self.required if each is not without)


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """Where a document says something: its line, from 1, and the field's path."""

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
    """Which of loadBalancer, nodePort and route the entry has."""
    place: DocumentPlace = DocumentPlace()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNetwork:
    """What the guest's pod network is, besides its ranges.

    ``subnets`` are the ranges that OVN-Kubernetes keeps for itself, by field path; those that it
    has by default are where the document could say another.
    """

    type: str = "OVNKubernetes"
    allocates_node_cidrs: bool = False
    without_multus: bool = False
    subnets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementNetwork:
    """Where the management cluster is: addresses of its API server, ranges of pods and Services.

    No document says it, and nothing is kept away from what is not known.
    """

    api: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedCluster:
    """What a HostedCluster document says, as far as publishing goes.

    ``access`` is what holds, default filled in; ``has_access`` whether the document says it.
    ``control_plane`` is the namespace of the control plane's pods on the management cluster.
    ``model`` is that of the document's version. ``places`` are where the document says something,
    by field path. ``host_bits`` are networks, by field path, that the document spells with bits
    below their prefix.
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
    api_dns_name: str = ""  # a further name of kube-apiserver, with a kubeconfig of its own
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
    """What a finding means: an error forbids the plan, a warning is said loudly."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFinding:
    """Something wrong or surprising, where it is, and what to do.

    ``rule`` is its stable name, listed in the documents; ``missed_by`` says who lets it through
    today, for example "the CRD".
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

    ``address`` is a host that is known now, or empty where the platform chooses it later, and then
    ``by`` says which object will have it. ``sni`` is the name that a shared address tells it by,
    and ``through`` what listens there: ``Service/router``, or the words of visibility.py for what
    is no object of this plan. ``restricted`` says that the allowed CIDR blocks hold for it.
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
        """Where it is, once that is known."""
        return HostPort(self.address, self.port) if self.address and self.port else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """A document that was checked, and what follows from it.

    ``objects`` are manifests in the order in which they are applied. A plan with errors has
    neither endpoints nor objects.
    """

    cluster: HostedCluster
    findings: tuple[PlanFinding, ...] = ()
    endpoints: tuple[PlannedEndpoint, ...] = ()
    objects: tuple[Mapping[str, Any], ...] = ()

    @property
    def errors(self) -> tuple[PlanFinding, ...]:
        return tuple(each for each in self.findings if each.weight is Weight.ERROR)
