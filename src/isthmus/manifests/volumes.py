"""Where the files of a pod come from: directories of the node, a Secret, or a projected token.

Always whole directories: a single mounted file stays the old one when it is replaced, and new
certificates would not be picked up. They are mounted at the paths in the flags, so that the flags
need no change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from isthmus.errors import ConfigError
from isthmus.settings.options import FILE, options_of

#: Where Kubernetes mounts the service account of a pod.
SERVICE_ACCOUNT = PurePosixPath("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 3600

# A container needs its own directories here; those of the node hold much that an agent must not
# see.
_NOT_MOUNTED = frozenset(
    PurePosixPath(path)
    for path in (
        *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc"),
        *("/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib"),
        *("/usr/local", "/usr/local/bin", "/usr/local/lib", "/var", "/var/lib", "/var/run"),
        *("/var/tmp", "/usr/share", "/usr/sbin", "/etc/ssl", "/etc/ssl/certs"),
    )
)
_UNCLEAN = re.compile(r"[^\x20-\x7e]|:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume and where it is mounted; ``source`` has the form of a pod's spec."""

    name: str
    mount: str
    source: Mapping[str, Any]
    read_only: bool = True

    def to_spec(self) -> dict[str, Any]:
        """As in ``spec.volumes``."""
        return {"name": self.name, **self.source}

    def to_mount(self) -> dict[str, Any]:
        """As in a container's ``volumeMounts``."""
        found: dict[str, Any] = {"name": self.name, "mountPath": self.mount}
        return {**found, "readOnly": True} if self.read_only else found


@dataclass(frozen=True, slots=True)
class FlagFile:
    """A file that a flag names."""

    flag: str
    path: PurePosixPath

    @staticmethod
    def named(flag: str, text: str) -> FlagFile:
        """Check a path.

        Raises:
            ConfigError: a manifest cannot express it; the message names the flag.
        """
        path = PurePosixPath(text)
        if not path.is_absolute():
            raise ConfigError(
                f"{flag} {text}: a manifest needs an absolute path, such as"
                f" /etc/isthmus/{path.name}"
            )
        if ".." in path.parts or _UNCLEAN.search(text):
            raise ConfigError(
                f"{flag} {text}: a manifest takes a plain path, without .., colons and control"
                " characters"
            )
        return FlagFile(flag, path)

    @property
    def directory(self) -> PurePosixPath:
        """The mounted directory."""
        return self.path.parent


def flag_files(settings: Any, *, without: Collection[str] = ()) -> list[FlagFile]:
    """The files that the flags of a program name, except those of some attributes.

    Raises:
        ConfigError: a manifest cannot express a path.
    """
    return [
        FlagFile.named(f"--{option.flag}", path)
        for option in options_of(type(settings))
        if option.metavar == FILE and option.attribute not in without
        for path in option.files_in(settings)
    ]


def check_mountable(files: Iterable[FlagFile]) -> None:
    """Check that no directory hides one of the container's own.

    Raises:
        ConfigError: one does; the message says what to do.
    """
    for file in files:
        if file.directory in _NOT_MOUNTED:
            raise ConfigError(
                f"{file.flag} {file.path}: {file.directory} would be mounted as a whole; put the"
                " file into a directory of its own, such as /etc/isthmus"
            )


def host_directories(files: Sequence[FlagFile]) -> list[Volume]:
    """A volume for each directory of the node with files, except directories inside another one.

    Raises:
        ConfigError: a directory cannot be mounted.
    """
    check_mountable(files)
    directories = {file.directory for file in files}
    outer = [each for each in directories if not directories.intersection(each.parents)]
    return [
        Volume(
            name=f"files-{number}",
            mount=str(path),
            # Not created when it is missing: an empty directory would hide that.
            source={"hostPath": {"path": str(path), "type": "Directory"}},
        )
        for number, path in enumerate(sorted(outer), 1)
    ]


def secret_directory(files: Sequence[FlagFile], *, secret: str) -> list[Volume]:
    """A volume of one Secret with every file by its name; None without files.

    Raises:
        ConfigError: the files are in several directories, or in one that cannot be mounted.
    """
    if not files:
        return []
    check_mountable(files)
    first = files[0]
    for file in files:
        if file.directory != first.directory:
            raise ConfigError(
                f"{file.flag} {file.path} is not in {first.directory}, where {first.flag} is: the"
                f" Secret {secret} is mounted as one directory"
            )
    names = sorted({file.path.name for file in files})
    items = [{"key": name, "path": name} for name in names]
    source = {"secret": {"secretName": secret, "defaultMode": 0o440, "items": items}}
    return [Volume(name="files", mount=str(first.directory), source=source)]


def projected_token(file: FlagFile, *, audience: str) -> Volume:
    """A volume with a token of the pod's service account, which the kubelet renews.

    Raises:
        ConfigError: its directory cannot be mounted.
    """
    check_mountable([file])
    token = {
        "path": file.path.name,
        "audience": audience,
        "expirationSeconds": TOKEN_SECONDS,
    }
    source = {"projected": {"sources": [{"serviceAccountToken": token}], "defaultMode": 0o440}}
    return Volume(name="token", mount=str(file.directory), source=source)


def renamed(volume: Volume, name: str) -> Volume:
    return replace(volume, name=name)


def scratch() -> Volume:
    """Memory for temporary files, as the root is read-only."""
    source = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    return Volume(name="tmp", mount="/tmp", source=source, read_only=False)


#: The keys of a Secret of type kubernetes.io/tls, and of a ConfigMap with authorities.
CERT, KEY, CA = "tls.crt", "tls.key", "ca.crt"
#: For the owner, and for the group that a pod's fsGroup names.
SECRET_MODE = 0o640


def secret(name: str, secret: str, files: Mapping[str, FlagFile]) -> Volume:
    """A volume of a Secret; ``files`` are by their keys in it.

    Raises:
        ConfigError: the files are not in one directory, or it cannot be mounted.
    """
    items = _items(files, secret)
    source = {"secretName": secret, "defaultMode": SECRET_MODE, **items}
    return Volume(name=name, mount=_directory(files, secret), source={"secret": source})


def config_map(name: str, config_map: str, files: Mapping[str, FlagFile]) -> Volume:
    """A volume of a ConfigMap, like ``secret()``.

    Raises:
        ConfigError: as for ``secret()``.
    """
    source = {"name": config_map, **_items(files, config_map)}
    return Volume(name=name, mount=_directory(files, config_map), source={"configMap": source})


def _directory(files: Mapping[str, FlagFile], owner: str) -> str:
    check_mountable(files.values())
    first = next(iter(files.values()))
    for file in files.values():
        if file.directory != first.directory:
            raise ConfigError(
                f"{file.flag} {file.path} is not in {first.directory}, where {first.flag} is:"
                f" {owner} is mounted as one directory"
            )
    return str(first.directory)


def _items(files: Mapping[str, FlagFile], owner: str) -> dict[str, Any]:
    """Empty if all names are the keys: then all keys of the object are mounted."""
    if all(file.path.name == key for key, file in files.items()):
        return {}
    names = [file.path.name for file in files.values()]
    if len(set(names)) < len(names):
        flags = " and ".join(file.flag for file in files.values())
        raise ConfigError(f"{flags} are one file, and {owner} has one for each")
    return {"items": [{"key": key, "path": file.path.name} for key, file in files.items()]}


def specs(found: Iterable[Volume]) -> list[dict[str, Any]]:
    """The list for ``spec.volumes``: each once, without those that the workload already has.

    Raises:
        ConfigError: containers define the same volume differently.
    """
    known: dict[str, dict[str, Any]] = {}
    for volume in found:
        if not volume.source:
            continue
        spec = volume.to_spec()
        if known.setdefault(volume.name, spec) != spec:
            raise ConfigError(f"two containers want other files of the volume {volume.name}")
    return list(known.values())


def check_apart(found: Iterable[Volume]) -> None:
    """Check that no directory of a container is mounted twice.

    Raises:
        ConfigError: one is.
    """
    known: dict[str, str] = {}
    for volume in found:
        other = known.setdefault(volume.mount, volume.name)
        if other != volume.name:
            raise ConfigError(
                f"the volumes {other} and {volume.name} would both be mounted at {volume.mount}:"
                " give their files directories of their own"
            )
