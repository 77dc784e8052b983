"""Services, EndpointSlices, Nodes and ServiceCIDRs out of files, for use without a cluster.

A file is YAML, of as many documents as it likes, or JSON; Lists are taken apart. What is no such
object is left out, and said. What one file has is manifests_file.py.

``ManifestsWatch`` follows a directory. A file that is gone takes its objects with it. One that is
wrong, or still being written, changes nothing: what was known of it stays, and what is wrong is
said once.
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

from isthmus.errors import ConfigError
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


MAX_FILES = 10_000
MAX_FILE_BYTES = 64 * 1024 * 1024
SUFFIXES = (".yaml", ".yml", ".json")

#: What tells one state of a file from another.
Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """All that was found in files; no object is there twice.

    ``node`` is the one of the name asked for or, if none was asked for, the only one. ``notes``
    are sentences about what was left out, with their places.
    """

    services: tuple[ServiceObject, ...] = ()
    slices: tuple[SliceObject, ...] = ()
    nodes: tuple[NodeObject, ...] = ()
    node: NodeObject | None = None
    service_cidrs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_manifests(paths: Sequence[Path], *, node_name: str = "") -> Manifests:
    """Read files, and all manifests in directories, but not those below them; blocks.

    Raises:
        ConfigError: one cannot be read or is wrong, with its name, line and what.
    """
    return joined((read_file(path) for path in find_files(paths)), node_name=node_name)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files among these, and the manifests in directories among these, by name.

    Raises:
        ConfigError: a directory cannot be listed, or has too many.
    """
    found: list[Path] = []
    for path in paths:
        # A file is opened later, and says itself what is wrong with it.
        found += find_in(path) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def find_in(directory: Path) -> list[Path]:
    """The manifests in a directory, by name.

    Hidden ones are left out: mounted ConfigMaps and editors have such.

    Raises:
        ConfigError: it cannot be listed, or has too many.
    """
    try:
        found = sorted(filter(_is_manifest, directory.iterdir()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else ""
        raise ConfigError(f"{directory}: cannot be listed: {why or error}") from error
    if len(found) > MAX_FILES:
        raise ConfigError(f"{directory}: more than {MAX_FILES} files")
    return found


def _is_manifest(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and not path.is_dir()


def stamp_of(path: Path) -> Stamp | None:
    """What tells this state of a file from others; None where there is no file."""
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return None


def _stamp(now: os.stat_result) -> Stamp:
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def read_file(path: Path) -> FileObjects:
    """Read one file; blocks.

    Raises:
        ConfigError: it cannot be read or is wrong, with its name, line and what.
    """
    try:
        data = _data(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else ""
        raise ConfigError(f"{path}: cannot be read: {why or error}") from error
    return parse(data, str(path), as_json=path.suffix == ".json")


def _data(path: Path) -> bytes:
    # Opening a pipe would wait for whoever writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        now = os.fstat(descriptor)
        if not stat.S_ISREG(now.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"longer than {MAX_FILE_BYTES} bytes")
        if _stamp(os.fstat(descriptor)) != _stamp(now):
            raise OSError(errno.EAGAIN, "it is being written")
        return data


def joined(files: Iterable[FileObjects], *, node_name: str = "") -> Manifests:
    """All objects of several files.

    Raises:
        ConfigError: one object is there twice, and where.
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
                raise ConfigError(f"{place}: {what} is in {first} already")
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
    """The state of a file that was read last, and what is known of it."""

    stamp: Stamp | None
    objects: FileObjects


class ManifestsWatch:
    """Follows the manifests in a directory. ``read`` and ``look`` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, _Known] = {}
        self._seen: dict[Path, Stamp | None] = {}
        self._said = ""

    def __repr__(self) -> str:
        return f"<ManifestsWatch {self._directory}, {len(self._known)} files>"

    def read(self) -> Manifests:
        """Read everything for the first time.

        Raises:
            ConfigError: the directory or a file cannot be read, or is wrong.
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
        """Tell of every change, until cancelled."""
        while True:
            await asyncio.sleep(look_s)
            found = await asyncio.to_thread(self.look)
            if found is not None:
                tell(found)

    def look(self) -> Manifests | None:
        """All there is, if anything changed since the last look that was understood."""
        try:
            paths = find_in(self._directory)
        except ConfigError as error:
            self._say(str(error))
            return None
        now = {path: stamp_of(path) for path in paths}
        # What looks the same twice is written to the end: half a file can be a whole document.
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
            self._say(str(error))
            return None
        self._said = ""
        log(_log, logging.INFO, "manifests changed", files=len(self._known),
            services=len(found.services), endpoint_slices=len(found.slices))  # fmt: skip
        return found

    def _is_new(self, path: Path, stamp: Stamp | None) -> bool:
        known = self._known.get(path)
        return known is None or known.stamp != stamp

    def _read(self, path: Path) -> bool:
        """Read a file; False if it says nothing new."""
        known = self._known.get(path)
        try:
            objects = read_file(path)
        except ConfigError as error:
            self._say(str(error))
            # Not to be read again before it is another.
            self._known[path] = _Known(self._seen[path], known.objects if known else FileObjects())
            return False
        self._known[path] = _Known(self._seen[path], objects)
        for note in objects.notes:
            log(_log, logging.INFO, note)
        return True

    def _joined(self) -> Manifests:
        return joined(self._known[path].objects for path in sorted(self._known))

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            log(_log, logging.ERROR, f"{sentence}; what was known before stays in use")
