"""Writes built images as an OCI archive, which podman, containerd, skopeo and k3s load.

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
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from isthmus.lab.kubernetes.layers import Image

_TYPE = "application/vnd.oci.image"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK_BYTES = 1024 * 1024


def write(images: Iterable[tuple[Image, Sequence[str]]], path: Path, *, made_at: int) -> None:
    """Write images, each under names with their tags; ``made_at`` is the time of the newest file.

    A layer that several images have is written once.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        tars: dict[Path, tuple[str, Path]] = {}
        documents: dict[str, bytes] = {}
        listed: list[dict[str, Any]] = []
        for image, names in images:
            for layer in image.layers:
                if layer not in tars:
                    tars[layer] = _layer(layer, Path(directory) / str(len(tars)), made_at)
            layers = [tars[layer] for layer in reversed(image.layers)]
            listed += _documents(image, layers, names, made_at, documents)
        documents["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
        documents["index.json"] = _json({"schemaVersion": 2, "manifests": listed})
        with tarfile.open(path, "w") as archive:
            for place in sorted(documents, reverse=True):
                data = documents[place]
                _add(archive, place, io.BytesIO(data), len(data), made_at)
            for digest, tar in dict(tars.values()).items():
                with tar.open("rb") as file:
                    _add(archive, f"blobs/sha256/{digest}", file, tar.stat().st_size, made_at)


def _documents(
    image: Image,
    layers: list[tuple[str, Path]],
    names: Sequence[str],
    made_at: int,
    documents: dict[str, bytes],
) -> list[dict[str, Any]]:
    """Add what describes an image; what the index says of it under each of its names."""
    created = datetime.fromtimestamp(made_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine = {"architecture": _MACHINES[platform.machine()], "os": "linux"}
    configuration = _json({
        **machine,
        "created": created,
        "config": {
            "Entrypoint": image.entrypoint,
            **({"Cmd": image.words} if image.words else {}),
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
    documents[f"blobs/sha256/{_digest(configuration)}"] = configuration
    documents[f"blobs/sha256/{_digest(manifest)}"] = manifest
    listed = _blob(f"{_TYPE}.manifest.v1+json", _digest(manifest), len(manifest))
    return [
        {
            **listed,
            "platform": machine,
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        for name in names
    ]


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
