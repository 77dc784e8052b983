"""Makes the kube-apiserver of the sibling directory a fixture here too."""

from __future__ import annotations

from kube.conftest import kube_api, kube_binaries, pytest_collection_finish

__all__ = ["kube_api", "kube_binaries", "pytest_collection_finish"]
