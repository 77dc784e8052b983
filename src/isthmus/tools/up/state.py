"""The directory of one ``isthmus up``: removed at its end, or by the next run if it was killed.

It lives under ``$XDG_STATE_HOME/isthmus``, mode 0700. The process holds a lock on its ``pid`` file
until it exits, however that happens, so a reused process number does no harm. ``admin-ports`` tells
the terminal tools where its programs answer, and ``connectivity.yaml`` tells ``isthmus curl`` and
``isthmus dial`` how to reach the target.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from isthmus.errors import ConfigError

PREFIX = "up-"
CONNECTIVITY = "connectivity.yaml"
_ADMIN_PORTS = "admin-ports"
# A directory may be this young and not have a locked pid file yet.
_BEING_MADE_S = 60.0


def state_home(environment: Mapping[str, str]) -> Path:
    """Where Isthmus keeps this user's state, by the XDG base directory specification.

    Raises:
        ConfigError: the user has no home directory.
    """
    told = environment.get("XDG_STATE_HOME", "")
    # "If an implementation encounters a relative path ... it should ... ignore it."
    if os.path.isabs(told):
        return Path(told) / "isthmus"
    try:
        return Path.home() / ".local" / "state" / "isthmus"
    except RuntimeError as exc:
        raise ConfigError("no home directory: set XDG_STATE_HOME to a directory") from exc


@contextlib.contextmanager
def own_directory(home: Path) -> Iterator[Path]:
    """Create a directory for this run under ``home`` and remove it at the end.

    Directories of runs that were killed are removed first.

    Raises:
        ConfigError: the directory cannot be made.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(home)
        home.mkdir(mode=0o700, exist_ok=True)  # another run may have removed it at its end
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
    except OSError as exc:
        raise ConfigError(f"cannot make a directory in {home}: {exc.strerror or exc}") from exc
    try:
        with open(directory / "pid", "w") as pid:
            fcntl.flock(pid, fcntl.LOCK_EX)
            pid.write(f"{os.getpid()}\n")
            pid.flush()
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            home.rmdir()  # only if nothing else is in it


def tell_admin_ports(directory: Path, ports: Sequence[int]) -> None:
    """Write the admin ports of a run into its directory.

    Raises:
        ConfigError: the file cannot be written.
    """
    file = directory / _ADMIN_PORTS
    try:
        file.write_text("".join(f"{port}\n" for port in ports))
    except OSError as exc:
        raise ConfigError(f"cannot write {file}: {exc.strerror or exc}") from exc


def told_admin_ports(environment: Mapping[str, str]) -> list[int]:
    """The admin ports on 127.0.0.1 of this user's live runs, as far as they are written."""
    return [port for each in _living(environment) for port in _read_ports(each)]


def told_connectivity(environment: Mapping[str, str]) -> Path | None:
    """The connectivity configuration of this user's newest live run, if there is one."""
    files = [each / CONNECTIVITY for each in _living(environment)]
    return max((it for it in files if it.is_file()), key=_modified_at, default=None)


def _living(environment: Mapping[str, str]) -> list[Path]:
    try:
        directories = sorted(state_home(environment).glob(f"{PREFIX}*"))
    except (ConfigError, OSError):
        return []
    return [each for each in directories if not _is_stale(each)]


def _modified_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0  # removed just now


def _read_ports(directory: Path) -> list[int]:
    try:
        return [int(line) for line in (directory / _ADMIN_PORTS).read_text().split()]
    except (OSError, ValueError):
        return []  # not written yet, or another user's


def _remove_stale(home: Path) -> None:
    for directory in home.glob(f"{PREFIX}*"):
        if not directory.is_symlink() and directory.is_dir() and _is_stale(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _is_stale(directory: Path) -> bool:
    """Tell whether the process that made a directory is gone."""
    try:
        with open(directory / "pid", "r+") as pid:
            fcntl.flock(pid, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if pid.read():
                return True
    except FileNotFoundError:
        pass
    except OSError:
        return False  # locked, or another user's
    try:
        return time.time() - directory.stat().st_mtime > _BEING_MADE_S
    except OSError:
        return False
