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
import logging
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.manifests_file import FileObjects, parse
from isthmus.programs.node_proxy.rules.objects import NodeObject, ServiceObject, SliceObject

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
