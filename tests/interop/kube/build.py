"""Builds Kubernetes' programs, etcd, Helm and our fake node from Go modules, once per sources.

The binaries live under the user's cache directory. Run as a program it builds what is missing and
says how far it is; tests call ``build`` and find everything there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES = "v1.36.3"
NO_GO = "no go in PATH: the Kubernetes programs cannot be built"
BUILD_LIMIT_S = 3600.0
_REPORT_EVERY_S = 15.0
_STAMP = "k8s.io/component-base/version"
# A program built from modules does not know its version, and says v0.0.0 to everybody.
_LINK = f"-s -w -X {_STAMP}.gitVersion={KUBERNETES} -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor=36"

Say = Callable[[str], None]


class NotBuiltError(Exception):
    """The programs are not there and cannot be made; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Where the programs are."""

    kube_apiserver: Path
    kubectl: Path
    kubemark: Path
    etcd: Path
    fakenode: Path
    kube_proxy: Path
    helm: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Programs that one ``go build`` makes."""

    module: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Where they are kept: the name changes with everything that they are made of."""
        sum_ = hashlib.sha256(f"{_LINK} {self.packages}".encode())
        for pattern in ("go.mod", "go.sum", *self.sources):
            for path in sorted((HERE / self.module).glob(pattern)):
                sum_.update(path.name.encode() + b"\0" + path.read_bytes())
        return _cache() / f"kube-{sum_.hexdigest()[:16]}"

    @property
    def done(self) -> bool:
        return all((self.directory / program).exists() for program in self.programs)


_ETCD = _Target(module="etcd", packages=(".",), programs=("etcd",), sources=("*.go",))
_PROGRAMS = ("kube-apiserver", "kubectl", "kubemark")
_KUBERNETES = _Target(
    module="kubernetes",
    packages=tuple(f"k8s.io/kubernetes/cmd/{name}" for name in _PROGRAMS),
    programs=_PROGRAMS,
    sources=(),
)
_FAKENODE = _Target(
    module="kubernetes",
    packages=("./fakenode",),
    programs=("fakenode",),
    sources=("fakenode/*.go",),
)
# Its own target, so that whoever has the others need not make them again.
_KUBE_PROXY = _Target(
    module="kubernetes",
    packages=("k8s.io/kubernetes/cmd/kube-proxy",),
    programs=("kube-proxy",),
    sources=(),
)
_HELM = _Target(
    module="helm", packages=("helm.sh/helm/v3/cmd/helm",), programs=("helm",), sources=()
)


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "isthmus" / "interop"


@contextmanager
def _only_one() -> Iterator[None]:
    """Wait for another run that builds; the lock goes with the process that holds it."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "kube.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(say: Say) -> Binaries:
    """Build what is missing; what is there already costs nothing.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    _make((_ETCD, _KUBERNETES, _FAKENODE, _KUBE_PROXY, _HELM), say)
    return Binaries(
        kube_apiserver=_KUBERNETES.directory / "kube-apiserver",
        kubectl=_KUBERNETES.directory / "kubectl",
        kubemark=_KUBERNETES.directory / "kubemark",
        etcd=build_etcd(say),
        fakenode=_FAKENODE.directory / "fakenode",
        kube_proxy=_KUBE_PROXY.directory / "kube-proxy",
        helm=_HELM.directory / "helm",
    )


def build_etcd(say: Say) -> Path:
    """Build etcd alone, which takes a minute where the others take many.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    _make((_ETCD,), say)
    return _ETCD.directory / "etcd"


def build_helm(say: Say) -> Path:
    """Build Helm alone.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    _make((_HELM,), say)
    return _HELM.directory / "helm"


def _make(targets: Sequence[_Target], say: Say) -> None:
    if all(target.done for target in targets):
        return
    go = shutil.which("go")
    if go is None:
        raise NotBuiltError(NO_GO)
    with _only_one():
        for target in targets:
            if not target.done:
                _build(go, target, say)


def _build(go: str, target: _Target, say: Say) -> None:
    names = ", ".join(target.programs)
    say(f"building {names}")
    fresh = target.directory.with_name(f"{target.directory.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    # ``-v`` names every package that is compiled, which is all the progress that Go reports.
    argv = [go, "build", "-v", "-mod=readonly", f"-ldflags={_LINK}", "-o", f"{fresh}/"]
    began = time.monotonic()
    try:
        log = fresh / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["nice", "-n", "19", *argv, *target.packages],
                cwd=HERE / target.module, stdout=file, stderr=file,
            )  # fmt: skip
            try:
                _watch(process, log, names, say)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            raise NotBuiltError(f"{names} could not be built: {log.read_text().strip()[-300:]}")
        log.unlink()
        shutil.rmtree(target.directory, ignore_errors=True)
        fresh.replace(target.directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    say(f"built {names} in {time.monotonic() - began:.0f} s")


def _watch(process: subprocess.Popen[bytes], log: Path, names: str, say: Say) -> None:
    began = time.monotonic()
    while (took := time.monotonic() - began) < BUILD_LIMIT_S:
        try:
            process.wait(_REPORT_EVERY_S)
        except subprocess.TimeoutExpired:
            packages = log.read_bytes().count(b"\n")
            say(f"building {names}: {packages} packages, {took + _REPORT_EVERY_S:.0f} s")
        else:
            return
    raise NotBuiltError(f"{names} could not be built within {BUILD_LIMIT_S:.0f} s")


def main() -> int:
    """Build everything; without Go say so, and let the tests skip."""
    try:
        build(lambda line: print(f"kube: {line}", flush=True))
    except NotBuiltError as exc:
        print(f"kube: {exc}", flush=True)
        return 0 if str(exc) == NO_GO else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
