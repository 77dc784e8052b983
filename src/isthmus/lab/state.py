"""Which labs there are on this machine: a directory for each, under /run, gone with the lab.

A lab belongs to the command that makes it, which holds a lock, until it is kept (``lab up``). One
that is neither kept nor locked is what a crash left. Removing one is removal.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError

HOME = Path("/run/isthmus/labs")
#: In the environment of every process of a lab: its token.
MARK = "ISTHMUS_LAB"
_KEPT = "kept"
_OWNER = "owner"
_ABOUT = "about.json"
_SOURCE = "topology.yaml"
_BEING_MADE_S = 60.0


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab, by its token."""

    token: str

    @property
    def directory(self) -> Path:
        """Where everything of it that is a file lives."""
        return HOME / self.token

    @property
    def topology(self) -> str:
        """The name of its topology; empty when a crash came before it was written."""
        return str(self._about().get("topology", ""))

    @property
    def firewall(self) -> str:
        """The tool that loaded its rules."""
        return str(self._about().get("firewall", ""))

    @property
    def source(self) -> str:
        """The text of its topology.

        Raises:
            ConfigError: it was never written.
        """
        try:
            return (self.directory / _SOURCE).read_text()
        except OSError as exc:
            raise ConfigError(
                f"lab {self.token} is not whole; isthmus lab down removes it"
            ) from exc

    def _about(self) -> dict[str, object]:
        try:
            about = json.loads((self.directory / _ABOUT).read_text())
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    @property
    def kept(self) -> bool:
        """Whether it stays after the command that made it."""
        return (self.directory / _KEPT).exists()

    def keep(self) -> None:
        """Let it stay."""
        (self.directory / _KEPT).touch()

    @property
    def owner(self) -> int:
        """The process that is making, running or removing it; 0 if there is none."""
        try:
            with open(self.directory / _OWNER) as owner:
                try:
                    fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(owner.read() or "0")
        except (OSError, ValueError):
            pass
        return 0

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Own it for the time of the block."""
        with open(self.directory / _OWNER, "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            owner.write(f"{os.getpid()}\n")
            owner.flush()
            yield


def new_token() -> str:
    """Choose a token that no lab has."""
    while (HOME / (token := secrets.token_hex(3))).exists():
        pass
    return token


def make(token: str, *, topology: str, source: str, firewall: str) -> Lab:
    """Make the directory of a lab.

    Raises:
        ConfigError: it cannot be made.
    """
    lab = Lab(token)
    try:
        HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
        lab.directory.mkdir(mode=0o700)
        (lab.directory / _SOURCE).write_text(source)
        about = {"topology": topology, "firewall": firewall}
        (lab.directory / _ABOUT).write_text(json.dumps(about))
    except OSError as exc:
        raise ConfigError(f"cannot make {lab.directory}: {exc.strerror or exc}") from exc
    return lab


def labs() -> list[Lab]:
    """All that there are, whole or not."""
    with contextlib.suppress(FileNotFoundError):
        return [Lab(path.name) for path in sorted(HOME.iterdir()) if path.is_dir()]
    return []


def is_left_over(lab: Lab) -> bool:
    """Whether a crash left it: nobody owns it, and nobody wanted it kept."""
    if lab.kept or lab.owner:
        return False
    try:
        if (lab.directory / _OWNER).read_text():
            return True  # the number is written by who has the lock
    except OSError:
        pass
    try:
        return time.time() - lab.directory.stat().st_mtime > _BEING_MADE_S
    except OSError:
        return False


def find(token: str) -> Lab:
    """The lab that is meant: by its token, or the only one that there is.

    Raises:
        ConfigError: there is none, or it is not clear which.
    """
    there = labs()
    if token:
        if Lab(token) in there:
            return Lab(token)
        raise ConfigError(f"no lab {token} is up; isthmus lab list shows those that are")
    if not there:
        raise ConfigError("no lab is up; isthmus lab up TOPOLOGY makes one")
    if len(there) > 1:
        names = ", ".join(f"{lab.token} ({lab.topology})" for lab in there)
        raise ConfigError(f"several labs are up, name one by --lab: {names}")
    return there[0]
