"""Builds a Containerfile without a container engine: layers of files on top of Debian.

The base image is made by mmdebstrap, RUN is a chroot in a mount namespace of its own, and what each
instruction adds is a layer, kept in the user's cache directory under a name that changes with all
that it is made of. Needs root, mmdebstrap and overlay filesystems.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.lab.kubernetes.containerfile import (
    ImageStage,
    Instruction,
    assignments,
    exec_form,
    expand,
    stages,
)
from isthmus.lab.kubernetes.programs import NotBuiltError

HERE = Path(__file__).parent
SUITE = "bookworm"
#: What Debian's slim images leave out.
SLIM = (
    "path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
)  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STEP_LIMIT_S = 900.0
KEPT_S = 7 * 86400.0
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
_CA = "/run/outside/ca.crt"
_POINTS = ("dev", "proc", "sys", "out", "pki", "sockets", "run/outside")
_FILES = ("etc/resolv.conf", _CA.lstrip("/"))


@dataclass(slots=True, kw_only=True)
class Image:
    """A built image; ``layers`` are directories, the uppermost first."""

    layers: list[Path]
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    stop_signal: str = ""

    @property
    def owner(self) -> tuple[int, int]:
        """The user and the group, which are numbers."""
        user, _, group = self.user.partition(":")
        return int(user), int(group)

    def sizes(self) -> list[int]:
        """The bytes of each layer, the lowest first."""
        return [_size(layer) for layer in reversed(self.layers)]


def _size(layer: Path) -> int:
    return sum(path.lstat().st_size for path in layer.rglob("*") if not path.is_dir())


def cache() -> Path:
    """Where layers are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "isthmus" / "container"


def command(
    layers: Sequence[Path],
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    owner: tuple[int, int] = (0, 0),
    binds: Sequence[tuple[str, str, str]] = (),
    upper: Path | None = None,
) -> tuple[list[str], bytes]:
    """Say how to run a command in layers: the words, and what they read."""
    place = cache()
    (place / "root").mkdir(parents=True, exist_ok=True)
    plan = {
        "layers": [str(layer) for layer in (*layers, _points())],
        "root": str(place / "root"),
        "upper": str(upper) if upper is not None else "",
        "work": f"{upper}.work" if upper is not None else "",
        "binds": binds,
        "argv": list(argv),
        "environment": dict(environment),
        "uid": owner[0],
        "gid": owner[1],
    }
    words = [*_OWN_MOUNTS, sys.executable, "-I", str(HERE / "inside.py")]
    return words, json.dumps(plan).encode()


def _points() -> Path:
    """A layer below all others in which there is something to mount on."""
    points = cache() / "points"
    for name in _POINTS:
        (points / name).mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        (points / name).parent.mkdir(parents=True, exist_ok=True)
        (points / name).touch()
    return points


def why_not() -> str:
    """Say why nothing can be built here; empty where it can."""
    if os.geteuid() != 0:
        return "building the image needs root"
    for program in ("mmdebstrap", "unshare", "mount"):
        if not shutil.which(program):
            return f"building the image needs {program}"
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        low, up, work = (f"{directory}/{name}" for name in ("low", "up", "work"))
        for path in (low, up, work):
            os.mkdir(path)
        options = f"lowerdir={low},upperdir={up},workdir={work}"
        argv = [*_OWN_MOUNTS, "mount", "-t", "overlay", "overlay", "-o", options, directory]
        done = subprocess.run(argv, capture_output=True, timeout=60)
    return "" if done.returncode == 0 else "building the image needs overlay filesystems"


class Builder:
    """Builds one Containerfile in one context; ``arguments`` are those of --build-arg."""

    def __init__(self, context: Path, arguments: Mapping[str, str]) -> None:
        self._context = context
        self._arguments = arguments
        self._stages: dict[str, tuple[Image, str]] = {}
        self._used: set[Path] = set()

    def build(self, containerfile: Path) -> Image:
        """Build every stage; the last is the image, ``target`` gives the others."""
        image = Image(layers=[])
        for stage in stages(containerfile, self._arguments):
            image = self._stage(stage)
        self._prune()
        return image

    def target(self, name: str) -> Image:
        """A stage that was built, as ``--target`` would give it."""
        return self._stages[name][0]

    @property
    def images(self) -> list[Image]:
        """All stages that were built, in order."""
        return [image for image, _ in self._stages.values()]

    def _stage(self, stage: ImageStage) -> Image:
        image, key = self._begin(stage.base)
        variables: dict[str, str] = {}
        for each in stage.instructions:
            added = self._filled(image, each, variables, key)
            if added is not None:
                image.layers.insert(0, added)
                key = added.name
        self._stages[stage.name] = (image, key)
        return image

    def _begin(self, base: str) -> tuple[Image, str]:
        """What a stage begins with: Debian, or a stage before it with all that it says."""
        if base in self._stages:
            image, key = self._stages[base]
            return copy.deepcopy(image), key
        if base == "scratch":
            return Image(layers=[]), base
        debian = self._base()
        return Image(layers=[debian]), debian.name

    def _filled(
        self, image: Image, each: Instruction, variables: dict[str, str], key: str
    ) -> Path | None:
        """Do an instruction; the layer that it made, if it makes one."""
        rest = each.rest
        match each.word:
            case "RUN":
                return self._run(image, rest, variables, key)
            case "COPY":
                return self._copy(expand(rest, variables), key)
            case "ARG":
                variables[rest] = self._arguments[rest]
            case "ENV":
                image.environment |= assignments(expand(rest, variables | image.environment))
            case "LABEL":
                image.labels |= assignments(expand(rest, variables))
            case "EXPOSE":
                image.ports += map(int, rest.split())
            case "STOPSIGNAL":
                image.stop_signal = rest
            case "USER":
                image.user = rest
            case "ENTRYPOINT":
                image.entrypoint = exec_form(rest)
            case "CMD":
                image.words = exec_form(rest)
            case "WORKDIR":
                assert rest == "/"
            case _:
                raise AssertionError(each.word)
        return None

    def _base(self) -> Path:
        made = self._layer("base", SUITE, *SLIM)
        if made.exists():
            return made
        archive = made.with_suffix(".tar")
        options = [f"--dpkgopt={option}" for option in SLIM]
        argv = ["mmdebstrap", "--variant=minbase", *options, SUITE, str(archive)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=STEP_LIMIT_S)
        if done.returncode != 0:
            archive.unlink(missing_ok=True)
            raise NotBuiltError("building the image needs Debian's packages from the network")
        with _growing(made) as growing:
            leave = ["--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*"]
            argv = ["tar", "-xf", str(archive), "-C", str(growing), *leave]
            subprocess.run(argv, check=True, timeout=STEP_LIMIT_S)
        archive.unlink()
        return made

    def _run(self, image: Image, rest: str, variables: Mapping[str, str], key: str) -> Path:
        made = self._layer(key, "RUN", rest, json.dumps(dict(variables), sort_keys=True))
        if made.exists():
            return made
        with _growing(made) as growing:
            words, plan = command(
                image.layers, ["/bin/sh", "-c", rest],
                environment={**image.environment, **_outside(), **variables},
                binds=_network(), upper=growing,
            )  # fmt: skip
            done = subprocess.run(words, input=plan, capture_output=True, timeout=STEP_LIMIT_S)
            if done.returncode != 0:
                said = (done.stdout + done.stderr).decode(errors="replace")[-2000:]
                raise NotBuiltError(f"RUN {rest.split()[0]} failed: {said}")
        return made

    def _copy(self, rest: str, key: str) -> Path:
        *sources, place = rest.split()
        if sources[0].startswith("--from="):
            return self._copy_from(sources[0].removeprefix("--from="), sources[1], place, key)
        (source,) = sources
        path = self._context / source
        made = self._layer(key, "COPY", rest, _contents(path))
        if not made.exists():
            with _growing(made) as growing:
                target = growing / place.strip("/")
                target.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, target, dirs_exist_ok=True)
                else:
                    shutil.copy2(path, target)
        return made

    def _copy_from(self, name: str, source: str, place: str, key: str) -> Path:
        other, other_key = self._stages[name]
        made = self._layer(key, "COPY", other_key, source, place)
        if not made.exists():
            with _growing(made) as growing:
                target = growing / place.strip("/")
                target.mkdir(parents=True)
                words, plan = command(
                    other.layers, ["/bin/cp", "-a", f"{source}/.", "/out"], environment={},
                    binds=[(str(target), "/out", "rw")],
                )  # fmt: skip
                subprocess.run(words, input=plan, check=True, timeout=STEP_LIMIT_S)
        return made

    def _layer(self, *parts: str) -> Path:
        name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        path = cache() / "layers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._used.add(path)
        return path

    def _prune(self) -> None:
        """Forget layers that nobody has used for a week."""
        now = time.time()
        for path in self._used:
            os.utime(path)
        for path in (cache() / "layers").iterdir():
            if path not in self._used and now - path.lstat().st_mtime > KEPT_S:
                shutil.rmtree(path)


class _growing:
    """A directory that gets its name when it is complete, and is gone when it fails."""

    def __init__(self, made: Path) -> None:
        self._made = made
        self._path = made.with_name(f"{made.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        self._path.mkdir(mode=0o755)
        Path(f"{self._path}.work").mkdir()
        return self._path

    def __exit__(self, kind: object, *_: object) -> None:
        shutil.rmtree(f"{self._path}.work")
        if kind is None and not self._made.exists():  # another run may have been quicker
            self._path.rename(self._made)
        else:
            shutil.rmtree(self._path)


def _contents(path: Path) -> str:
    """A hash of a file, or of all files of a directory, with names and modes."""
    sum_ = hashlib.sha256()
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            sum_.update(f"{each.name} {each.stat().st_mode & 0o777:o}\0".encode())
            sum_.update(each.read_bytes())
    return sum_.hexdigest()


def _outside() -> dict[str, str]:
    """How packages are got here, which is no matter of the Containerfile."""
    asked = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    asked.pop("PIP_FIND_LINKS", None)
    return {**asked, "PIP_CERT": _CA, "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}


def _network() -> list[tuple[str, str, str]]:
    import ssl

    authorities = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().openssl_cafile
    return [("/etc/resolv.conf", "/etc/resolv.conf", "ro"), (authorities, _CA, "ro")]
