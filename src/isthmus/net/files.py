"""Reads whole files within a size limit, without blocking on anything but regular files.

A path that was a file may later be a pipe, a directory or a device. Opening a pipe blocks until
another process writes into it, and reading a device may never end. Every path that may be
replaced while the program runs is therefore read through this module.

A FollowedFile is read again when it has changed: for documents such as policies, routes, rules and
plans. contexts.py and revocation.py follow certificates, whose files belong together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from isthmus.errors import ConfigError, unreadable

#: The default limit.
MOST_BYTES = 16 * 1024 * 1024
#: How often a followed file is checked.
LOOK_S = 1.0
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "is a pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}

T = TypeVar("T")


class TooLargeError(OSError):
    """A file exceeds the size limit."""


def read_bytes(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a regular file.

    Raises:
        OSError: unreadable, not a file (``strerror`` says what it is), or too large.
        ValueError: not a path.
    """
    # Checked before opening, too: opening a device may have side effects.
    _check_kind(os.stat(path), path)
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb") as file:
        _check_kind(os.fstat(descriptor), path)
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLargeError(errno.EFBIG, f"is larger than {most_bytes} bytes", os.fspath(path))
    return data


def read_part(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read the beginning of a regular file.

    Raises:
        OSError: see read_bytes, except for the size.
    """
    _check_kind(os.stat(path), path)
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb") as file:
        _check_kind(os.fstat(descriptor), path)
        return file.read(most_bytes)


@contextlib.contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Provide a path for bytes that were read, for libraries that accept only paths.

    In memory, and removed afterwards: OpenSSL would otherwise open the original again, which may
    have been replaced.
    """
    descriptor = os.memfd_create("isthmus", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _check_kind(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    why = _KINDS.get(stat.S_IFMT(found.st_mode), "is not a regular file")
    raise OSError(errno.EINVAL, why, os.fspath(path))


def stamp_of(path: str) -> tuple[int, ...]:
    """Identify a state of a file, through symbolic links (Kubernetes's ..data)."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return ()
    # The change time catches a copy that keeps mtime and size, and chmod after a refused read.
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def read_text(path: str, *, what: str = "", most_chars: int = -1) -> str:
    """Read a file, or its first characters; errors put ``what`` before its name.

    Raises:
        ConfigError: unreadable, not a file, or larger than 16 MiB.
    """
    try:
        # UTF-8 uses at most four bytes per character.
        raw = read_part(path, 4 * most_chars + 4) if most_chars >= 0 else read_bytes(path)
        with io.TextIOWrapper(io.BytesIO(raw), "utf-8") as reader:
            return reader.read(most_chars)
    except (OSError, ValueError) as exc:
        raise unreadable(f"{what}{path}", exc) from exc


class FollowedFile(Generic[T]):
    """The parsed contents of a file; ``current`` is the last valid state.

    ``taken(value)`` is called for each later one; ``failed(error)`` once for each missing or
    invalid state of the file, which changes nothing.
    """

    def __init__(
        self,
        path: str,
        read: Callable[[str], T],
        *,
        taken: Callable[[T], None],
        failed: Callable[[ConfigError], None],
    ) -> None:
        """Read the file.

        Raises:
            ConfigError: the file cannot be read or is invalid.
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
        """Check now, and read the file even if it seems unchanged."""
        self._stamp = None
        self._hurry.set()

    async def watch(self, look_s: float = LOOK_S) -> None:
        """Follow the file until cancelled."""
        while True:
            try:
                async with asyncio.timeout(look_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            await self.check()

    async def check(self) -> None:
        """Check the file, and read it if it changed."""
        stamp = stamp_of(self.path)
        if stamp == self._stamp:
            return
        try:
            # Parsing a long file takes time, during which every connection would wait.
            value = await asyncio.to_thread(self._read, self.path)
        except ConfigError as exc:
            self._stamp = stamp
            self._failed(exc)
            return
        if stamp == stamp_of(
            self.path
        ):  # otherwise replaced while reading: the next check reads it
            self._stamp, self.current = stamp, value
            self._taken(value)
