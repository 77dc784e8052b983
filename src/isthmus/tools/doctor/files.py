"""Checks that files exist, can be read by the program, and only by permitted users."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import SettingsFile
from isthmus.frame.patient import Patient
from isthmus.net.files import read_part
from isthmus.tools.doctor.layout import named_files
from isthmus.tools.pki.show import show


@dataclass(frozen=True, slots=True)
class User:
    """The user who reads files."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, patient: Patient) -> User:
        """The user of the running program, if it is known, or else the doctor's own."""
        pid = patient.running.pid if patient.running is not None else 0
        try:
            return cls.of_process(pid) if pid else cls(os.geteuid(), _own_groups())
        except (OSError, ValueError, LookupError):
            return cls(os.geteuid(), _own_groups())

    @classmethod
    def of_process(cls, pid: int) -> User:
        """The user of a process from /proc; see proc_pid_status(5).

        Raises:
            OSError: there is no such process.
        """
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        gid = int(fields["Gid"].split()[1])
        groups = frozenset({gid, *map(int, fields["Groups"].split())})
        return cls(int(fields["Uid"].split()[1]), groups)

    def may(self, status: os.stat_result, bit: int) -> bool:
        """Whether the mode permits this user the access: 4 is read, 2 write, 1 enter."""
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode >> 6 & bit)
        if status.st_gid in self.groups:
            return bool(status.st_mode >> 3 & bit)
        return bool(status.st_mode & bit)


def _own_groups() -> frozenset[int]:
    return frozenset({os.getegid(), *os.getgroups()})


def see_files(patient: Patient) -> Iterator[Finding]:
    """Check every file that the settings name."""
    user = User.of(patient)
    for file in named_files(patient.settings):
        asked = Asked(CheckId.FILES, f"{file.flag} {file.path}", "read the file")
        path = placed(patient, file.path)
        finding = judge_file(asked, file, path, user)
        yield finding
        if file.secret and path.exists():
            yield judge_mode(file, path)


def placed(patient: Patient, path: str) -> Path:
    """The path of a file from the running program's view, which may be in a container.

    A relative path is relative to the program's working directory.
    """
    pid = patient.running.pid if patient.running is not None else 0
    if not pid:
        return Path(path).expanduser()
    process = Path(f"/proc/{pid}")
    try:
        whole = os.path.join(os.readlink(process / "cwd"), path)
        if os.readlink(process / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return Path(whole)
    except OSError:  # another user's
        return Path(path)
    return process / "root" / whole.lstrip("/")


def judge_file(asked: Asked, file: SettingsFile, path: Path, user: User) -> Finding:
    """Does the file exist, with the right kind, readable to the user, and not empty?"""
    try:
        status = path.stat()
    except FileNotFoundError:
        return asked.fail("it does not exist", f"put it there, or change {file.flag}")
    except OSError as error:
        return asked.fail(_why(error), "see the modes of the directories above it")
    if stat.S_ISDIR(status.st_mode) != file.is_directory:
        kind = "no directory" if file.is_directory else "a directory"
        return asked.fail(f"it is {kind}", f"change {file.flag}")
    if not user.may(status, 4):
        return asked.fail(
            f"user {user.uid} may not read it (mode {status.st_mode & 0o7777:04o}, of user"
            f" {status.st_uid} and group {status.st_gid})",
            f"chown or chgrp it to the program's user, as: chown {user.uid} {path}",
        )
    if file.is_directory:
        return asked.ok("it is there and can be read")
    if not status.st_size:
        return asked.fail("it is empty", f"write it again, or change {file.flag}")
    return _judge_content(asked, file, path)


def _judge_content(asked: Asked, file: SettingsFile, path: Path) -> Finding:
    try:
        read_part(path, 1)
        if file.certificates:
            count = len(show([path]))
            return asked.ok(f"{count} certificate{'s' * (count > 1)} in it")
    except OSError as error:
        return asked.fail(_why(error), "run isthmus doctor as the program's user, or as root")
    except ConfigError as error:
        return asked.fail(str(error), "write it again as PEM; see isthmus pki show")
    return asked.ok("it is there and can be read")


def judge_mode(file: SettingsFile, path: Path) -> Finding:
    """Is a secret readable only to its owner and group?"""
    asked = Asked(CheckId.MODES, f"{file.flag} {file.path}", "checked its mode")
    mode = path.stat().st_mode & 0o7777
    if not mode & 0o004:
        return asked.ok(f"mode {mode:04o}: not readable to every user")
    if _is_mounted_secret(path):
        return asked.ok(f"mode {mode:04o}, mounted by Kubernetes for this pod alone")
    closed = _closed_above(path)
    if closed is not None:
        return asked.ok(f"mode {mode:04o}, and not every user may enter {closed}")
    return asked.fail(
        f"mode {mode:04o}: every user of this machine may read it", f"run: chmod o= {path}"
    )


def _is_mounted_secret(path: Path) -> bool:
    """Whether the kubelet mounted it: such files are links into a directory named ``..data``."""
    return path.is_symlink() and os.readlink(path).startswith("..data/")


def _closed_above(path: Path) -> Path | None:
    for above in path.resolve().parents:
        if not above.stat().st_mode & 0o001:
            return above
    return None


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
