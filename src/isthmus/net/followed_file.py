"""A file that may be replaced at any time: read whole, and read again when it has changed.

For documents: policies, routes, rules, plans. Certificates are contexts.py and revocation.py, whose
files belong together.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from typing import Generic, TypeVar

from isthmus.errors import ConfigError
from isthmus.net.plain_file import read_bytes, read_part

LOOK_S = 1.0
T = TypeVar("T")


def stamp_of(path: str) -> tuple[int, ...]:
    """Tell one state of a file from another, through symbolic links (Kubernetes' ..data)."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return ()
    # The change time catches a copy that keeps mtime and size, and chmod after a refused read.
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def read_text(path: str, *, what: str = "", most_chars: int = -1) -> str:
    """Read a file, or so much of it; ``what`` stands before its name when it cannot be read.

    Raises:
        ConfigError: it cannot be read, is no file, or is larger than 16 MiB.
    """
    try:
        # UTF-8 has four bytes for a character at most.
        raw = read_part(path, 4 * most_chars + 4) if most_chars >= 0 else read_bytes(path)
        with io.TextIOWrapper(io.BytesIO(raw), "utf-8") as reader:
            return reader.read(most_chars)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not UTF-8, or no path"
        raise ConfigError(f"{what}{path}: {why}") from exc


class FollowedFile(Generic[T]):
    """What a file says; ``current`` is of the last state of it that was right.

    ``taken(value)`` hears of each later one, ``failed(error)`` once of each state of the file that
    is gone or wrong, and changes nothing.
    """

    def __init__(
        self,
        path: str,
        read: Callable[[str], T],
        *,
        taken: Callable[[T], None],
        failed: Callable[[ConfigError], None],
    ) -> None:
        """Read it.

        Raises:
            ConfigError: the file cannot be read or is wrong.
        """
        self.path = path
        self._read = read
        self._taken = taken
        self._failed = failed
        self._hurry = asyncio.Event()
        self._stamp: tuple[int, ...] | None = stamp_of(path)
        self.current = read(path)

    def __repr__(self) -> str:
        return f"<FollowedFile {self.path}>"

    def look_now(self) -> None:
        """Do not wait for the next look, and read it even if it seems the same."""
        self._stamp = None
        self._hurry.set()

    async def watch(self, look_s: float = LOOK_S) -> None:
        """Follow the file for ever."""
        while True:
            try:
                async with asyncio.timeout(look_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            await self.check()

    async def check(self) -> None:
        """Look at the file, and read it if it changed."""
        stamp = stamp_of(self.path)
        if stamp == self._stamp:
            return
        try:
            # A long file takes its time, and every connection would wait for it.
            value = await asyncio.to_thread(self._read, self.path)
        except ConfigError as exc:
            self._stamp = stamp
            self._failed(exc)
            return
        if stamp == stamp_of(self.path):  # else replaced while we read: the next look gets it whole
            self._stamp, self.current = stamp, value
            self._taken(value)
