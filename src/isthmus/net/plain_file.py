"""Reading a file whole: within a bound, and never waiting for what is no file.

A path that was a file may be a pipe, a directory or a device the next time. Opening a pipe waits
for whoever writes into it, and reading a device may never end; both would hold up a program for
ever. All that is read by a path that somebody else may replace goes through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

#: For what has no bound of its own.
MOST_BYTES = 16 * 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "is a pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


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
