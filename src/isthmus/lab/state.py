"""Which labs there are on this machine: a directory for each, under /run, gone with the lab.

A lab belongs to the command that makes or removes it, which holds a lock; it is born with that lock
under another name, so nobody ever sees one without an owner that is not meant to be so. ``lab up``
marks it as kept and lets go. One that is neither kept nor locked is what a crash left. Removing one
is removal.py.
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
#: In the environment of every process of a lab: its token.
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
#: What the lab itself keeps in its directory: no file of a topology may be called so.
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
        """Where it is before it is whole."""
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
        """The process that makes, runs or removes it; 0 if there is none."""
        with contextlib.suppress(OSError, ValueError), open(self.directory / OWNER) as owner:
            if not _lock(owner.fileno(), fcntl.LOCK_SH):
                return int(owner.read() or "0")
        return 0

    @property
    def left_over(self) -> bool:
        """Whether a crash left it: nobody owns it, and nobody wanted it kept."""
        with contextlib.suppress(OSError), open(self.directory / OWNER) as owner:
            # Asked while we have the lock: between two looks it might get an owner, or be kept.
            return _lock(owner.fileno(), fcntl.LOCK_SH) and not self.kept
        return False

    @contextlib.contextmanager
    def owned(self) -> Iterator[bool]:
        """Own it for the time of the block, if nobody else does and it is still there."""
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
    """Choose a token that no lab has."""
    while (HOME / (token := secrets.token_hex(3))).exists():
        pass
    return token


@contextlib.contextmanager
def made(token: str, *, topology: str, source: str, firewall: str) -> Iterator[Lab]:
    """Make the directory of a lab, and own it for the time of the block.

    Raises:
        ConfigError: it cannot be made.
    """
    lab = Lab(token)
    try:
        _make_directory(lab.unborn)
        owner = os.open(lab.unborn / OWNER, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as exc:
        raise ConfigError(f"cannot make {lab.directory}: {exc.strerror or exc}") from exc
    try:
        try:
            _lock(owner, fcntl.LOCK_EX)
            _sign(owner)
            (lab.unborn / SOURCE).write_text(source)
            about = {"topology": topology, "firewall": firewall}
            (lab.unborn / ABOUT).write_text(json.dumps(about))
            lab.unborn.rename(lab.directory)
        except OSError as exc:
            raise ConfigError(f"cannot make {lab.directory}: {exc.strerror or exc}") from exc
        yield lab
    finally:
        os.close(owner)


def _make_directory(path: Path) -> None:
    for _ in range(_TRIES):
        # Whoever removes the last lab removes these two as well, perhaps between two lines here.
        with contextlib.suppress(FileNotFoundError):
            for parent in (HOME.parent, HOME):
                parent.mkdir(exist_ok=True)
                parent.chmod(0o755)  # whatever the umask says
            path.mkdir()
            path.chmod(0o700)
            return
    raise FileNotFoundError(f"{HOME} is removed by others again and again")


def labs() -> list[Lab]:
    """All that there are; none for somebody who may not look."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        found = sorted(path.name for path in HOME.iterdir() if path.is_dir())
        return [Lab(name) for name in found if not name.startswith(_UNBORN)]
    return []


def unborn() -> list[Lab]:
    """Those that never were whole, and whose maker is gone."""
    found = []
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for path in HOME.glob(f"{_UNBORN}*"):
            with contextlib.suppress(OSError), open(path / OWNER) as owner:
                if _lock(owner.fileno(), fcntl.LOCK_SH) and owner.read():
                    found.append(Lab(path.name.removeprefix(_UNBORN)))
    return found


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
