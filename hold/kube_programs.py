"""The real kube-apiserver and etcd of the interop tests, if they are built."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hold import ROOT

sys.path.append(str(ROOT / "tests" / "interop"))

if TYPE_CHECKING:
    from kube.build import Binaries

NOT_BUILT = "kube-apiserver is not built: make interop builds it"


def built() -> Binaries | None:
    """The programs; None if they would have to be built, which takes many minutes."""
    from kube import build

    if not all(target.done for target in build.TARGETS):
        return None
    return build.build(lambda line: None)
