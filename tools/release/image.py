"""Reads an OCI archive back into one directory tree, as whoever loads the image gets it."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

_REMOVED = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The files of an image, and what its configuration says."""

    root: Path
    user: str
    entrypoint: list[str]
    environment: dict[str, str]


def unpack(archive: Path, root: Path) -> Unpacked:
    """Unpack every layer on top of those below it; the owners of files are kept.

    Raises:
        ValueError: the archive is not what OCI's image layout says.
    """
    root.mkdir()
    try:
        with tarfile.open(archive) as tar:
            index = json.load(_file(tar, "index.json"))
            manifest = json.load(_blob(tar, index["manifests"][0]["digest"]))
            configuration = json.load(_blob(tar, manifest["config"]["digest"]))["config"]
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=_blob(tar, layer["digest"])) as files:
                    _put(files, root)
    except (KeyError, IndexError, tarfile.TarError) as error:
        raise ValueError(f"not an OCI archive: {error}") from error
    return Unpacked(
        root=root,
        user=configuration["User"],
        entrypoint=configuration["Entrypoint"],
        environment=dict(each.split("=", 1) for each in configuration["Env"]),
    )


def _blob(tar: tarfile.TarFile, digest: str) -> tarfile.ExFileObject:
    return _file(tar, f"blobs/{digest.replace(':', '/')}")


def _file(tar: tarfile.TarFile, name: str) -> tarfile.ExFileObject:
    found = tar.extractfile(name)
    if found is None:
        raise KeyError(name)
    assert isinstance(found, tarfile.ExFileObject)
    return found


def _put(layer: tarfile.TarFile, root: Path) -> None:
    members = layer.getmembers()
    for member in members:  # what a layer hides is below it: first, or its own files would go too
        path = root / member.name
        if path.name == _OPAQUE:
            for each in path.parent.iterdir() if path.parent.is_dir() else ():
                _remove(each)
        elif path.name.startswith(_REMOVED):
            _remove(path.with_name(path.name.removeprefix(_REMOVED)))
    kept = [each for each in members if not Path(each.name).name.startswith(_REMOVED)]
    # Our own archive: links within an image point wherever they like. It is run in a chroot.
    layer.extractall(root, kept, numeric_owner=True, filter="fully_trusted")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
