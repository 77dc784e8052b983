"""The policy of --policy-file, read again when its file changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from isthmus.core.policy import Policy
from isthmus.errors import ConfigError

LOOK_S = 1.0
_log = logging.getLogger("isthmus.server")


class PolicyFile:
    """A policy that follows its file: ask ``current`` for each dial.

    Tunnels that are open stay open whatever a new policy says. A file that is gone or not right
    changes nothing, and is said once.
    """

    def __init__(
        self,
        path: str,
        on_failed: Callable[[], None],
        on_changed: Callable[[Policy], None] | None = None,
    ) -> None:
        """Read the policy; ``on_failed`` hears of each new state of the file that is bad.

        ``on_changed`` hears of each policy that is used from then on, the first one included.

        Raises:
            ConfigError: the file cannot be read or is wrong.
        """
        self._path = path
        self._stamp = _stamp(path)
        self.current = read_policy(path)
        self._on_failed = on_failed
        self._on_changed = on_changed
        if on_changed is not None:
            on_changed(self.current)

    async def watch(self, look_s: float = LOOK_S) -> None:
        """Follow the file for ever."""
        while True:
            await asyncio.sleep(look_s)
            await self.check()

    async def check(self) -> None:
        """Look at the file, and read it if it changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            # A long file takes its time, and every tunnel would wait for it.
            policy = await asyncio.to_thread(read_policy, self._path)
        except ConfigError as exc:
            self._on_failed()
            _log.warning("%s; the policy read before stays in use", exc)
        else:
            if stamp != _stamp(self._path):
                return  # replaced while we read: the next look gets it whole
            self.current = policy
            if self._on_changed is not None:
                self._on_changed(policy)
            _log.info("reloaded %s", self._path)
        self._stamp = stamp


def read_policy(path: str) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.config.located import MAX_CHARS  # YAML is slow to import
    from isthmus.config.policy import parse

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_CHARS + 1)  # one more is told to be too long
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not UTF-8, or no path"
        raise ConfigError(f"--policy-file {path}: {why}") from exc
    return parse(text, path)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return None
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def current_of(file: PolicyFile | None) -> Callable[[], Policy | None]:
    """How to ask for the policy of a file, or of none."""
    return (lambda: None) if file is None else (lambda: file.current)
