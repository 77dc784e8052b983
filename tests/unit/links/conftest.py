"""A PKI for the tests of links."""

from __future__ import annotations

import pytest

from isthmus.tools.pki import making as pki


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server and an agent."""
    return pki.init(tmp_path_factory.mktemp("pki"))
