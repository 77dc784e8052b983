"""Makes the helpers of this directory importable by its tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))

from bed import KINDS, Certificates  # found by the line above


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most pairs to the nightly run: an end knows its peer by the interface alone.

    Each kind of end meets itself, the one in memory from both sides, and the next kind.
    """
    for item in items:
        given = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        if "a" in given and "b" in given and not meet_daily(given["a"], given["b"]):
            item.add_marker(pytest.mark.nightly)


def meet_daily(a: str, b: str) -> bool:
    """Whether every change tests these two kinds of ends with each other."""
    apart = (KINDS.index(a) - KINDS.index(b)) % len(KINDS)
    return "memory" in (a, b) or apart in (0, 1)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One CA with a server and a client, for every TLS end."""
    return Certificates.make(tmp_path_factory.mktemp("pki"))
