"""Writes a built image as an OCI archive, which podman, containerd, skopeo and k3s load.

Layers are not compressed: whoever loads or pushes the archive does that. The same layers give the
same bytes: files are sorted, and no file is younger than the release.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from container.building import Image

_TYPE = "application/vnd.oci.image"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK_BYTES = 1024 * 1024


def write(image: Image, path: Path, *, name: str, made_at: int) -> None:
    """Write an image under a name with its tag; ``made_at`` is the time of the newest file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        layers = [
            _layer(layer, Path(directory) / str(number), made_at)
            for number, layer in enumerate(reversed(image.layers))
        ]
        small = _documents(image, layers, name, made_at)
        with tarfile.open(path, "w") as archive:
            for place, data in small.items():
                _add(archive, place, io.BytesIO(data), len(data), made_at)
            for digest, layer in dict(layers).items():
                with layer.open("rb") as file:
                    _add(archive, f"blobs/sha256/{digest}", file, layer.stat().st_size, made_at)


def _documents(
    image: Image, layers: list[tuple[str, Path]], name: str, made_at: int
) -> dict[str, bytes]:
    """Everything in the archive but the layers, by its place."""
    created = datetime.fromtimestamp(made_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine = {"architecture": _MACHINES[platform.machine()], "os": "linux"}
    configuration = _json({
        **machine,
        "created": created,
        "config": {
            "Entrypoint": image.entrypoint,
            "Env": [f"{key}={value}" for key, value in image.environment.items()],
            "ExposedPorts": {f"{port}/tcp": {} for port in image.ports},
            "Labels": image.labels,
            "StopSignal": image.stop_signal,
            "User": image.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest, _ in layers]},
    })  # fmt: skip
    manifest = _json({
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": _blob(f"{_TYPE}.config.v1+json", _digest(configuration), len(configuration)),
        "layers": [
            _blob(f"{_TYPE}.layer.v1.tar", digest, layer.stat().st_size) for digest, layer in layers
        ],
    })  # fmt: skip
    listed = _blob(f"{_TYPE}.manifest.v1+json", _digest(manifest), len(manifest))
    names = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [{**listed, "platform": machine, "annotations": names}],
    }
    return {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        f"blobs/sha256/{_digest(configuration)}": configuration,
        f"blobs/sha256/{_digest(manifest)}": manifest,
    }


def _blob(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _layer(layer: Path, path: Path, made_at: int) -> tuple[str, Path]:
    """Write a layer as a tar file; its digest and where it is."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        linked: dict[tuple[int, int], str] = {}
        for each in _files(layer):
            _add_file(tar, layer, each, linked, made_at)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path


def _files(directory: Path) -> Iterator[Path]:
    for each in sorted(directory.iterdir()):
        yield each
        if each.is_dir() and not each.is_symlink():
            yield from _files(each)


def _add_file(
    tar: tarfile.TarFile, layer: Path, path: Path, linked: dict[tuple[int, int], str], made_at: int
) -> None:
    name, found = str(path.relative_to(layer)), path.lstat()
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:  # overlay: it was removed here
        _add(tar, str(Path(name).with_name(f".wh.{path.name}")), io.BytesIO(), 0, made_at)
        return
    if stat.S_ISSOCK(found.st_mode):
        return
    entry = tar.gettarinfo(str(path), name)
    entry.mtime = min(int(found.st_mtime), made_at)
    entry.uname = entry.gname = ""
    if entry.isreg() and found.st_nlink > 1:
        before = linked.setdefault((found.st_dev, found.st_ino), name)
        if before != name:
            entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, before, 0
    if entry.isreg():
        with path.open("rb") as file:
            tar.addfile(entry, file)
        return
    tar.addfile(entry)
    if entry.isdir() and _is_opaque(path):
        _add(tar, f"{name}/.wh..wh..opq", io.BytesIO(), 0, made_at)


def _is_opaque(path: Path) -> bool:
    """Whether overlay hides what lower layers have in a directory."""
    try:
        return os.getxattr(path, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


def _add(archive: tarfile.TarFile, name: str, data: IO[bytes], size: int, made_at: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, made_at, 0o644
    archive.addfile(entry, data)
