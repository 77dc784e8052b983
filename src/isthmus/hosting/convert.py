"""Converts a document to the other version of the API, editing only what differs.

Comments, order and other documents in the file stay unchanged. A field without a counterpart is an
error with its location; nothing is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import yaml

from isthmus.errors import ConfigError
from isthmus.hosting.comparison import changed_sight, without_counterpart
from isthmus.hosting.document import KIND, locate, read
from isthmus.hosting.document_fields_v1alpha1 import SINGLE_CIDRS
from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    HostedCluster,
    PlanFinding,
    Publishing,
    PublishingModel,
    Strategy,
    Weight,
)
from isthmus.hosting.models import V1ALPHA1
from isthmus.hosting.plan import check
from isthmus.hosting.visibility import uses_ovn
from isthmus.text.located_yaml import compose_all, short

_SERVICES, _NETWORKING = "spec.services", "spec.networking"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedDocument:
    """The converted document, or why there is none.

    ``edits`` describes the changed fields and the documents left as they are; ``sight`` the
    services that become visible to others. ``refused`` are fields without a counterpart; if there
    are any, ``text`` is empty.
    """

    text: str = ""
    edits: tuple[str, ...] = ()
    sight: tuple[str, ...] = ()
    refused: tuple[PlanFinding, ...] = ()


class _TextEdit(NamedTuple):
    start: int
    end: int
    text: str
    says: str


def convert(text: str, name: str, to: PublishingModel) -> ConvertedDocument:
    """Convert the only HostedCluster of a file; ``name`` is its name in messages.

    Raises:
        ConfigError: the document cannot be read, is already of that version, or has a form that
            cannot be edited.
    """
    cluster = read(text, name)
    if cluster.model is to:
        raise ConfigError(f"{name}: already has {to.api_version}")
    added = _added(cluster, to)
    wanted = replace(cluster, model=to, services=(*added, *_listed(cluster)))
    refused = tuple(_errors(cluster)) or (*without_counterpart(cluster, to), *_errors(wanted))
    if refused:
        return ConvertedDocument(refused=refused)
    edits = [*_version_edit(text, name, to), *_network_edits(text, name, cluster)]
    edits += _service_edits(text, name, added)
    result = _applied(text, edits)
    _check_result(result, name, wanted)
    said = (*(each.says for each in edits), *_left(text, name, cluster))
    sight = tuple(changed_sight(replace(wanted, model=cluster.model), to))
    return ConvertedDocument(text=result, edits=said, sight=sight)


def _listed(cluster: HostedCluster) -> tuple[Publishing, ...]:
    """The services without those that HyperShift's webhook adds."""
    return tuple(each for each in cluster.services if each.place.field != _SERVICES)


def _added(cluster: HostedCluster, to: PublishingModel) -> tuple[Publishing, ...]:
    """The entries that the other version requires: the webhook's, and OVN's database."""
    if to is not V1ALPHA1:
        return ()
    found = [each for each in cluster.services if each.place.field == _SERVICES]
    listed = cluster.publishing(ControlPlaneService.OVN_SB_DB)
    tunnel = cluster.publishing(ControlPlaneService.KONNECTIVITY)
    if uses_ovn(cluster) and listed is None and tunnel is not None:
        by_port = tunnel.strategy is Strategy.NODE_PORT
        ovn = Publishing(
            service=ControlPlaneService.OVN_SB_DB,
            strategy=Strategy.NODE_PORT if by_port else Strategy.ROUTE,
            node_address=tunnel.node_address if by_port else "",
            has=frozenset({"nodePort"} if by_port else ()),
        )
        found.append(ovn)
    place = cluster.places.get(_SERVICES, DocumentPlace())
    return tuple(replace(each, place=place) for each in found)


def _errors(cluster: HostedCluster) -> Iterator[PlanFinding]:
    yield from (each for each in check(cluster) if each.weight is Weight.ERROR)


def _version_edit(text: str, name: str, to: PublishingModel) -> Iterator[_TextEdit]:
    for key, value in locate(text, name).node.value:
        if key.value == "apiVersion":
            says = f"apiVersion: {value.value} becomes {to.api_version}"
            yield _TextEdit(*_span(value, value), to.api_version, says)


def _network_edits(text: str, name: str, cluster: HostedCluster) -> Iterator[_TextEdit]:
    """Single ranges as lists; v1alpha1 has lists too, so the way back changes nothing."""
    lists = {single.rpartition(".")[2]: each for each, single in SINGLE_CIDRS.items()}
    for key, value in _below(locate(text, name).node, "spec", "networking"):
        if key.value in lists and f"{_NETWORKING}.{key.value}" in cluster.places:
            listed = lists[key.value].rpartition(".")[2]
            written = f"{listed}: [{{cidr: {json.dumps(value.value)}}}]"
            says = f"{_NETWORKING}.{key.value}: becomes {listed}"
            yield _TextEdit(*_span(key, value), written, says)


def _service_edits(text: str, name: str, added: Iterable[Publishing]) -> Iterator[_TextEdit]:
    """New entries before the first one, in the style of the list."""
    new = [_entry(each) for each in added]
    if not new:
        return
    for key, value in _below(locate(text, name).node, "spec"):
        if key.value != "services" or not value.value:
            continue
        start, column = value.start_mark.index, value.start_mark.column
        if text[start] == "[":
            start += 1
            written = "".join(f"{each}, " for each in new)
        else:
            written = "".join(f"- {each}\n{' ' * column}" for each in new)
        yield _TextEdit(start, start, written, f"{_SERVICES}: {', '.join(new)} added")


def _entry(publishing: Publishing) -> str:
    strategy = f"type: {publishing.strategy.value}"
    if publishing.strategy is Strategy.NODE_PORT:
        strategy += f", nodePort: {{address: {json.dumps(publishing.node_address)}}}"
    service = publishing.service.value
    return f"{{service: {service}, servicePublishingStrategy: {{{strategy}}}}}"


def _below(node: yaml.Node, *names: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """The fields of a nested mapping; none if it does not exist."""
    pairs = list(node.value) if isinstance(node, yaml.MappingNode) else []
    for name in names:
        found = next((value for key, value in pairs if key.value == name), None)
        pairs = list(found.value) if isinstance(found, yaml.MappingNode) else []
    return pairs


def _span(first: yaml.Node, last: yaml.Node) -> tuple[int, int]:
    return first.start_mark.index, last.end_mark.index


def _left(text: str, name: str, cluster: HostedCluster) -> Iterator[str]:
    """Other documents of the same version, usually NodePools."""
    for root in compose_all(text, name):
        said = {key.value: value.value for key, value in _below(root.node)}
        kind, version = said.get("kind"), said.get("apiVersion")
        if kind != KIND and version == cluster.model.api_version:
            yield f"{short(str(kind))} at line {root.node.start_mark.line + 1} is left unchanged"


def _applied(text: str, edits: Iterable[_TextEdit]) -> str:
    for each in sorted(edits, reverse=True):
        text = text[: each.start] + each.text + text[each.end :]
    return text


def _check_result(text: str, name: str, wanted: HostedCluster) -> None:
    """Read the result: anchors, aliases and tags can hide where an edit does not see them."""
    try:
        same = _gist(read(text, name)) == _gist(wanted)
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(
            f"{name}: cannot be edited in place: write apiVersion, the networks and services in"
            " full, without anchors, aliases, tags and nulls"
        )


def _gist(cluster: HostedCluster) -> tuple[object, ...]:
    services = {replace(each, place=DocumentPlace()) for each in cluster.services}
    return (
        *(cluster.model.version, cluster.name, cluster.namespace, cluster.platform),
        *(cluster.access, services, cluster.advertise_address, cluster.allowed_cidrs),
        *(cluster.machine_cidrs, cluster.cluster_cidrs, cluster.service_cidrs),
    )
