"""The token of --admin-token-file: read from its file, and again when that changes.

A change that cannot be used leaves the token that was there. The file is looked at when somebody
asks, not between requests: nothing else needs it.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat

from isthmus.errors import ConfigError
from isthmus.logs import log

FLAG = "--admin-token-file"
MIN_CHARS = 16
MAX_BYTES = 4096
_log = logging.getLogger("isthmus.ports")


def read_token(path: str, *, wait: bool = True) -> bytes:
    """Read a token: the whole file, without the blanks and line ends around it.

    A pipe, as a shell makes of ``<(command)``, is waited for; not without ``wait``.

    Raises:
        ConfigError: it cannot be read or is no token; nothing of it is quoted.
    """
    flags = 0 if wait else os.O_NONBLOCK
    try:
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            raw = file.read(MAX_BYTES + 1) or b""
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        raise ConfigError(f"{FLAG} {path}: {why}") from exc
    token = raw.strip()
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{FLAG} {path}: a token has at most {MAX_BYTES} bytes")
    if len(token) < MIN_CHARS:
        raise ConfigError(
            f"{FLAG} {path}: a token has at least {MIN_CHARS} characters and this has {len(token)};"
            " make one with openssl rand -hex 32"
        )
    # What a header can carry (RFC 9110 §5.5), without what would be taken for its end.
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise ConfigError(f"{FLAG} {path}: a token is one word of letters, digits and signs")
    return token


class TokenFile:
    """The token, as its file says it now."""

    def __init__(self, path: str) -> None:
        """Read it; says so in the log if everybody on the machine may.

        Raises:
            ConfigError: it is wrong.
        """
        self._path = path
        self._failure = ""
        self._stamp = _stamp(path)
        self._token = read_token(path)
        if self._stamp and self._stamp[-1] & stat.S_IROTH:
            log(_log, logging.WARNING, "everybody on this machine can read the admin token",
                file=path, mode=f"{stat.S_IMODE(self._stamp[-1]):04o}")  # fmt: skip

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"

    def matches(self, shown: str) -> bool:
        """Tell whether this is the token, in a time that tells nothing of it."""
        self.look()
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token)

    def look(self) -> None:
        """Read the file again if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            # In the event loop, which must not wait for whoever may write into a pipe.
            token = read_token(self._path, wait=False)
        except ConfigError as exc:
            if str(exc) != self._failure:  # said once, and looked at again
                self._failure = str(exc)
                log(_log, logging.WARNING, "the admin token was not reloaded", reason=str(exc))
            return
        self._stamp, self._failure, self._token = stamp, "", token
        log(_log, logging.INFO, "the admin token was reloaded", file=self._path)


def _stamp(path: str) -> tuple[int, ...]:
    """Tell one state of the file from another, through symbolic links (Kubernetes' ..data)."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    if not stat.S_ISREG(found.st_mode):  # a pipe gives what it has once: it is not read again
        return (found.st_dev, found.st_ino, found.st_mode)
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)
