"""The real kube-apiserver and etcd of the interop tests, where they are built already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hold import ROOT

sys.path.append(str(ROOT / "tests" / "interop"))

if TYPE_CHECKING:
    from kube.build import Binaries

NOT_BUILT = "kube-apiserver is not built: make interop builds it"


def built() -> Binaries | None:
    """The programs; None where building them would take its many minutes first."""
    from kube import build

    if not all(target.done for target in build.TARGETS):
        return None
    return build.build(lambda line: None)
