"""Makes the helpers of this directory importable, and gives tests a PKI and a running tunnel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.tools.pki import making as pki

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))

from programs import Programs  # found by the line above
from stack import Stack


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server, an agent and a client, for everybody who does not change them."""
    names = ("localhost", "127.0.0.1", "127.0.0.2")
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=names)


@pytest.fixture(scope="module")
def link() -> str:
    """What server and agent speak; a module that tests both says so with a fixture of its own."""
    return "auto"


@pytest.fixture(scope="module")
def running(certificates: pki.PkiFiles, link: str) -> Iterator[Stack]:
    """A server and an agent, linked, for all tests of a module."""
    with Stack(certificates, link) as stack:
        stack.add_server()
        stack.add_agent()
        spoken = [it.talk.name for it in stack.server.agents if it.talk is not None]
        assert spoken == ["mux" if link == "auto" else link]
        yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    """The module's tunnel; whatever a test did, nothing of it may be left."""
    yield running
    running.wait_idle()


@pytest.fixture
def fresh(certificates: pki.PkiFiles, link: str) -> Iterator[Stack]:
    """A stack of a test's own, with nothing in it yet."""
    with Stack(certificates, link) as stack:
        yield stack


@pytest.fixture
def programs(certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    """Starts servers and agents as processes, and ends them."""
    with Programs(certificates, tmp_path) as started:
        yield started
