"""YAML of the documents, read by whatever reads it in real life.

Our own documents go through our own readers. Objects of the Kubernetes API are held against the
models of its Python client, which are generated from the API's own description: unknown fields and
wrong kinds of values are found. What has no kind is one of our topologies, or a piece of something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import yaml

from isthmus.dial import settings_connectivity as connectivity
from isthmus.dial import settings_entitlements as entitlements
from isthmus.dial import settings_policy as policy
from isthmus.hosting import document
from isthmus.lab import reading
from isthmus.programs.apiserver_proxy import settings_file as apiserver_proxy_file
from isthmus.programs.sni_router import settings_routes as sni_routes

READERS: dict[str, Callable[[str, str], object]] = {
    "EgressSelectorConfiguration": lambda text, name: connectivity.read(text, name=name),
    "ConnectivityServiceConfiguration": lambda text, name: connectivity.read(text, name=name),
    "ConnectivityPolicy": policy.parse,
    "AgentIdentityBinding": entitlements.parse,
    "SNIRoutes": sni_routes.parse,
    "APIServerProxy": apiserver_proxy_file.parse,
    "HostedCluster": document.read,
}
#: Kinds that are files of tools and no objects of the API: that they are YAML is all there is.
FOREIGN = frozenset(
    {
        "Cluster",
        "ClusterConfiguration",
        "Config",
        "InitConfiguration",
        "JoinConfiguration",
        "KubeProxyConfiguration",
        "KubeletConfiguration",
    }
)
_LIST = re.compile(r"[lL]ist\[(.*)\]")
_DICT = re.compile(r"[dD]ict[(\[](\w+), (.*)[)\]]")


def objections(text: str, name: str, *, part_of: str = "") -> list[str]:
    """What is wrong with a YAML block; nothing when it is good."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        return [f"not YAML: {error}"]
    if part_of:
        return [each for one in documents for each in schema_objections(one, part_of, part_of)]
    kinds = {each.get("kind", "") if isinstance(each, dict) else "" for each in documents}
    for kind in sorted(kinds & READERS.keys()):
        try:
            READERS[kind](text, name)
        except Exception as error:  # whatever a reader says is what is reported
            return [str(error)]
        return []
    if any(isinstance(each, dict) and "title" in each and "hosts" in each for each in documents):
        reading.read(text, name="example", source=name)
        return []
    return [each for one in documents if isinstance(one, dict) for each in object_objections(one)]


def object_objections(found: dict[str, Any]) -> Iterator[str]:
    """What the Kubernetes API would have against an object."""
    kind, version = found.get("kind", ""), str(found.get("apiVersion", ""))
    group = version.rpartition("/")[0]
    # Groups with a dot that are not Kubernetes' own are other people's: OpenShift, cert-manager.
    if not kind or kind in FOREIGN or ("." in group and not group.endswith(".k8s.io")):
        return
    if kind == "List":
        for each in found.get("items", []):
            yield from object_objections(each)
        return
    model = version.rpartition("/")[2].title() + kind
    if api_model(model) is None:
        yield f"there is no kind {kind} in {version}"
        return
    yield from schema_objections(found, model, kind)


def schema_objections(value: Any, model: str, path: str) -> Iterator[str]:
    """Hold a value against a model: its name, ``list[…]``, ``dict(…)`` or a plain type."""
    if value is None:
        return
    if found := _LIST.fullmatch(model):
        if not isinstance(value, list):
            yield f"{path}: not a list"
            return
        for number, each in enumerate(value):
            yield from schema_objections(each, found[1], f"{path}[{number}]")
    elif found := _DICT.fullmatch(model):
        if not isinstance(value, dict):
            yield f"{path}: not a mapping"
            return
        for key, each in value.items():
            yield from schema_objections(each, found[2], f"{path}.{key}")
    elif known := api_model(model):
        yield from _fields(value, known, path)
    elif not _is_a(value, model):
        yield f"{path}: {value!r} is no {model}"


def _fields(value: Any, model: type[Any], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: not a mapping"
        return
    names = {known: attribute for attribute, known in model.attribute_map.items()}
    for key, each in value.items():
        if key not in names:
            yield f"{path}: unknown key {key!r}"
        else:
            yield from schema_objections(each, model.openapi_types[names[key]], f"{path}.{key}")


def _is_a(value: Any, plain: str) -> bool:
    if plain == "str":
        return isinstance(value, str)
    if plain == "bool":
        return isinstance(value, bool)
    if plain == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return True  # object, float, datetime, IntOrString


@cache
def api_model(name: str) -> type[Any] | None:
    """A model of the Kubernetes API by name, such as V1Service; None for what is none."""
    from kubernetes import client  # heavy, and not needed for our own kinds

    found = getattr(client, name, None)
    return found if isinstance(found, type) and hasattr(found, "openapi_types") else None
