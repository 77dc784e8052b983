"""Makes the images of a cluster, and a containerd's folder that has them: no registry, no engine.

Every image is imported once, into a folder that each node then gets a copy of, by links: what
containerd keeps of an image is never written to again. Our own image is made from deploy/container,
of the package that runs here, and comes last, since it changes most.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import isthmus
from isthmus.lab.kubernetes import archive
from isthmus.lab.kubernetes.layers import Builder, Image, why_not
from isthmus.lab.kubernetes.programs import (
    ETCD,
    IN_PODS,
    MODULES,
    RUNTIME,
    NotBuiltError,
    Say,
    cache,
    only_one,
)

HERE = Path(__file__).parent / "images"
#: What images are called that no registry has.
REGISTRY = "localhost"
OWN_IMAGE = f"{REGISTRY}/isthmus:{isthmus.__version__}"
NAMES = "names"
_PACKAGE = Path(isthmus.__file__).parent
_MADE_AT = 315532800
_IMPORT_LIMIT_S = 600.0
_START_LIMIT_S = 60.0
_KEPT = 2
_SNAPSHOTTER = "io.containerd.snapshotter.v1.overlayfs"
#: What containerd writes to: of these each node has its own.
_DATABASES = "*.db"


def prepare(say: Say) -> Path:
    """The folder of a containerd that has all images; what is there already costs nothing.

    The programs of IN_PODS, and those that run containerd, are built already.

    Raises:
        NotBuiltError: this machine cannot make them, or the network does not give what they need.
    """
    base, made = _folder("base", _base_key()), _folder("own", _own_key())
    if made.exists() and base.exists():
        return made
    if reason := why_not():
        raise NotBuiltError(reason)
    with only_one("images", say):
        if made.exists() and base.exists():
            return made
        shutil.rmtree(made, ignore_errors=True)
        if not base.exists():
            say("building the images of pods; usually 150 s, and 40 MB from Debian's mirror")
            with _growing(base) as growing, _bundle(_base_images()) as bundle:
                say("importing the images of pods")
                _import(bundle, growing)
        say("building the image of Isthmus; usually 60 s the first time")
        with _growing(made) as growing, _bundle(_own_images()) as bundle:
            copy(base, growing)  # the layers of the one are links into the other
            _import(bundle, growing)
        _prune("own", made)
        _prune("base", base)
    return made


def copy(source: Path, target: Path) -> None:
    """Give a node the images: links to what never changes, copies of what containerd writes to.

    Unpacked layers have thousands of folders: a node has one link to each layer in place of them.
    """
    for path in sorted(source.iterdir()):
        if path.name == _SNAPSHOTTER:
            _link_layers(path, target / path.name)
        else:
            subprocess.run(["cp", "-al", str(path), str(target)], check=True)
    for path in target.glob(f"*/{_DATABASES}"):
        fresh = path.with_name(f"{path.name}.own")
        shutil.copy2(path, fresh)
        fresh.replace(path)


def _link_layers(source: Path, target: Path) -> None:
    (target / "snapshots").mkdir(parents=True)
    shutil.copystat(source, target)
    for path in source.glob(_DATABASES):
        shutil.copy2(path, target)
    for layer in (source / "snapshots").iterdir():
        own = target / "snapshots" / layer.name
        own.mkdir(mode=0o700)
        files = layer / "fs"
        (own / "fs").symlink_to(files.resolve())


def _folder(kind: str, key: str) -> Path:
    return cache() / "images" / f"{kind}-{key}"


def _base_key() -> str:
    sum_ = hashlib.sha256()
    for target in (*IN_PODS, ETCD, RUNTIME):
        sum_.update(target.directory.name.encode())
    _add(sum_, HERE)
    return sum_.hexdigest()[:16]


def _own_key() -> str:
    sum_ = hashlib.sha256(_base_key().encode())
    _add(sum_, _PACKAGE)
    _add(sum_, _container())
    return sum_.hexdigest()[:16]


def _add(sum_: hashlib._Hash, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sum_.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())


def _container() -> Path:
    """deploy/container: in the sources, or in the wheel."""
    found = _PACKAGE.parents[1] / "deploy" / "container"
    return found if found.is_dir() else Path(__file__).parent / "container"


@contextmanager
def _growing(made: Path) -> Iterator[Path]:
    """A folder that gets its name when it is complete, and is gone when it fails."""
    made.parent.mkdir(parents=True, exist_ok=True)
    fresh = made.with_name(f"{made.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        fresh.rename(made)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _prune(kind: str, used: Path) -> None:
    """Forget all but the newest, unless there are nodes, which may have links to any."""
    os.utime(used)
    found = sorted(used.parent.glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime)
    nodes = cache() / "nodes"
    if not (nodes.is_dir() and any(nodes.iterdir())):
        for path in found[:-_KEPT]:
            shutil.rmtree(path)


@contextmanager
def _bundle(images: Sequence[tuple[Image, Sequence[str]]]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        path = Path(directory) / "images.tar"
        archive.write(images, path, made_at=_MADE_AT)
        yield path


def _base_images() -> list[tuple[Image, list[str]]]:
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        context = Path(directory)
        for target in (*IN_PODS, ETCD):
            for program in target.programs:
                _link(target.path(program), context / program)
        (context / "sample-apiserver").rename(context / "kube-sample-apiserver")
        shutil.copytree(HERE / "nginx", context / "nginx")
        _copy_certificates(context / "porter")
        builder = Builder(context, {"BASE": "debian"})
        builder.build(HERE / "Containerfile")
    named = [(image, image.labels.get(NAMES, "").split()) for image in builder.images]
    return [(image, [f"{REGISTRY}/{name}" for name in names]) for image, names in named if names]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _copy_certificates(target: Path) -> None:
    """agnhost has a certificate for localhost, which lies beside its sources."""
    argv = ["go", "list", "-m", "-mod=readonly", "-json", "k8s.io/kubernetes"]
    done = subprocess.run(
        argv, cwd=MODULES / "cluster", capture_output=True, text=True, timeout=_START_LIMIT_S
    )
    if done.returncode:
        raise NotBuiltError(f"agnhost's certificate is not there: {done.stderr.strip()[-300:]}")
    sources = Path(json.loads(done.stdout)["Dir"]) / "test/images/agnhost/porter"
    target.mkdir()
    for name in ("localhost.crt", "localhost.key"):
        (target / name).write_bytes((sources / name).read_bytes())


def _own_images() -> list[tuple[Image, list[str]]]:
    version = isthmus.__version__
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        context = Path(directory)
        shutil.copytree(_container(), context / "deploy" / "container")
        (context / "dist").mkdir()
        _write_wheel(context / "dist" / f"isthmus-{version}-py3-none-any.whl")
        containerfile = context / "deploy" / "container" / "Containerfile"
        return [(Builder(context, {"VERSION": version}).build(containerfile), [OWN_IMAGE])]


def _write_wheel(path: Path) -> None:
    """Put the package that runs here into a wheel, however it was installed."""
    about = importlib.metadata.distribution("isthmus")
    info = f"isthmus-{isthmus.__version__}.dist-info"
    records = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:

        def put(name: str, data: bytes) -> None:
            wheel.writestr(zipfile.ZipInfo(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")

        for each in sorted(_PACKAGE.rglob("*")):
            if each.is_file() and "__pycache__" not in each.parts:
                put(str(each.relative_to(_PACKAGE.parent)), each.read_bytes())
        for name in ("METADATA", "WHEEL", "entry_points.txt"):
            put(f"{info}/{name}", (about.read_text(name) or "").encode())
        wheel.writestr(f"{info}/RECORD", "".join([*records, f"{info}/RECORD,,\n"]))


def _import(bundle: Path, root: Path) -> None:
    """Have containerd take the images in, and unpack them."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        config, address = place / "containerd.toml", f"{place}/containerd.sock"
        config.write_text(
            f'version = 3\nroot = "{root}"\nstate = "{place}/state"\n'
            f'[grpc]\naddress = "{address}"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        )
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [RUNTIME.path("containerd"), "--config", config],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            ctr = [str(RUNTIME.path("ctr")), "--address", address, "--namespace", "k8s.io"]
            _wait([*ctr, "version"], place / "log")
            _do([*ctr, "images", "import", "--local", "--snapshotter", "overlayfs", str(bundle)])
            names = _do([*ctr, "images", "list", "--quiet"]).split()
            for name in names:
                if not name.startswith("sha256:"):
                    # Or a kubelet that is short of space would remove it, and nobody has another.
                    label = "io.cri-containerd.pinned=pinned"
                    _do([*ctr, "images", "label", name, label])
        finally:
            process.terminate()
            try:
                process.wait(_START_LIMIT_S)
            finally:
                process.kill()
                process.wait()


def _wait(argv: Sequence[str], log: Path) -> None:
    give_up_at = time.monotonic() + _START_LIMIT_S
    while subprocess.run(argv, capture_output=True, timeout=_START_LIMIT_S).returncode:
        if time.monotonic() > give_up_at:
            said = log.read_text(errors="replace").strip()[-300:]
            raise NotBuiltError(f"containerd does not start: {said}")
        time.sleep(0.1)


def _do(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S)
    if done.returncode:
        raise NotBuiltError(f"{Path(argv[0]).name} {argv[5]}: {done.stderr.strip()[-300:]}")
    return done.stdout
