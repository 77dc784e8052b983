"""Reads API objects from JSON, or from parsed YAML, into the values of model.py.

Nothing here raises. Whatever cannot be used (a whole object, an endpoint, a port, an address) is
left out, with one entry each in ``notes``.

Addresses and networks are written in one canonical form, which rules use. Go's lenient parser let
``010.0.0.1`` into old objects and reads it as 10.0.0.1, and reads an IPv4-mapped IPv6 address as
IPv4; this parser does the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_network
from typing import Any, TypeVar

import msgspec

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    NodeObject,
    ObjectPort,
    PortProtocol,
    ServiceObject,
    SliceEndpoint,
    SliceObject,
    SlicePort,
    family_of,
)
from isthmus.programs.node_proxy.rules.shapes import (
    Named,
    NodeShape,
    ServiceCidrShape,
    ServicePortShape,
    ServiceShape,
    ServiceSpec,
    SliceEndpointShape,
    SliceShape,
)
from isthmus.values import is_address

_MAPPED_BITS = 96  # ::ffff:0:0/96 (RFC 4291 §2.5.5.2)


def canonical_address(text: str) -> str:
    """An address in its shortest form (RFC 5952); empty if the text is not an address."""
    if ":" in text:
        if not is_address(text):
            return ""
        six = IPv6Address(text)
        return str(six if six.ipv4_mapped is None else six.ipv4_mapped)
    return text if is_address(text) else _sloppy(text)


def canonical_network(text: str) -> str:
    """A network without host bits; empty if the text is not a network. Strips spaces."""
    address, slash, length = text.strip().partition("/")
    if not (slash and length.isascii() and length.isdigit() and len(length) <= 3):
        return ""
    if ":" not in address:
        address = canonical_address(address)
    if not is_address(address):
        return ""
    bits = int(length)
    if ":" in address and bits >= _MAPPED_BITS:
        mapped = IPv6Address(address).ipv4_mapped
        if mapped is not None:
            address, bits = str(mapped), bits - _MAPPED_BITS
    try:
        return str(ip_network(f"{address}/{bits}", strict=False))
    except ValueError:
        return ""


def _sloppy(text: str) -> str:
    parts = text.split(".")
    fine = all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts)
    if len(parts) != 4 or not fine:
        return ""
    numbers = [int(part) for part in parts]
    return ".".join(map(str, numbers)) if max(numbers) <= 255 else ""


#: The form in which objects arrive: JSON text, or mappings.
Given = bytes | msgspec.Raw | Mapping[str, Any]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
# RFC 3339 §5.6; fromisoformat() alone accepts much more.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_MOST_CHARS = 80
_MOST_NOTES = 20  # per object

T = TypeVar("T")


class ObjectNotes:
    """Collects the defects of one object, up to a bound."""

    def __init__(self, notes: list[str], what: str) -> None:
        self._notes = notes
        self._what = what
        self._left = _MOST_NOTES

    def __call__(self, defect: str) -> None:
        self._left -= 1
        if self._left > 0:
            add_note(self._notes, self._what, defect)
        elif self._left == 0:
            add_note(self._notes, self._what, "and more")


def add_note(notes: list[str], what: str, defect: str) -> None:
    notes.append(f"{what}: {defect}")


def decoded(given: Given, shape: type[T], notes: list[str], kind: str) -> T | None:
    """Decode the fields that a shape declares; None, with a note, if they do not fit."""
    try:
        if isinstance(given, Mapping):
            return msgspec.convert(given, shape)
        return msgspec.json.decode(given, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        if shape is not Named:
            named = decoded(given, Named, [], kind)
            meta = named.metadata if named else None
            name = "/".join(filter(None, (meta.namespace, meta.name))) if meta else "(no name)"
            add_note(notes, f"{kind} {cut(name)}", cut(str(exc)))
        return None


def is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def service_name(namespace: str, name: str) -> ServiceName | None:
    """A Service's name, if the API would accept both parts: rules have them in comments."""
    if not (is_label(namespace) and is_label(name)):
        return None
    return ServiceName(sys.intern(namespace), sys.intern(name))


def addresses(given: Iterable[str], what: str, note: ObjectNotes) -> tuple[str, ...]:
    found = []
    for text in given:
        address = canonical_address(text)
        if address:
            found.append(address)
        elif text.strip():  # the API accepts empty ones
            note(f"invalid {what}: {cut(repr(text))}")
    return tuple(found)


def networks(given: Iterable[str], note: ObjectNotes) -> tuple[str, ...]:
    found = []
    for text in given:
        network = canonical_network(text)
        if network:
            found.append(network)
        elif text.strip():
            note(f"invalid network: {cut(repr(text))}")
    return tuple(found)


def port_number(number: int | None) -> int:
    return number if number is not None and 0 < number < 65536 else 0


def timestamp(text: str | None) -> float:
    if not text or not _TIME.fullmatch(text):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def cut(text: str) -> str:
    """Shorten a text for a log line, and escape characters that a terminal would interpret."""
    text = text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"
    return text if text.isprintable() else repr(text)[1:-1]


_PROTOCOLS = {"TCP": PortProtocol.TCP, "UDP": PortProtocol.UDP, "SCTP": PortProtocol.SCTP}
_FAMILIES = {family.value: family for family in IpFamily}
_DEFAULT_AFFINITY_S, _MOST_AFFINITY_S = 10800, 86400  # the API's own default and limit


def service_key(given: Given) -> ServiceName | None:
    """The name of a Service; None if not even the name is readable."""
    named = decoded(given, Named, [], "Service")
    if named is None:
        return None
    return service_name(named.metadata.namespace or "", named.metadata.name or "")


def slice_key(given: Given) -> tuple[str, str] | None:
    """Namespace and name of an EndpointSlice; None if not even those are readable."""
    named = decoded(given, Named, [], "EndpointSlice")
    if named is None:
        return None
    namespace, name = named.metadata.namespace or "", named.metadata.name or ""
    return (namespace, name) if namespace and name else None


def read_service(
    given: Given, notes: list[str], *, from_file: bool = False
) -> ServiceObject | None:
    """Read a Service; None if the object is not a usable Service.

    A Service ``from_file`` has no defaults from the API: its namespace may be missing.
    """
    found = decoded(given, ServiceShape, notes, "Service")
    if found is None:
        return None
    meta, spec = found.metadata, found.spec
    namespace = meta.namespace or ("default" if from_file else "")
    name = service_name(namespace, meta.name or "")
    if name is None:
        add_note(notes, "Service", f"invalid namespace or name: {namespace!r}, {meta.name!r}")
        return None
    note = ObjectNotes(notes, f"Service {name}")
    if meta.labels is not None and meta.labels.proxy_name is not None:
        return ServiceObject(name=name)
    cluster_ips = _cluster_ips(spec, note)
    if not cluster_ips:
        if from_file and spec.type != "ExternalName" and not (spec.cluster_ip or spec.cluster_ips):
            note("no clusterIP: without an API server nothing assigns one")
        return ServiceObject(name=name)
    external_ips = addresses(spec.external_ips or (), "external IP", note)
    source_ranges = networks(spec.source_ranges or (), note)
    balancer = addresses(_ingress(found), "load balancer IP", note)
    if balancer and not source_ranges and any(map(str.strip, spec.source_ranges or ())):
        # Without any source range the load balancer IPs would be open to everyone.
        note("load balancer IPs ignored: no valid source range")
        balancer = ()
    outside = spec.type in ("LoadBalancer", "NodePort") or (
        spec.type in (None, "", "ClusterIP") and bool(spec.external_ips)
    )
    external_local = outside and spec.external_traffic_policy == "Local"
    checked = external_local and spec.type == "LoadBalancer"
    return ServiceObject(
        name=name,
        cluster_ips=cluster_ips,
        ports=tuple(_service_ports(spec.ports or (), note)),
        external_ips=external_ips,
        load_balancer_ips=balancer,
        source_ranges=source_ranges,
        affinity_s=_affinity_s(spec, note),
        internal_local=spec.internal_traffic_policy == "Local",
        external_local=external_local,
        health_check_node_port=port_number(spec.health_check_node_port) if checked else 0,
    )


def read_slice(given: Given, notes: list[str], *, from_file: bool = False) -> SliceObject | None:
    """Read an EndpointSlice; None if it has no addresses of a Service.

    A slice ``from_file`` has no defaults from the API: namespace and port names may be missing.
    """
    found = decoded(given, SliceShape, notes, "EndpointSlice")
    if found is None:
        return None
    meta, labels = found.metadata, found.metadata.labels
    namespace, name = meta.namespace or ("default" if from_file else ""), meta.name or ""
    note = ObjectNotes(notes, f"EndpointSlice {cut(f'{namespace}/{name}')}")
    family = _FAMILIES.get(found.address_type or "")
    if family is None or (labels is not None and labels.headless is not None):
        return None  # addressType FQDN
    labelled = labels.service_name if labels is not None else None
    if not labelled:
        # The API allows slices without the label; in a file it was probably forgotten.
        if from_file:
            note("no label kubernetes.io/service-name: the slice belongs to no Service")
        return None
    service = service_name(namespace, labelled)
    if service is None or not name:
        note("no namespace, no name, or an invalid label kubernetes.io/service-name")
        return None
    return SliceObject(
        namespace=service.namespace,
        name=name,
        service=service,
        family=family,
        ports=tuple(_slice_ports(found, note, unnamed=from_file)),
        endpoints=tuple(_endpoints(found.endpoints or (), family, note)),
        changed_at=timestamp(meta.annotations.changed_at if meta.annotations is not None else None),
    )


def read_node(given: Given, notes: list[str]) -> NodeObject | None:
    """Read a Node; None if the object is not a usable Node."""
    found = decoded(given, NodeShape, notes, "Node")
    if found is None or not found.metadata.name:
        return None
    meta, spec = found.metadata, found.spec
    note = ObjectNotes(notes, f"Node {cut(meta.name or '')}")
    listed = found.status.addresses or ()
    cidrs = spec.pod_cidrs or ([spec.pod_cidr] if spec.pod_cidr else [])
    return NodeObject(
        name=meta.name or "",
        addresses=addresses(
            [
                each.address or ""
                for kind in ("InternalIP", "ExternalIP")
                for each in listed
                if each.type == kind
            ],
            "address",
            note,
        ),
        pod_cidrs=networks(cidrs, note),
        labels=dict(meta.labels or {}),
        taints=tuple(each.key for each in spec.taints or () if each.key),
        deleting=bool(meta.deletion_timestamp),
    )


def read_service_cidrs(given: Given, notes: list[str]) -> tuple[str, tuple[str, ...]] | None:
    """Read a ServiceCIDR into its name and networks; None if the object is not usable."""
    found = decoded(given, ServiceCidrShape, notes, "ServiceCIDR")
    if found is None or not found.metadata.name:
        return None
    name = found.metadata.name
    return name, networks(found.spec.cidrs or (), ObjectNotes(notes, f"ServiceCIDR {cut(name)}"))


def _cluster_ips(spec: ServiceSpec, note: ObjectNotes) -> tuple[str, ...]:
    given = spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])
    first = spec.cluster_ip or (given[0] if given else "")
    if spec.type == "ExternalName" or first in ("", "None"):
        return ()
    ips = addresses(given, "cluster IP", note)
    if spec.ip_families:
        ips = tuple(ip for ip in ips if family_of(ip).value in spec.ip_families)
    # At most one per family: the first.
    return tuple({family_of(ip): ip for ip in reversed(ips)}.values())[::-1]


def _service_ports(ports: Iterable[ServicePortShape], note: ObjectNotes) -> Iterable[ObjectPort]:
    for each in ports:
        protocol = _PROTOCOLS.get(each.protocol or "TCP")
        name, port = each.name or "", port_number(each.port)
        if protocol is None or not port or (name and not is_label(name)):
            note(f"invalid port: {_given(name, each.port, each.protocol)}")
            continue
        yield ObjectPort(
            name=sys.intern(name),
            protocol=protocol,
            port=port,
            node_port=port_number(each.node_port),
        )


def _ingress(found: ServiceShape) -> list[str]:
    balancer = found.status.load_balancer
    return [
        each.ip
        for each in (balancer.ingress if balancer is not None else None) or ()
        if each.ip and each.ip_mode in (None, "VIP")
    ]


def _affinity_s(spec: ServiceSpec, note: ObjectNotes) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    config = spec.session_affinity_config
    client = config.client_ip if config is not None else None
    given = client.timeout_seconds if client is not None else None
    if given is None or given <= 0:
        return _DEFAULT_AFFINITY_S
    if given > _MOST_AFFINITY_S:
        # A larger timeout overflows in the kernel, which then rejects the whole rule set.
        note(f"session affinity timeout {given} s is too long: using {_MOST_AFFINITY_S} s")
    return min(given, _MOST_AFFINITY_S)


def _slice_ports(found: SliceShape, note: ObjectNotes, *, unnamed: bool) -> Iterable[SlicePort]:
    for each in found.ports or ():
        protocol = _PROTOCOLS.get(each.protocol or "TCP")
        name, port = "" if each.name is None and unnamed else each.name, port_number(each.port)
        if name is None:
            note("port without a name")
        elif protocol is None or not port or (name and not is_label(name)):
            note(f"invalid port: {_given(name, each.port, each.protocol)}")
        else:
            yield _slice_port(name, protocol, port)


def _given(name: str, port: object, protocol: object) -> str:
    """A port as the object has it, without absent fields."""
    given = [repr(name), *(str(each) for each in (port, protocol) if each is not None)]
    return cut(" ".join(given))


# There are many slices and few distinct ports, nodes and zones: equal values share one object.
@lru_cache(maxsize=4096)
def _slice_port(name: str, protocol: PortProtocol, port: int) -> SlicePort:
    return SlicePort(sys.intern(name), protocol, port)


@lru_cache(maxsize=4096)
def _hints(*names: str) -> frozenset[str]:
    return frozenset(map(sys.intern, names))


_NO_HINTS: frozenset[str] = frozenset()


def _endpoints(
    endpoints: Iterable[SliceEndpointShape], family: IpFamily, note: ObjectNotes
) -> Iterable[SliceEndpoint]:
    for each in endpoints:
        given = each.addresses[0] if each.addresses else ""  # "consumers should use the first"
        address = canonical_address(given)
        if not address or family_of(address) is not family:
            note(f"invalid {family.value} address: {cut(repr(given))}")
            continue
        state, hints = each.conditions, each.hints
        zones = nodes = _NO_HINTS
        if hints is not None:
            zones = _hints(*(zone.name for zone in hints.for_zones or () if zone.name))
            nodes = _hints(*(node.name for node in hints.for_nodes or () if node.name))
        yield SliceEndpoint(
            address=address,
            node=sys.intern(each.node_name) if each.node_name else "",
            ready=state is None or state.ready is not False,
            serving=state is None or state.serving is not False,
            terminating=state is not None and state.terminating is True,
            zone_hints=zones,
            node_hints=nodes,
        )
