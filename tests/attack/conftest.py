"""Makes the beds of tests/integration importable, and gives attacks the same programs and PKI."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.tools.pki import making as pki

# Tests are imported by path (importlib mode), which leaves these directories unsearched.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))

from programs import Programs  # found by the line above
from stack import Stack


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """A server, an agent and a client, for everybody who does not change them."""
    names = ("localhost", "127.0.0.1", "127.0.0.2")
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=names)


@pytest.fixture
def fresh(certificates: pki.PkiFiles) -> Iterator[Stack]:
    """A stack of a test's own, with nothing in it yet."""
    with Stack(certificates) as stack:
        yield stack


@pytest.fixture
def programs(certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    """Starts servers and agents as processes, and ends them."""
    with Programs(certificates, tmp_path) as started:
        yield started
