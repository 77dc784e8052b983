"""Reads Services, EndpointSlices, Nodes and ServiceCIDRs from files, for use without a cluster.

A file is JSON, or YAML with any number of documents; Lists are expanded. Objects of other kinds are
ignored, with a note.

``ManifestsWatch`` follows a directory. Objects of a deleted file disappear. A file that is invalid
or half-written changes nothing: the objects read from it before stay, and the error is logged once.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from isthmus.errors import ConfigError, unreadable
from isthmus.logs import log
from isthmus.programs.node_proxy.rules.model import NodeObject, ServiceObject, SliceObject
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
# The limit on nesting within a line; otherwise each level needs a line longer than the last.
_COMPACT = re.compile(rb"(?:[-?:][ \t]+){4}")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader):
    """Leaves timestamps as text, as JSON does, and rejects duplicate keys."""

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
                        None, None, f"duplicate key {key.value!r}", key.start_mark
                    )
                seen.add(key.value)
        return found


def documents(data: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Every non-empty document, with its first line.

    Raises:
        ConfigError: the text is not YAML; the message has the position.
    """
    try:
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH or _COMPACT.search(data):
            _check_depth(data, name)
        loader = _Loader(data)
        try:
            # Aliases make a short file expand to a large value.
            named = b"&" in data and b"*" in data
            while loader.check_node():
                node: Any = loader.get_node()
                if named and _size(node) > MAX_NODES:
                    raise ConfigError(f"{name}: aliases expand to more than {MAX_NODES} values")
                value = loader.construct_document(node)
                if value is not None:
                    yield node.start_mark.line + 1, value
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: invalid YAML: {what}") from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise ConfigError(f"{name}: invalid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error


def _check_depth(data: bytes, name: str) -> None:
    """Reject nesting that would overflow the stack of the composer, which is recursive and in C."""
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
    """The number of values once aliases are expanded."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = MAX_NODES + 1  # a value that contains itself is infinite
            pairs = node.value
            inner = [part for pair in pairs for part in pair] if node.id == "mapping" else pairs
            known = sizes[id(node)] = 1 + sum(map(size, inner))
        return known

    return size(root)


MAX_OBJECTS = 500_000
MAX_NOTES = 100  # per file
_LIST = "List"
_KINDS = {
    "Service": ("v1",),
    "EndpointSlice": ("discovery.k8s.io/v1",),
    "Node": ("v1",),
    "ServiceCIDR": ("networking.k8s.io/v1", "networking.k8s.io/v1beta1"),
}


@dataclass(slots=True, kw_only=True)
class FileObjects:
    """The contents of a file. ``places`` are kind, name and position of every object."""

    services: list[ServiceObject] = field(default_factory=list)
    slices: list[SliceObject] = field(default_factory=list)
    nodes: list[NodeObject] = field(default_factory=list)
    service_cidrs: list[str] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Head(msgspec.Struct, rename="camel"):
    """The type of any object, and the items of a List."""

    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """An unparsed object, and its position."""

    api_version: str
    kind: str
    given: Given
    place: str


def parse(data: bytes, name: str, *, as_json: bool) -> FileObjects:
    """Read the objects of a file; ``name`` is its name in messages.

    Raises:
        ConfigError: the file is invalid; the message has name and line.
    """
    if not data.strip():
        # A file is empty while a program begins to write it.
        raise ConfigError(f"{name}: empty file: delete it if it is meant to have no objects")
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
    yield from _expanded(head.api_version, head.kind, data, head.items, name)


def _json_error(data: bytes, name: str, fallback: str) -> str:
    """The error with its position, which msgspec does not report."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f"{name}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}"
    except (ValueError, RecursionError):
        return f"{name}: invalid JSON: {fallback}"
    return f"{name}: invalid Kubernetes object: {fallback}"


def _of_yaml(data: bytes, name: str) -> Iterator[_Object]:
    for line, document in documents(data, name):
        place = f"{name}:{line}"
        if not isinstance(document, Mapping):
            raise ConfigError(f"{place}: invalid Kubernetes object: must be a mapping")
        words = document.get("apiVersion", ""), document.get("kind", "")
        items = document.get("items")
        if not all(isinstance(word, str) for word in words):
            raise ConfigError(f"{place}: apiVersion and kind must be strings")
        if items is not None and not isinstance(items, list):
            raise ConfigError(f"{place}: items must be a list")
        yield from _expanded(*words, document, items, place)


def _expanded(
    api_version: str, kind: str, given: Given, items: list[Any] | None, place: str
) -> Iterator[_Object]:
    """An object, or the items of a List, whose kind follows from a typed List's."""
    if not kind.endswith(_LIST):
        yield _Object(api_version=api_version, kind=kind, given=given, place=place)
        return
    inherited = kind.removesuffix(_LIST)
    for index, item in enumerate(items or ()):
        here = f"{place}: items[{index}]"
        try:
            head = _head(item)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(f"{here}: invalid Kubernetes object: {error}") from error
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
        raise ValueError("must be a mapping")
    return msgspec.convert(
        {key: given[key] for key in ("apiVersion", "kind") if key in given}, _Head
    )


class _Reader:
    """Sorts objects by kind."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found = FileObjects()
        self._ignored: dict[str, int] = {}

    def found(self) -> FileObjects:
        for what, count in self._ignored.items():
            self._note(f"{self._name}: {what} ignored" + (f", {count} times" * (count > 1)))
        return self._found

    def take(self, one: _Object) -> None:
        """Read an object.

        Raises:
            ConfigError: the object is not valid for its kind.
        """
        if not one.kind or not one.api_version:
            missing = "kind" if not one.kind else "apiVersion"
            raise ConfigError(f"{one.place}: no {missing}")
        if one.api_version not in _KINDS.get(one.kind, ()):
            what = cut(f"{one.api_version} {one.kind}")
            if len(self._ignored) < MAX_NOTES or what in self._ignored:
                self._ignored[what] = self._ignored.get(what, 0) + 1
            return
        notes: list[str] = []
        named = self._put(one, notes)
        if named is not None:
            self._found.places.append((f"{one.kind} {named}", one.place))
        elif one.kind != "EndpointSlice" or not _is_slice(one.given):
            raise ConfigError(f"{one.place}: {notes[0] if notes else f'{one.kind} has no name'}")
        for note in notes:
            self._note(f"{one.place}: {note}")

    def _put(self, one: _Object, notes: list[str]) -> str | None:
        """Read an object; returns its name, or None if it is not usable."""
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

    def _note(self, note: str) -> None:
        if len(self._found.notes) < MAX_NOTES:
            self._found.notes.append(note)


def _is_slice(given: Given) -> bool:
    """Whether a skipped object is a valid slice: an FQDN slice, or one without a Service."""
    try:
        if isinstance(given, Mapping):
            msgspec.convert(given, SliceShape)
        else:
            msgspec.json.decode(given, type=SliceShape)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


MAX_FILES = 10_000
MAX_FILE_BYTES = 64 * 1024 * 1024
SUFFIXES = (".yaml", ".yml", ".json")

#: Identifies one state of a file.
Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """The objects of all files; none occurs twice.

    ``node`` is the one with the given name or, without a name, the only one. ``notes`` say what was
    ignored, with positions.
    """

    services: tuple[ServiceObject, ...] = ()
    slices: tuple[SliceObject, ...] = ()
    nodes: tuple[NodeObject, ...] = ()
    node: NodeObject | None = None
    service_cidrs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_manifests(paths: Sequence[Path], *, node_name: str = "") -> Manifests:
    """Read files, and all manifests in directories, not recursively; blocks.

    Raises:
        ConfigError: a file cannot be read or is invalid; the message has name and line.
    """
    return joined((read_file(path) for path in find_files(paths)), node_name=node_name)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The given files, and the manifests in the given directories, sorted by name.

    Raises:
        ConfigError: a directory cannot be listed, or has too many files.
    """
    found: list[Path] = []
    for path in paths:
        # Errors of a file are reported when it is opened.
        found += find_in(path) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def find_in(directory: Path) -> list[Path]:
    """The manifests in a directory, sorted by name.

    Hidden files are ignored: mounted ConfigMaps and editors create some.

    Raises:
        ConfigError: the directory cannot be listed, or has too many files.
    """
    try:
        found = sorted(filter(_is_manifest, directory.iterdir()))
    except (OSError, ValueError) as error:
        raise unreadable(str(directory), error) from error
    if len(found) > MAX_FILES:
        raise ConfigError(f"{directory}: more than {MAX_FILES} files")
    return found


def _is_manifest(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and not path.is_dir()


def stamp_of(path: Path) -> Stamp | None:
    """Identifies the present state of a file; None if it does not exist."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def _stamp(now: os.stat_result) -> Stamp:
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def read_file(path: Path) -> FileObjects:
    """Read one file; blocks.

    Raises:
        ConfigError: the file cannot be read or is invalid; the message has name and line.
    """
    try:
        data = _data(path)
    except (OSError, ValueError) as error:
        raise unreadable(str(path), error) from error
    return parse(data, str(path), as_json=path.suffix == ".json")


def _data(path: Path) -> bytes:
    # Opening a pipe would block until a writer opens it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        now = os.fstat(descriptor)
        if not stat.S_ISREG(now.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"longer than {MAX_FILE_BYTES} bytes")
        if _stamp(os.fstat(descriptor)) != _stamp(now):
            raise OSError(errno.EAGAIN, "the file is being written")
        return data


def joined(files: Iterable[FileObjects], *, node_name: str = "") -> Manifests:
    """The objects of several files.

    Raises:
        ConfigError: an object occurs twice; the message has both positions.
    """
    places: dict[object, str] = {}
    services: list[ServiceObject] = []
    slices: list[SliceObject] = []
    nodes: list[NodeObject] = []
    ranges: set[str] = set()
    notes: list[str] = []
    for file in files:
        for what, place in file.places:
            first = places.setdefault(what, place)
            if first != place:
                raise ConfigError(f"{place}: {what} is already defined at {first}")
        services += file.services
        slices += file.slices
        nodes += file.nodes
        ranges.update(file.service_cidrs)
        notes += file.notes
    if node_name:
        node = next((each for each in nodes if each.name == node_name), None)
    else:
        node = nodes[0] if len(nodes) == 1 else None
    return Manifests(
        services=tuple(services),
        slices=tuple(slices),
        nodes=tuple(nodes),
        node=node,
        service_cidrs=tuple(sorted(ranges)),
        notes=tuple(notes),
    )


LOOK_S = 0.5
_log = logging.getLogger("isthmus.nodeproxy")


@dataclass(frozen=True, slots=True)
class _Known:
    """The state of a file when it was last read, and its objects."""

    stamp: Stamp | None
    objects: FileObjects


class ManifestsWatch:
    """Follows the manifests in a directory. ``read`` and ``look`` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, _Known] = {}
        self._seen: dict[Path, Stamp | None] = {}
        self._last_error = ""

    def __repr__(self) -> str:
        return f"<ManifestsWatch {self._directory}, {len(self._known)} files>"

    def read(self) -> Manifests:
        """Read everything for the first time.

        Raises:
            ConfigError: the directory or a file cannot be read, or is invalid.
        """
        for path in find_in(self._directory):
            stamp = stamp_of(path)
            self._known[path] = _Known(stamp, read_file(path))
            self._seen[path] = stamp
        found = self._joined()
        for note in found.notes:
            log(_log, logging.INFO, note)
        return found

    async def run(self, tell: Callable[[Manifests], None], look_s: float = LOOK_S) -> None:
        """Call ``tell`` after every change, until cancelled."""
        while True:
            await asyncio.sleep(look_s)
            found = await asyncio.to_thread(self.look)
            if found is not None:
                tell(found)

    def look(self) -> Manifests | None:
        """All objects, if there was a valid change since the last call."""
        try:
            paths = find_in(self._directory)
        except ConfigError as error:
            self._log_error(str(error))
            return None
        now = {path: stamp_of(path) for path in paths}
        # A file is read once two looks see it alike: half a file can be a valid document.
        settled = [path for path in paths if now[path] == self._seen.get(path)]
        gone = [path for path in self._known if path not in now and path not in self._seen]
        self._seen = now
        read = [path for path in settled if self._is_new(path, now[path]) and self._read(path)]
        for path in gone:
            del self._known[path]
        if not read and not gone:
            return None
        try:
            found = self._joined()
        except ConfigError as error:
            self._log_error(str(error))
            return None
        self._last_error = ""
        log(_log, logging.INFO, "manifests changed", files=len(self._known),
            services=len(found.services), endpoint_slices=len(found.slices))  # fmt: skip
        return found

    def _is_new(self, path: Path, stamp: Stamp | None) -> bool:
        known = self._known.get(path)
        return known is None or known.stamp != stamp

    def _read(self, path: Path) -> bool:
        """Read a file; False if it is invalid."""
        known = self._known.get(path)
        try:
            objects = read_file(path)
        except ConfigError as error:
            self._log_error(str(error))
            # Read the file again only when it has changed.
            self._known[path] = _Known(self._seen[path], known.objects if known else FileObjects())
            return False
        self._known[path] = _Known(self._seen[path], objects)
        for note in objects.notes:
            log(_log, logging.INFO, note)
        return True

    def _joined(self) -> Manifests:
        return joined(self._known[path].objects for path in sorted(self._known))

    def _log_error(self, error: str) -> None:
        if error != self._last_error:
            self._last_error = error
            log(_log, logging.ERROR, "cannot use the manifests; earlier objects stay in use",
                error=error)  # fmt: skip
