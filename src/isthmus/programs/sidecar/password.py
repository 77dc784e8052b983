"""The password of a sidecar's clients: read from its file, and again when the file changes.

An invalid change leaves the previous password in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from typing_extensions import override

from isthmus.errors import ConfigError, unreadable
from isthmus.frame.part import LongTask, Part
from isthmus.logs import log
from isthmus.net.files import read_part, stamp_of
from isthmus.programs.sidecar.frontend import Credentials

#: RFC 1929 §2: its length has one byte.
MAX_PASSWORD_BYTES = 255
LOOK_EVERY_S = 1.0
_log = logging.getLogger("isthmus.sidecar")


def read_password(path: str) -> bytes:
    """Read a password: the whole file, without a newline at its end.

    Raises:
        ConfigError: it cannot be read, is empty or too long; the message quotes none of it.
    """
    try:
        raw = read_part(path, MAX_PASSWORD_BYTES + 3)
    except (OSError, ValueError) as exc:
        raise unreadable(f"--password-file {path}", exc) from exc
    password = raw.removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        raise ConfigError(f"--password-file {path} is empty; write the password into it")
    if len(password) > MAX_PASSWORD_BYTES:
        raise ConfigError(
            f"--password-file {path}: a password has at most {MAX_PASSWORD_BYTES} bytes (RFC 1929)"
        )
    return password


class PasswordFile(Part):
    """The credentials of clients, with the password of the file; none without a path."""

    def __init__(self, username: str, path: str) -> None:
        self._username = username.encode("utf-8", "surrogateescape")
        self._path = path
        self._failure = ""
        self._stamp: object = None
        self.current: Credentials | None = None

    @override
    async def prepare(self) -> None:
        if self._path:
            self._stamp = stamp_of(self._path)
            self.current = Credentials(self._username, read_password(self._path))

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self._path:
            yield "password", self._watch()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the file again if it has changed."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        try:
            password = read_password(self._path)
        except ConfigError as exc:
            if str(exc) != self._failure:  # logged once, and tried again
                self._failure = str(exc)
                log(_log, logging.WARNING, "password not reloaded", reason=str(exc))
            return
        self._stamp, self._failure = stamp, ""
        self.current = Credentials(self._username, password)
        log(_log, logging.INFO, "password reloaded", file=self._path)
