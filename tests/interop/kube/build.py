"""The programs that tests with a real Kubernetes need: the lab's, and a few that only tests have.

Run as a program it builds what is missing and says how far it is; tests call ``build`` and find
everything there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from isthmus.lab.kubernetes import programs
from isthmus.lab.kubernetes.programs import KUBERNETES, NO_GO, GoTarget, NotBuiltError, Say

__all__ = [
    "KUBERNETES",
    "NO_GO",
    "TARGETS",
    "Binaries",
    "NotBuiltError",
    "build",
    "build_etcd",
    "build_helm",
]

HERE = Path(__file__).parent

_KUBEMARK = GoTarget(
    module=HERE / "kubernetes", packages=("k8s.io/kubernetes/cmd/kubemark",),
    programs=("kubemark",), usual_s=10,
)  # fmt: skip
_FAKENODE = GoTarget(
    module=HERE / "kubernetes", packages=("./fakenode",), programs=("fakenode",),
    sources=("fakenode/*.go",), usual_s=5,
)  # fmt: skip
_HELM = GoTarget(
    module=HERE / "helm", packages=("helm.sh/helm/v3/cmd/helm",), programs=("helm",), usual_s=70
)
TARGETS = (
    programs.ETCD, programs.APISERVER, programs.KUBE_PROXY, _KUBEMARK, _FAKENODE, _HELM,
)  # fmt: skip


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

    @property
    def directories(self) -> list[Path]:
        """For a PATH that has them all."""
        return list(dict.fromkeys(target.directory for target in TARGETS))


def build(say: Say) -> Binaries:
    """Build what is missing; what is there already costs nothing.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    programs.build(TARGETS, say)
    return Binaries(
        kube_apiserver=programs.APISERVER.path("kube-apiserver"),
        kubectl=programs.APISERVER.path("kubectl"),
        kubemark=_KUBEMARK.path("kubemark"),
        etcd=programs.ETCD.path("etcd"),
        fakenode=_FAKENODE.path("fakenode"),
        kube_proxy=programs.KUBE_PROXY.path("kube-proxy"),
        helm=_HELM.path("helm"),
    )


def build_etcd(say: Say) -> Path:
    """Build etcd alone, which takes a minute where the others take many.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    programs.build([programs.ETCD], say)
    return programs.ETCD.path("etcd")


def build_helm(say: Say) -> Path:
    """Build Helm alone.

    Raises:
        NotBuiltError: there is no Go, or it failed.
    """
    programs.build([_HELM], say)
    return _HELM.path("helm")


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
