"""A PKI and patients for the doctor's tests."""

from __future__ import annotations

import pytest

from isthmus.tools.pki import making as pki


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server, an agent and a client."""
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=("localhost", "127.0.0.1"))


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """The same of another CA."""
    return pki.init(tmp_path_factory.mktemp("others"), server_names=("localhost", "127.0.0.1"))
