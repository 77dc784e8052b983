"""Makes the helpers of this directory importable by its tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))

from bed import Certificates  # found by the line above


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One CA with a server and a client, for every TLS end."""
    return Certificates.make(tmp_path_factory.mktemp("pki"))
