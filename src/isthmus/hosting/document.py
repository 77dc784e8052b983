"""Reads a HostedCluster document, with the line of each field.

Names and defaults are HyperShift's. An unreadable value or an unknown field is an error with its
location, and all errors are reported together. rules_*.py check what may be published and how. Text
comes in; the caller opens the file. Imports yaml, which is slow: import this module only to read a
document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from ipaddress import ip_network
from typing import NamedTuple, TypeVar

import yaml

from isthmus.errors import ConfigError
from isthmus.hosting import document_fields as fields
from isthmus.hosting.document_fields_v1alpha1 import DOCUMENT_V1ALPHA1, SINGLE_CIDRS
from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    EndpointAccess,
    GuestNetwork,
    HostedCluster,
    Platform,
    Publishing,
    PublishingModel,
    Strategy,
)
from isthmus.hosting.models import MODELS, V1ALPHA1, V1BETA1
from isthmus.text.located_yaml import Located, compose_all, near, short

KIND = "HostedCluster"
DEFAULT_NAMESPACE = "clusters"  # of HyperShift's own command line
#: The platform of the management cluster, as HyperShift's operator records it.
MANAGEMENT_ANNOTATION = "hypershift.openshift.io/management-platform"
#: Metrics for the guest's own monitoring: the first enables them, the second disables them.
FORWARD_ANNOTATION = "hypershift.openshift.io/enable-metrics-forwarding"
NO_MONITORING_ANNOTATION = "hypershift.openshift.io/disable-monitoring-services"
SWIFT_ANNOTATION = "hypershift.openshift.io/swift-pod-network-instance"

#: The fields of each version.
TREES = {V1BETA1.api_version: fields.DOCUMENT, V1ALPHA1.api_version: DOCUMENT_V1ALPHA1}

# Defaults of HyperShift's CRD.
_CLUSTER_NETWORK = ("10.132.0.0/14",)
_SERVICE_NETWORK = ("172.31.0.0/16",)
_ADVERTISED = {4: "172.20.0.1", 6: "fd00::1"}
_OVN = "OVNKubernetes"
_OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"
_OVN_CONFIG = f"{_OPERATOR}.ovnKubernetesConfig"
_OVN_V4 = ("ipv4.internalJoinSubnet", "ipv4.internalTransitSwitchSubnet", "v4InternalSubnet")
_OVN_V6 = ("ipv6.internalJoinSubnet", "ipv6.internalTransitSwitchSubnet", "v6InternalSubnet")
# HyperShift's ranges for guests that run inside another OVN-Kubernetes.
_KUBEVIRT_SUBNETS = {
    "ipv4.internalJoinSubnet": "100.66.0.0/16",
    "ipv6.internalJoinSubnet": "fd99::/64",
}
# Services that HyperShift's webhook adds to a cluster on KubeVirt.
_KUBEVIRT_SERVICES = {
    ControlPlaneService.API_SERVER: Strategy.LOAD_BALANCER,
    ControlPlaneService.OAUTH_SERVER: Strategy.ROUTE,
    ControlPlaneService.KONNECTIVITY: Strategy.ROUTE,
    ControlPlaneService.IGNITION: Strategy.ROUTE,
}
_MAX_NETWORKS = 2  # one for each family
_NETWORK = re.compile(
    r"^spec\.networking\.(.*\.cidr|apiServer\.allowedCIDRBlocks\[.*)$|(Join|Switch|Internal)Subnet$"
)
_PLATFORMS = {each.value: each for each in Platform}
_SECTIONS = ("loadBalancer", "nodePort", "route")

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MAX_FIELDS = 20_000  # anchors can make a short text very large
MAX_ITEMS = 5_000


class _GcpAccess(Enum):
    PUBLIC_AND_PRIVATE = "PublicAndPrivate"
    PRIVATE = "Private"


class _AzurePrivate(Enum):
    PRIVATE_LINK = "PrivateLink"
    SWIFT = "Swift"


class _AzureAuthentication(Enum):
    MANAGED = "ManagedIdentities"
    WORKLOAD = "WorkloadIdentities"


def read(text: str, name: str) -> HostedCluster:
    """Read the only HostedCluster among the documents of a file.

    ``name`` is the name of the file in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    root = locate(text, name)
    model = MODELS.get(_said(root, "apiVersion"), V1BETA1)
    known = DocumentFields(root, TREES[model.api_version])
    cluster = _cluster(known, model)
    root.errors.raise_any()
    return cluster


def locate(text: str, name: str) -> Located:
    """The only HostedCluster among the documents of a file, as written."""
    roots = compose_all(text, name, expected=f"must be a {KIND}")
    return _the_one(roots, name)


def _the_one(roots: list[Located], name: str) -> Located:
    """The document that is a HostedCluster; Namespaces and NodePools beside it are ignored."""
    kinds = [_kind(root) for root in roots]
    ours = [root for root, kind in zip(roots, kinds, strict=True) if kind == KIND]
    if len(ours) == 1:
        return ours[0]
    if ours:
        lines = " and ".join(str(root.node.start_mark.line + 1) for root in ours)
        raise ConfigError(f"{name}: has more than one {KIND}, at lines {lines}: keep one per file")
    wrong = next((each for each in roots if near(_kind(each), [KIND])), roots[0])
    found = _kind(wrong)
    if found:
        raise ConfigError(f"{wrong.where}: kind: must be {KIND}, not {short(found)}")
    raise ConfigError(f"{wrong.where}: has no kind, must be a {KIND}")


def _kind(root: Located) -> str:
    """The kind of a document; empty if it has none."""
    return _said(root, "kind")


def _said(root: Located, name: str) -> str:
    pairs = root.node.value if root.is_mapping else []
    for key, value in pairs:
        if key.value == name and isinstance(value, yaml.ScalarNode):
            return str(value.value)
    return ""


class _Azure(NamedTuple):
    """The fields of Azure."""

    private_type: str = ""
    workload_identities: bool = False
    managed_identities: bool = False
    swift: bool = False


def _cluster(known: DocumentFields, model: PublishingModel) -> HostedCluster:
    _check_version(known)
    known.check_words()
    for path in ("metadata.name", "spec.platform.type"):
        if path not in known:
            known.missing(path)
    name = known.text("metadata.name", fields.object_name)
    namespace = known.text("metadata.namespace", fields.namespace, DEFAULT_NAMESPACE)
    platform = known.member("spec.platform.type", Platform) or Platform.NONE
    services = _services(known)
    # Before topologies existed, Azure had no other field that matters here.
    azure = _azure(known, platform) if model is V1BETA1 else _Azure()
    said = _access(known, platform) if platform in model.with_access else None
    fills_in = platform is Platform.KUBEVIRT and model is V1BETA1
    cluster = HostedCluster(
        model=model,
        name=name,
        namespace=namespace,
        control_plane=f"{namespace}-{name.replace('.', '-')}",
        platform=platform,
        access=said or _default_access(platform, swift=azure.swift),
        has_access=said is not None,
        management_platform=_PLATFORMS.get(_annotation(known, MANAGEMENT_ANNOTATION)),
        forwards_metrics=_forwards_metrics(known),
        services=services + _filled_in(known, services) * fills_in,
        base_domain=known.text("spec.dns.baseDomain", fields.domain),
        base_domain_prefix=_prefix(known),
        api_dns_name=known.text("spec.kubeAPIServerDNSName", fields.domain),
        azure_private_type=azure.private_type,
        azure_workload_identities=azure.workload_identities,
        swift=azure.swift,
        # Managed identities are for ARO only, whose clusters share one ingress.
        shared_ingress=azure.managed_identities,
        cluster_id=known.text("spec.clusterID", fields.uuid),
        region=known.text("spec.platform.aws.region", str),
        issuer_url=known.text("spec.issuerURL", str),
    )
    cluster = _with_configuration(known, _with_networks(known, cluster))
    return replace(cluster, places=known.places())


def _azure(known: DocumentFields, platform: Platform) -> _Azure:
    below = "spec.platform.azure"
    configured = f"{below}.azureAuthenticationConfig.azureAuthenticationConfigType"
    authentication = known.member(configured, _AzureAuthentication)
    private = known.member(f"{below}.private.type", _AzurePrivate)
    annotated = bool(_annotation(known, SWIFT_ANNOTATION))
    if platform is not Platform.AZURE:
        return _Azure()
    return _Azure(
        private_type=private.value if private else "",
        workload_identities=authentication is _AzureAuthentication.WORKLOAD,
        managed_identities=authentication is _AzureAuthentication.MANAGED,
        swift=annotated or private is _AzurePrivate.SWIFT,
    )


def _with_networks(known: DocumentFields, cluster: HostedCluster) -> HostedCluster:
    services = _networks(known, "service") or _SERVICE_NETWORK
    api = "spec.networking.apiServer"
    advertised = _ADVERTISED[ip_network(services[0]).version]
    return replace(
        cluster,
        service_cidrs=services,
        cluster_cidrs=_networks(known, "cluster") or _CLUSTER_NETWORK,
        machine_cidrs=_networks(known, "machine"),
        advertise_address=known.text(f"{api}.advertiseAddress", fields.address, advertised),
        api_port=known.integer(f"{api}.port", 6443, 1, 65535),
        allowed_cidrs=known.texts(f"{api}.allowedCIDRBlocks", fields.network),
        host_bits=_host_bits(known),
        guest_network=_guest_network(known, cluster.platform),
    )


def _guest_network(known: DocumentFields, platform: Platform) -> GuestNetwork:
    """Read after ``check_words``, which reports invalid words."""
    type_ = known.plain("spec.networking.networkType") or _OVN
    read = dict.fromkeys(_OVN_V4, fields.subnet_v4) | dict.fromkeys(_OVN_V6, fields.subnet_v6)
    said = {path: known.text(f"{_OVN_CONFIG}.{path}", parse) for path, parse in read.items()}
    if platform is Platform.KUBEVIRT and type_ == _OVN:
        said |= {path: said[path] or own for path, own in _KUBEVIRT_SUBNETS.items()}
    return GuestNetwork(
        type=type_,
        allocates_node_cidrs=known.plain("spec.networking.allocateNodeCIDRs") == "Enabled",
        without_multus=known.boolean(f"{_OPERATOR}.disableMultiNetwork"),
        subnets={f"{_OVN_CONFIG}.{path}": cidr for path, cidr in said.items() if cidr},
    )


def _host_bits(known: DocumentFields) -> dict[str, str]:
    """Networks that are written as one of their addresses."""
    found = {}
    for path in known.networks():
        text = known.plain(path)
        try:
            loose = fields.has_host_bits(text)
        except ValueError:
            continue  # reported where it is read
        if loose:
            found[path] = text
    return found


def _prefix(known: DocumentFields) -> str | None:
    path = "spec.dns.baseDomainPrefix"
    return known.text(path, fields.domain) if path in known else None


def _with_configuration(known: DocumentFields, cluster: HostedCluster) -> HostedCluster:
    below = "spec.configuration"
    said = known.text(
        f"{below}.network.serviceNodePortRange", fields.port_range, fields.DEFAULT_PORTS
    )
    low, _, high = said.partition("-")
    no_proxy = known.text(f"{below}.proxy.noProxy", str)
    return replace(
        cluster,
        node_port_range=(int(low), int(high)),
        named_certificates=_named_certificates(known),
        proxy_for_http=known.secret(f"{below}.proxy.httpProxy", fields.proxy),
        proxy_for_https=known.secret(f"{below}.proxy.httpsProxy", fields.proxy),
        no_proxy=tuple(part.strip() for part in no_proxy.split(",") if part.strip()),
    )


def _check_version(known: DocumentFields) -> None:
    node = known.get("apiVersion")
    if node is None:
        known.missing("apiVersion")
        return
    version = node.text()
    if version is not None and version not in MODELS:
        node.error(f"must be {' or '.join(MODELS)}, not {short(version)}")


def _services(known: DocumentFields) -> tuple[Publishing, ...]:
    entries = [_publishing(known, path) for path in known.items("spec.services")]
    return tuple(entry for entry in entries if entry is not None)


def _publishing(known: DocumentFields, path: str) -> Publishing | None:
    inside = f"{path}.servicePublishingStrategy"
    for wanted in (f"{path}.service", f"{inside}.type"):
        if wanted not in known:
            known.missing(wanted)
    has = frozenset(section for section in _SECTIONS if f"{inside}.{section}" in known)
    if "nodePort" in has and f"{inside}.nodePort.address" not in known:
        known.missing(f"{inside}.nodePort.address")
    service = known.member(f"{path}.service", ControlPlaneService)
    strategy = known.member(f"{inside}.type", Strategy)
    section = "loadBalancer" if strategy is Strategy.LOAD_BALANCER else "route"
    hostnames = {
        each: known.text(f"{inside}.{each}.hostname", fields.hostname)
        for each in ("loadBalancer", "route")
    }
    address = known.text(f"{inside}.nodePort.address", fields.node_address)
    port = known.integer(f"{inside}.nodePort.port", 0, -(2**31), 65535)
    if service is None or strategy is None:
        return None
    return Publishing(
        service=service,
        strategy=strategy,
        hostname=hostnames[section],
        node_address=address,
        node_port=max(0, port),
        has=has,
        place=known.place(path),
    )


def _filled_in(known: DocumentFields, services: tuple[Publishing, ...]) -> tuple[Publishing, ...]:
    """The entries that the webhook adds; their location is the whole list."""
    there = {each.service for each in services}
    place = DocumentPlace(known.place("spec.services").line, "spec.services")
    return tuple(
        Publishing(service=service, strategy=strategy, place=place)
        for service, strategy in _KUBEVIRT_SERVICES.items()
        if service not in there
    )


def _access(known: DocumentFields, platform: Platform) -> EndpointAccess | None:
    """The topology in the document, if its platform has one."""
    if platform is Platform.AWS:
        return known.member("spec.platform.aws.endpointAccess", EndpointAccess)
    if platform is Platform.GCP:
        said = known.member("spec.platform.gcp.endpointAccess", _GcpAccess)
        return EndpointAccess(said.value) if said else None
    if platform is Platform.AZURE:
        return known.member("spec.platform.azure.topology", EndpointAccess)
    return None


def _default_access(platform: Platform, *, swift: bool) -> EndpointAccess:
    if platform is Platform.GCP:
        return EndpointAccess.PRIVATE
    return EndpointAccess.PUBLIC_AND_PRIVATE if swift else EndpointAccess.PUBLIC


def _networks(known: DocumentFields, kind: str) -> tuple[str, ...]:
    below = f"spec.networking.{kind}Network"
    node, items, found = known.get(below), known.items(below), []
    if node is not None and len(items) > _MAX_NETWORKS:
        node.error(f"has {len(items)} networks; the maximum is {_MAX_NETWORKS}")
        return ()
    for path in items:
        if f"{path}.cidr" not in known:
            known.missing(f"{path}.cidr")
        found.append(known.text(f"{path}.cidr", fields.network))
    # v1alpha1 also has a single range, which takes precedence over the list.
    single = known.text(SINGLE_CIDRS[below], fields.network)
    return (single,) if single else tuple(filter(None, found))


def _named_certificates(known: DocumentFields) -> tuple[str, ...]:
    below = "spec.configuration.apiServer.servingCerts.namedCertificates"
    return tuple(name for path in known.items(below) for name in known.texts(f"{path}.names", str))


def _forwards_metrics(known: DocumentFields) -> bool:
    """From the field, or from the annotation that preceded it."""
    section = "spec.monitoring.metricsForwarding"
    if section in known and f"{section}.mode" not in known:
        known.missing(f"{section}.mode")
    if _has_annotation(known, NO_MONITORING_ANNOTATION):
        return False
    by_field = known.plain(f"{section}.mode") == "Forward"
    return by_field or _has_annotation(known, FORWARD_ANNOTATION)


def _has_annotation(known: DocumentFields, name: str) -> bool:
    """Whether an annotation exists, whatever its value."""
    node = known.get("metadata.annotations")
    return node is not None and name in node.entries(most=MAX_ITEMS)


def _annotation(known: DocumentFields, name: str) -> str:
    """The value of an annotation; empty if there is none."""
    node = known.get("metadata.annotations")
    found = node.entries(most=MAX_ITEMS).get(name) if node is not None else None
    return (found.value.text() or "") if found is not None else ""


class DocumentFields:
    """The fields of one document; null counts as missing."""

    def __init__(self, root: Located, tree: fields.Tree = fields.DOCUMENT) -> None:
        self.root = root
        self._found: dict[str, Located] = {}
        self._items: dict[str, list[str]] = {}
        self._read = 0
        self._full = False
        self._walk(root, tree)

    def _walk(self, node: Located, tree: fields.Tree) -> None:
        if isinstance(tree, list):
            items = [item for item in node.items(most=MAX_ITEMS) if self._keep(item)]
            self._items[node.path] = [item.path for item in items]
            for item in items:
                self._walk(item, tree[0])
        elif tree is not None:
            for name, value in node.mapping(tuple(tree)).items():
                if value.kind != "nothing" and self._keep(value):
                    self._walk(value, tree[name])

    def _keep(self, node: Located) -> bool:
        if self._has_room(1):
            self._found[node.path] = node
        return not self._full

    def _has_room(self, more: int) -> bool:
        """Count values; the first above the limit is an error, and reading stops."""
        self._read += more
        if self._read > MAX_FIELDS and not self._full:
            self._full = True
            self.root.error(f"has more than {MAX_FIELDS} values")
        return not self._full

    def __contains__(self, path: str) -> bool:
        return path in self._found

    def get(self, path: str) -> Located | None:
        """The field, or None."""
        return self._found.get(path)

    def items(self, path: str) -> list[str]:
        return self._items.get(path, [])

    def places(self) -> dict[str, DocumentPlace]:
        return {path: DocumentPlace(_line(node), path) for path, node in self._found.items()}

    def place(self, path: str) -> DocumentPlace:
        """Where a field is, or would be: the line of its nearest existing parent."""
        return DocumentPlace(_line(self._nearest(path)), path)

    def missing(self, path: str) -> None:
        """Report a missing field."""
        node = self._nearest(path)
        Located(node.node, path, node.errors).error("is missing")

    def _nearest(self, path: str) -> Located:
        while path and path not in self._found:
            path, _, _ = path.rpartition(".")
        return self._found.get(path, self.root)

    def text(self, path: str, parse: Callable[[str], str], default: str = "") -> str:
        """A text, parsed by a reader."""
        node = self.get(path)
        read = None if node is None else node.read(parse)
        return default if read is None else read

    def plain(self, path: str) -> str:
        """A text, unparsed; empty if there is none, or no text, which other checks report."""
        node = self.get(path)
        return str(node.node.value) if node is not None and node.is_text else ""

    def boolean(self, path: str) -> bool:
        node = self.get(path)
        return node is not None and node.boolean()

    def secret(self, path: str, parse: Callable[[str], str]) -> str:
        """A text, parsed by a reader, whose errors do not quote it: it may have a password."""
        node = self.get(path)
        text = None if node is None else node.text()
        if node is None or text is None:
            return ""
        try:
            return parse(text)
        except ValueError as error:
            node.error(str(error))
            return ""

    def integer(self, path: str, default: int, low: int, high: int) -> int:
        node = self.get(path)
        return default if node is None else node.integer(low, high)

    def check_words(self) -> None:
        """Check fields with a fixed set of words, and sections that must not be empty."""
        for path, words in fields.WORDS.items():
            node = self.get(path)
            if node is not None:
                node.word(words)
        for path, parse in fields.TEXTS.items():
            self.text(path, parse)
        for path in fields.NOT_EMPTY:
            node = self.get(path)
            if node is not None and node.is_empty:
                node.error("is empty; remove it, or set a field in it")

    def networks(self) -> list[str]:
        """The paths of all networks."""
        return [path for path in self._found if _NETWORK.search(path)]

    def member(self, path: str, kind: type[E]) -> E | None:
        node = self.get(path)
        return None if node is None else node.member(kind)

    def texts(self, path: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """The valid entries of a list of texts."""
        node = self.get(path)
        items = [] if node is None or self._full else node.items(most=MAX_ITEMS)
        if not self._has_room(len(items)):
            return ()
        self._found |= {item.path: item for item in items}
        values = [item.read(parse) for item in items]
        return tuple(value for value in values if value is not None)


def _line(node: Located) -> int:
    return int(node.node.start_mark.line) + 1
