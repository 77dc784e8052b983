"""Gives tests a browser, a fake feed, and what integration tests have: programs and a PKI."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.tools.pki import making as pki

# Tests are imported by path (importlib mode), which leaves these directories unsearched.
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parent))

from browser import CHROMIUM, DRIVER, Browser  # found by the lines above
from programs import Programs
from stack import Stack


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a process; it takes seconds to start."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is not installed")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser; whatever a test did, the page must not have complained."""
    yield chromium
    complaints = chromium.complaints()
    chromium.driver.get("about:blank")
    assert complaints == []


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """One CA with a server, an agent and a client."""
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=("localhost", "127.0.0.1"))


@pytest.fixture
def fresh(certificates: pki.PkiFiles) -> Iterator[Stack]:
    """Programs in this process, none yet."""
    with Stack(certificates) as stack:
        yield stack


@pytest.fixture
def programs(certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    """Programs as processes, none yet."""
    with Programs(certificates, tmp_path) as started:
        yield started
