"""The labs of this machine: a directory for each, under /run, removed with the lab.

A lab is owned by the command that builds or removes it, by a lock; its directory is created locked,
under another name, so that no other command ever sees an unowned one by mistake. ``lab up`` marks
the lab as kept and releases it. A lab that is neither kept nor locked was left by a crash.
removal.py removes labs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError

HOME = Path("/run/isthmus/labs")
#: The environment variable of every process of a lab: its token.
MARK = "ISTHMUS_LAB"
KEPT = "kept"
OWNER = "owner"
ABOUT = "about.json"
SOURCE = "topology.yaml"
PKI = "pki"
LOGS = "logs"
PIDS = "pids"
#: A link to the folder of what machines of the lab keep, which is on a disk.
STATE = "state"
#: What those outside of a lab reach its kube-apiserver with.
KUBECONFIG = "kubectl.conf"
#: Names in the lab's directory that files of a topology cannot have.
OWN_FILES = frozenset({KEPT, OWNER, ABOUT, SOURCE, PKI, LOGS, PIDS, STATE, KUBECONFIG})
_UNBORN = ".new-"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab, by its token."""

    token: str

    @property
    def directory(self) -> Path:
        return HOME / self.token

    @property
    def unborn(self) -> Path:
        """Its directory while it is being created."""
        return HOME / f"{_UNBORN}{self.token}"

    def machine(self, host: str) -> Path:
        """What a host that is a machine keeps; it is not there for any other."""
        return self.directory / STATE / host

    @property
    def topology(self) -> str:
        return str(self._about().get("topology", ""))

    @property
    def firewall(self) -> str:
        """The tool that loaded its rules."""
        return str(self._about().get("firewall", ""))

    @property
    def source(self) -> str:
        """The text of its topology.

        Raises:
            ConfigError: the lab is gone.
        """
        try:
            return (self.directory / SOURCE).read_text()
        except OSError as exc:
            raise ConfigError(f"lab {self.token} is gone") from exc

    def _about(self) -> dict[str, object]:
        try:
            about = json.loads((self.directory / ABOUT).read_text())
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    @property
    def kept(self) -> bool:
        return (self.directory / KEPT).exists()

    def keep(self) -> None:
        (self.directory / KEPT).touch()

    @property
    def owner(self) -> int:
        """The process that builds, runs or removes it; 0 if there is none."""
        with contextlib.suppress(OSError, ValueError), open(self.directory / OWNER) as owner:
            if not _lock(owner.fileno(), fcntl.LOCK_SH):
                return int(owner.read() or "0")
        return 0

    @property
    def left_over(self) -> bool:
        """Whether a crash left it: it has no owner and is not marked as kept."""
        with contextlib.suppress(OSError), open(self.directory / OWNER) as owner:
            # Checked under the lock: otherwise it might get an owner, or be kept, in between.
            return _lock(owner.fileno(), fcntl.LOCK_SH) and not self.kept
        return False

    @contextlib.contextmanager
    def owned(self) -> Iterator[bool]:
        """Own the lab during the block, if it exists and has no other owner."""
        try:
            owner = os.open(self.directory / OWNER, os.O_RDWR)
        except OSError:
            yield False
            return
        try:
            ours = _lock(owner, fcntl.LOCK_EX)
            if ours:
                _sign(owner)
            yield ours
        finally:
            os.close(owner)


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(fd: int) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def new_token() -> str:
    """An unused token."""
    while (HOME / (token := secrets.token_hex(3))).exists():
        pass
    return token


@contextlib.contextmanager
def made(token: str, *, topology: str, source: str, firewall: str) -> Iterator[Lab]:
    """Create the directory of a lab, and own it during the block.

    Raises:
        ConfigError: it cannot be created.
    """
    lab = Lab(token)
    try:
        _make_directory(lab.unborn)
        owner = os.open(lab.unborn / OWNER, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as exc:
        raise ConfigError(f"cannot create {lab.directory}: {exc.strerror or exc}") from exc
    try:
        try:
            _lock(owner, fcntl.LOCK_EX)
            _sign(owner)
            (lab.unborn / SOURCE).write_text(source)
            about = {"topology": topology, "firewall": firewall}
            (lab.unborn / ABOUT).write_text(json.dumps(about))
            lab.unborn.rename(lab.directory)
        except OSError as exc:
            raise ConfigError(f"cannot create {lab.directory}: {exc.strerror or exc}") from exc
        yield lab
    finally:
        os.close(owner)


def _make_directory(path: Path) -> None:
    for _ in range(_TRIES):
        # Removing the last lab removes these two as well, perhaps between two lines here.
        with contextlib.suppress(FileNotFoundError):
            for parent in (HOME.parent, HOME):
                parent.mkdir(exist_ok=True)
                parent.chmod(0o755)  # independent of the umask
            path.mkdir()
            path.chmod(0o700)
            return
    raise FileNotFoundError(f"{HOME} keeps being removed by other commands")


def labs() -> list[Lab]:
    """All labs; empty for a user who may not see them."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        found = sorted(path.name for path in HOME.iterdir() if path.is_dir())
        return [Lab(name) for name in found if not name.startswith(_UNBORN)]
    return []


def unborn() -> list[Lab]:
    """Directories of labs that were never completed, and whose maker has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for path in HOME.glob(f"{_UNBORN}*"):
            with contextlib.suppress(OSError), open(path / OWNER) as owner:
                if _lock(owner.fileno(), fcntl.LOCK_SH) and owner.read():
                    found.append(Lab(path.name.removeprefix(_UNBORN)))
    return found


def find(token: str) -> Lab:
    """The lab with a token, or the only one.

    Raises:
        ConfigError: there is none, or several.
    """
    there = labs()
    if token:
        if Lab(token) in there:
            return Lab(token)
        raise ConfigError(f"no lab {token} is up: see isthmus lab list")
    if not there:
        raise ConfigError("no lab is up: start one by isthmus lab up TOPOLOGY")
    if len(there) > 1:
        names = ", ".join(f"{lab.token} ({lab.topology})" for lab in there)
        raise ConfigError(f"several labs are up: choose one by --lab: {names}")
    return there[0]
