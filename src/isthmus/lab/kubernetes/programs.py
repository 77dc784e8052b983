"""Builds Kubernetes' programs and what goes with them from Go modules, once per sources.

The programs lie under the user's cache directory, in a folder whose name changes with all that they
are made of. What is there already costs nothing; what is missing takes minutes, and is told while
it is built. Tests have targets of their own and use the same ``build``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.errors import IsthmusError

MODULES = Path(__file__).parent / "modules"
KUBERNETES = "v1.36.3"
CONTAINERD = "v2.2.9"
NO_GO = "no go in PATH: the programs cannot be built; install Go 1.26 or newer"
BUILD_LIMIT_S = 3600.0
_REPORT_EVERY_S = 15.0
_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.removeprefix("v").split(".")
# A program built from modules does not know its version, and says v0.0.0 to everybody.
_LINK = (
    f"-s -w -X {_STAMP}.gitVersion={KUBERNETES} -X {_STAMP}.gitMajor={_MAJOR}"
    f" -X {_STAMP}.gitMinor={_MINOR}"
    f" -X github.com/containerd/containerd/v2/version.Version={CONTAINERD}"
)

Say = Callable[[str], None]


class NotBuiltError(IsthmusError):
    """The programs or images are not there and cannot be made; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTarget:
    """Programs that one ``go build`` makes, of one module.

    ``usual_s`` is what it takes on two cores with nothing compiled before; ``test`` is one package
    of tests that becomes a program.
    """

    module: Path
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    sources: tuple[str, ...] = ()
    tags: str = ""
    test: bool = False
    usual_s: int = 0
    _found: list[Path] = field(default_factory=list, repr=False, compare=False)

    @property
    def directory(self) -> Path:
        if not self._found:
            made_of = f"{_LINK} {self.packages} {self.tags} {self.test}"
            sum_ = hashlib.sha256(made_of.encode())
            for pattern in ("go.mod", "go.sum", *self.sources):
                for path in sorted(self.module.glob(pattern)):
                    sum_.update(path.name.encode() + b"\0" + path.read_bytes())
            self._found.append(cache() / "programs" / sum_.hexdigest()[:16])
        return self._found[0]

    @property
    def done(self) -> bool:
        return all((self.directory / program).exists() for program in self.programs)

    def path(self, program: str) -> Path:
        assert program in self.programs
        return self.directory / program


def _of_kubernetes(*names: str, usual_s: int) -> GoTarget:
    return GoTarget(
        module=MODULES / "cluster",
        packages=tuple(f"k8s.io/kubernetes/cmd/{name}" for name in names),
        programs=names,
        usual_s=usual_s,
    )


def _of_containerd(*names: str) -> GoTarget:
    return GoTarget(
        module=MODULES / "containerd",
        packages=tuple(f"github.com/containerd/containerd/v2/cmd/{name}" for name in names),
        programs=names,
        tags="no_btrfs no_devmapper no_zfs no_aufs",
        usual_s=120,
    )


ETCD = GoTarget(
    module=MODULES / "etcd", packages=(".",), programs=("etcd",), sources=("*.go",), usual_s=50
)
APISERVER = _of_kubernetes("kube-apiserver", "kubectl", usual_s=200)
KUBE_PROXY = _of_kubernetes("kube-proxy", usual_s=5)
CLUSTER = _of_kubernetes("kubelet", "kube-controller-manager", "kube-scheduler", usual_s=120)
RUNTIME = _of_containerd("containerd", "containerd-shim-runc-v2", "ctr")
CNI = GoTarget(
    module=MODULES / "cni",
    packages=tuple(
        f"github.com/containernetworking/plugins/plugins/{name}"
        for name in ("ipam/host-local", "main/bridge", "main/loopback", "meta/portmap")
    ),
    programs=("host-local", "bridge", "loopback", "portmap"),
    usual_s=20,
)
COREDNS = GoTarget(
    module=MODULES / "coredns", packages=(".",), programs=("coredns",), sources=("*.go",),
    usual_s=90,
)  # fmt: skip
METRICS_SERVER = GoTarget(
    module=MODULES / "metrics-server", packages=("sigs.k8s.io/metrics-server/cmd/metrics-server",),
    programs=("metrics-server",), usual_s=90,
)  # fmt: skip
PAUSE = GoTarget(
    module=MODULES / "pause", packages=(".",), programs=("pause",), sources=("*.go",), usual_s=5
)
AGNHOST = GoTarget(
    module=MODULES / "cluster", packages=("k8s.io/kubernetes/test/images/agnhost",),
    programs=("agnhost",), usual_s=30,
)  # fmt: skip
#: What e2e tests run in pods.
E2E_PODS = GoTarget(
    module=MODULES / "cluster",
    packages=(
        "k8s.io/kubernetes/test/images/nonewprivs",
        "k8s.io/kubernetes/test/images/regression-issue-74839",
        "k8s.io/sample-apiserver",
    ),
    programs=("nonewprivs", "regression-issue-74839", "sample-apiserver"),
    usual_s=30,
)
GINKGO = GoTarget(
    module=MODULES / "cluster", packages=("github.com/onsi/ginkgo/v2/ginkgo",),
    programs=("ginkgo",), usual_s=10,
)  # fmt: skip
E2E = GoTarget(
    module=MODULES / "cluster", packages=("k8s.io/kubernetes/test/e2e",), programs=("e2e.test",),
    test=True, usual_s=180,
)  # fmt: skip

#: What runs on the hosts of a cluster, and what runs in its pods.
PROGRAMS = (ETCD, APISERVER, KUBE_PROXY, CLUSTER, RUNTIME, CNI)
IN_PODS = (PAUSE, AGNHOST, COREDNS, METRICS_SERVER, E2E_PODS)
#: What judges it.
CONFORMANCE = (GINKGO, E2E)


def cache() -> Path:
    """Where programs, images and the files of nodes are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "isthmus" / "kubernetes"


@contextmanager
def only_one(name: str, say: Say) -> Iterator[None]:
    """Wait for another that builds; the lock goes with the process that holds it."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(targets: Sequence[GoTarget], say: Say) -> None:
    """Build what is missing; what is there already costs nothing.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    missing = [target for target in targets if not target.done]
    if not missing:
        return
    go = shutil.which("go")
    if go is None:
        raise NotBuiltError(NO_GO)
    with only_one("programs", say):
        for number, target in enumerate(missing, 1):
            if not target.done:
                _build(go, target, say, f"{number} of {len(missing)}: ")


def _build(go: str, target: GoTarget, say: Say, which: str) -> None:
    names = ", ".join(target.programs)
    say(f"{which}building {names}; usually {target.usual_s} s on two cores")
    fresh = target.directory.with_name(f"{target.directory.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    verb = ["test", "-c"] if target.test else ["build"]
    place = fresh / target.programs[0] if target.test else f"{fresh}/"
    # ``-v`` names every package that is compiled, which is all the progress that Go reports.
    argv = [
        *("nice", "-n", "19", go, *verb, "-v", "-mod=readonly", f"-tags={target.tags}"),
        *(f"-ldflags={_LINK}", "-o", str(place), *target.packages),
    ]
    began = time.monotonic()
    try:
        log = fresh / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv, cwd=target.module, stdout=file, stderr=file,
                # A program without C runs in any image.
                env={**os.environ, "CGO_ENABLED": "0"},
            )  # fmt: skip
            try:
                _watch(process, log, f"{which}building {names}", say)
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
    say(f"{which}built {names} in {time.monotonic() - began:.0f} s")


def _watch(process: subprocess.Popen[bytes], log: Path, what: str, say: Say) -> None:
    began = time.monotonic()
    while (took := time.monotonic() - began) < BUILD_LIMIT_S:
        try:
            process.wait(_REPORT_EVERY_S)
        except subprocess.TimeoutExpired:
            packages = log.read_bytes().count(b"\n")
            say(f"{what}: {packages} packages, {took + _REPORT_EVERY_S:.0f} s")
        else:
            return
    raise NotBuiltError(f"{what}: not done within {BUILD_LIMIT_S:.0f} s")
