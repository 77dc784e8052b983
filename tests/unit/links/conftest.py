"""Makes the helpers of this directory and of its parent importable, and gives tests a PKI."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isthmus.tools.pki import making as pki

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server and an agent."""
    return pki.init(tmp_path_factory.mktemp("pki"))
