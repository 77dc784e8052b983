"""The objects that one file of manifests has, with their places.

Syntax that is wrong, and an object that is not what its kind says, are errors. Kinds that a node
proxy has no use for are left out and said, and so are parts of an object that cannot be used.

YAML is read by libyaml: a cluster's objects are megabytes. For files of ours, text/located_yaml.py
is stricter and gives every field its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.objects import NodeObject, ServiceObject, SliceObject
from isthmus.programs.node_proxy.rules.reading import (
    Given,
    cut,
    read_node,
    read_service,
    read_service_cidrs,
    read_slice,
)
from isthmus.programs.node_proxy.rules.shapes import SliceShape

MAX_NODES = 2_000_000
MAX_DEPTH = 1000
# Nested within a line; otherwise each level takes a line that is longer than the last.
_COMPACT = re.compile(rb"(?:[-?:][ \t]+){4}")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader):
    """Leaves times alone, as JSON does, and refuses a key that is there twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (the base class has it so)
        first: [(tag, pattern) for tag, pattern in each if tag != _TIMESTAMP]
        for first, each in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = len(node.value)
        merges = any(key.tag == _MERGE for key, _ in node.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if not merges and len(found) < keys:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return found


def documents(data: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Every document that is not empty, with the line that it begins at.

    Raises:
        ConfigError: it is no YAML, and where.
    """
    try:
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH or _COMPACT.search(data):
            _check_depth(data, name)
        loader = _Loader(data)
        try:
            # Names for what is somewhere else make a short file long.
            named = b"&" in data and b"*" in data
            while loader.check_node():
                node: Any = loader.get_node()
                if named and _size(node) > MAX_NODES:
                    raise ConfigError(f"{name}: longer than {MAX_NODES} values, by its aliases")
                value = loader.construct_document(node)
                if value is not None:
                    yield node.start_mark.line + 1, value
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: not YAML: {what}") from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error


def _check_depth(data: bytes, name: str) -> None:
    """Refuse what the composer, which is recursive and in C, would die of."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise ConfigError(f"{name}:{mark.line + 1}:{mark.column + 1}: nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _size(root: Any) -> int:
    """How many values it is once aliases are written out."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = MAX_NODES + 1  # one that has itself within has no end
            pairs = node.value
            inner = [part for pair in pairs for part in pair] if node.id == "mapping" else pairs
            known = sizes[id(node)] = 1 + sum(map(size, inner))
        return known

    return size(root)


MAX_OBJECTS = 500_000
MAX_NOTES = 100  # of one file
_LIST = "List"
_KINDS = {
    "Service": ("v1",),
    "EndpointSlice": ("discovery.k8s.io/v1",),
    "Node": ("v1",),
    "ServiceCIDR": ("networking.k8s.io/v1", "networking.k8s.io/v1beta1"),
}


@dataclass(slots=True, kw_only=True)
class FileObjects:
    """What a file has. ``places`` are the kinds and names of all objects, and where each is."""

    services: list[ServiceObject] = field(default_factory=list)
    slices: list[SliceObject] = field(default_factory=list)
    nodes: list[NodeObject] = field(default_factory=list)
    service_cidrs: list[str] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Head(msgspec.Struct, rename="camel"):
    """The beginning of any object, and the items of a List."""

    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """An object as it was given, and where."""

    api_version: str
    kind: str
    given: Given
    place: str


def parse(data: bytes, name: str, *, as_json: bool) -> FileObjects:
    """Read a file's objects; ``name`` is what messages call it.

    Raises:
        ConfigError: it is wrong, with the name, the line and what.
    """
    if not data.strip():
        # To begin to write a file is to empty it.
        raise ConfigError(f"{name}: is empty; remove it if it is to have no objects")
    reader = _Reader(name)
    for number, each in enumerate(_of_json(data, name) if as_json else _of_yaml(data, name)):
        if number >= MAX_OBJECTS:
            raise ConfigError(f"{name}: more than {MAX_OBJECTS} objects")
        reader.take(each)
    return reader.found()


def _of_json(data: bytes, name: str) -> Iterator[_Object]:
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(_json_error(data, name, str(error))) from error
    yield from _taken_apart(head.api_version, head.kind, data, head.items, name)


def _json_error(data: bytes, name: str, fallback: str) -> str:
    """Say it with a line, which msgspec does not know."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}"
    except (ValueError, RecursionError):
        return f"{name}: not JSON: {fallback}"
    return f"{name}: not an object of Kubernetes: {fallback}"


def _of_yaml(data: bytes, name: str) -> Iterator[_Object]:
    for line, document in documents(data, name):
        place = f"{name}:{line}"
        if not isinstance(document, Mapping):
            raise ConfigError(f"{place}: not an object of Kubernetes: it must be a mapping")
        words = document.get("apiVersion", ""), document.get("kind", "")
        items = document.get("items")
        if not all(isinstance(word, str) for word in words):
            raise ConfigError(f"{place}: apiVersion and kind must be text")
        if items is not None and not isinstance(items, list):
            raise ConfigError(f"{place}: items must be a list")
        yield from _taken_apart(*words, document, items, place)


def _taken_apart(
    api_version: str, kind: str, given: Given, items: list[Any] | None, place: str
) -> Iterator[_Object]:
    """Give an object, or those of a List: a typed one has items without kinds of their own."""
    if not kind.endswith(_LIST):
        yield _Object(api_version=api_version, kind=kind, given=given, place=place)
        return
    inherited = kind.removesuffix(_LIST)
    for index, item in enumerate(items or ()):
        here = f"{place}: items[{index}]"
        try:
            head = _head(item)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(f"{here}: not an object of Kubernetes: {error}") from error
        yield _Object(
            api_version=head.api_version or (api_version if inherited else ""),
            kind=head.kind or inherited,
            given=item,
            place=here,
        )


def _head(given: Any) -> _Head:
    if isinstance(given, msgspec.Raw):
        return msgspec.json.decode(given, type=_Head)
    if not isinstance(given, Mapping):
        raise ValueError("it must be a mapping")
    return msgspec.convert(
        {key: given[key] for key in ("apiVersion", "kind") if key in given}, _Head
    )


class _Reader:
    """Puts objects where they belong."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found = FileObjects()
        self._ignored: dict[str, int] = {}

    def found(self) -> FileObjects:
        for what, count in self._ignored.items():
            self._note(f"{self._name}: {what} is not used" + (f", {count} times" * (count > 1)))
        return self._found

    def take(self, one: _Object) -> None:
        """Read an object.

        Raises:
            ConfigError: it is not what its kind says.
        """
        if not one.kind or not one.api_version:
            missing = "kind" if not one.kind else "apiVersion"
            raise ConfigError(f"{one.place}: {missing} is missing")
        if one.api_version not in _KINDS.get(one.kind, ()):
            what = cut(f"{one.kind} of {one.api_version}")
            if len(self._ignored) < MAX_NOTES or what in self._ignored:
                self._ignored[what] = self._ignored.get(what, 0) + 1
            return
        notes: list[str] = []
        named = self._put(one, notes)
        if named is not None:
            self._found.places.append((f"{one.kind} {named}", one.place))
        elif one.kind != "EndpointSlice" or not _is_slice(one.given):
            raise ConfigError(f"{one.place}: {notes[0] if notes else f'{one.kind} without a name'}")
        for note in notes:
            self._note(f"{one.place}: {note}")

    def _put(self, one: _Object, notes: list[str]) -> str | None:
        """Read it; its name, or None if there is nothing to be used."""
        found = self._found
        match one.kind:
            case "Service":
                service = read_service(one.given, notes, from_file=True)
                if service is None:
                    return None
                found.services.append(service)
                return str(service.name)
            case "EndpointSlice":
                piece = read_slice(one.given, notes, from_file=True)
                if piece is None:
                    return None
                found.slices.append(piece)
                return "/".join(piece.key)
            case "Node":
                node = read_node(one.given, notes)
                if node is None:
                    return None
                found.nodes.append(node)
                return node.name
            case _:
                cidrs = read_service_cidrs(one.given, notes)
                if cidrs is None:
                    return None
                found.service_cidrs += cidrs[1]
                return cidrs[0]

    def _note(self, sentence: str) -> None:
        if len(self._found.notes) < MAX_NOTES:
            self._found.notes.append(sentence)


def _is_slice(given: Given) -> bool:
    """Whether it is one at all: of names instead of addresses, or of nobody's, is no mistake."""
    try:
        if isinstance(given, Mapping):
            msgspec.convert(given, SliceShape)
        else:
            msgspec.json.decode(given, type=SliceShape)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True
