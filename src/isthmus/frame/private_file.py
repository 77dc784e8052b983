"""Writes a file with a secret: atomically, and readable by its owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from isthmus.errors import ConfigError


def write_private(path: str, content: str | bytes, *, force: bool) -> None:
    """Write a file with mode 0600; readers see either the old file or the new one.

    Raises:
        ConfigError: it exists and ``force`` is not set, or it cannot be written.
    """
    target = Path(path)
    if not force and os.path.lexists(target):
        raise ConfigError(f"{path}: already exists; replace it with --force")
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    # O_EXCL never follows a symbolic link, and the mode is right from the first moment.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(fresh, flags, 0o600), "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if force:
            os.replace(fresh, target)
        else:
            os.link(fresh, target)  # fails if another process was faster
            fresh.unlink()
    except OSError as exc:
        fresh.unlink(missing_ok=True)
        if isinstance(exc, FileExistsError):
            raise ConfigError(f"{path}: already exists; replace it with --force") from exc
        raise ConfigError(f"{path}: {(exc.strerror or str(exc)).lower()}") from exc
