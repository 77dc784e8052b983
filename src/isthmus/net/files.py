"""Reading a file whole: within a bound, and never waiting for what is no file.

A path that was a file may be a pipe, a directory or a device the next time. Opening a pipe waits
for whoever writes into it, and reading a device may never end; both would hold up a program for
ever. All that is read by a path that somebody else may replace goes through here.

A FollowedFile is read again when it has changed: for documents, such as policies, routes, rules and
plans. Certificates are contexts.py and revocation.py, whose files belong together.
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

from isthmus.errors import ConfigError

#: For what has no bound of its own.
MOST_BYTES = 16 * 1024 * 1024
#: How often a followed file is looked at.
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
    """A file has more bytes than whoever reads it can use."""


def read_bytes(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a regular file.

    Raises:
        OSError: it cannot be read, is no file (``strerror`` says what it is), or is longer.
        ValueError: it is no path.
    """
    # Before it is opened, too: opening a device may do something.
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
        OSError: see read_bytes, but for the length.
    """
    _check_kind(os.stat(path), path)
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb") as file:
        _check_kind(os.fstat(descriptor), path)
        return file.read(most_bytes)


@contextlib.contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Give what was read a path of its own, for libraries that take nothing else.

    In memory, and gone afterwards: OpenSSL would open the file again, and that may be another by
    then.
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
