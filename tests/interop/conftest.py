"""Builds the Go peers, and makes the helpers of this directory importable by its tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.tools.pki import making as pki

# Tests are imported by path (importlib mode), which leaves their own directory unsearched;
# programs are started as the integration tests start them.
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "integration"))
sys.path.append(str(HERE.parents[1] / "tools"))  # container, which builds the image

from gobuild import BUILD_TIMEOUT_S, H2SPEC, build  # noqa: E402  found by the lines above
from konnpeers import Peers, Target  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whoever builds first the time for it: a fixture's time is its test's."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S + 120))


@pytest.fixture(scope="session")
def yamuxpeer() -> Path:
    """A yamux session in Go."""
    return build("yamuxpeer")


@pytest.fixture(scope="session")
def halfclose() -> Path:
    """A TLS connection in Go."""
    return build("halfclose")


@pytest.fixture(scope="session")
def konnclient() -> Path:
    """konnectivity-client, and what stands in for konnectivity's server and agent."""
    return build("konnclient")


@pytest.fixture(scope="session")
def h2spec() -> Path:
    """The HTTP/2 conformance tests."""
    return build("h2spec", H2SPEC)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server, an agent and a client."""
    return pki.init(
        tmp_path_factory.mktemp("pki"), server_names=("localhost", "127.0.0.1"), one_ca=True
    )


@pytest.fixture(scope="session")
def target(konnclient: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """What tunnels lead to, for all tests."""
    with Target(konnclient, tmp_path_factory.mktemp("target")) as started:
        yield started


@pytest.fixture
def peers(
    konnclient: Path, certificates: pki.PkiFiles, target: Target, tmp_path: Path
) -> Iterator[Peers]:
    """Starts servers, agents and clients, Go's and ours, and ends them."""
    with Peers(konnclient, certificates, target, tmp_path) as started:
        yield started
