"""Files that come from one Secret or ConfigMap each, which somebody else keeps.

Every object is mounted where the flags say, whole, so that what is replaced arrives. A key that is
called otherwise than the file gets the file's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests.volumes import File, Volume, check_mountable

#: What a Secret of kind kubernetes.io/tls has, and a ConfigMap with authorities.
CERT, KEY, CA = "tls.crt", "tls.key", "ca.crt"
#: For the owner, and for the group that a pod's fsGroup names.
SECRET_MODE = 0o640


def secret(name: str, secret: str, files: Mapping[str, File]) -> Volume:
    """A volume of a Secret; ``files`` are by the keys that they have there.

    Raises:
        ConfigError: the files are not in one directory, or not in one that can be mounted.
    """
    items = _items(files, secret)
    source = {"secretName": secret, "defaultMode": SECRET_MODE, **items}
    return Volume(name=name, mount=_directory(files, secret), source={"secret": source})


def config_map(name: str, config_map: str, files: Mapping[str, File]) -> Volume:
    """A volume of a ConfigMap; as ``secret()``.

    Raises:
        ConfigError: as there.
    """
    source = {"name": config_map, **_items(files, config_map)}
    return Volume(name=name, mount=_directory(files, config_map), source={"configMap": source})


def _directory(files: Mapping[str, File], owner: str) -> str:
    check_mountable(files.values())
    first = next(iter(files.values()))
    for file in files.values():
        if file.directory != first.directory:
            raise ConfigError(
                f"{file.flag} {file.path} is not in {first.directory}, where {first.flag} is:"
                f" {owner} is mounted as one directory"
            )
    return str(first.directory)


def _items(files: Mapping[str, File], owner: str) -> dict[str, Any]:
    """Nothing where all names are the keys: then whatever the object has is there."""
    if all(file.path.name == key for key, file in files.items()):
        return {}
    names = [file.path.name for file in files.values()]
    if len(set(names)) < len(names):
        flags = " and ".join(file.flag for file in files.values())
        raise ConfigError(f"{flags} are one file, and {owner} has one for each")
    return {"items": [{"key": key, "path": file.path.name} for key, file in files.items()]}


def specs(found: Iterable[Volume]) -> list[dict[str, Any]]:
    """As in ``spec.volumes``: each once, without those that are the workload's own already.

    Raises:
        ConfigError: containers want the same volume to be different.
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
    """See that no directory of a container is mounted twice.

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
