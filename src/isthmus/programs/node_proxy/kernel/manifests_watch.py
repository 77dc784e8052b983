"""A directory of manifests, followed: what its files have now, whenever that changed.

A file that is gone takes its objects with it. One that is wrong, or still being written, changes
nothing: what was known of it stays, and what is wrong is said once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.manifests import (
    Manifests,
    Stamp,
    find_in,
    joined,
    read_file,
    stamp_of,
)
from isthmus.programs.node_proxy.kernel.manifests_file import FileObjects

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
