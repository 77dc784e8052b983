"""Every command of the documents is run as it is written, on a machine of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doc_blocks import Page, pages, shell_blocks
from doc_machines import make_pki, matches, run, why_there_is_none


def runnable(page: Page) -> bool:
    return not page.run_by and any(not block.note("not run") for block in shell_blocks(page))


def cases() -> list[object]:
    return [
        pytest.param(page, id=page.name, marks=pytest.mark.lab if page.machine == "lab" else ())
        for page in pages()
        if runnable(page)
    ]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that every machine gets a copy of."""
    return make_pki(tmp_path_factory.mktemp("pki") / "pki")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", cases())
def test_commands_do_what_the_page_says(page: Page, tmp_path: Path, pki: Path) -> None:
    if reason := why_there_is_none():
        pytest.skip(reason)
    if page.machine == "lab" and os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    failures = run(page, tmp_path, pki)
    assert not failures, "\n\n".join(map(str, failures))


def test_what_is_shown_is_compared() -> None:
    assert matches("a … c", "a b c")
    assert matches("a\n…\nc", "a\nb\nb\nc") and matches("a … c", "a c")
    assert matches("took … ms", "took 12 ms") and matches("took …ms", "took 12ms")
    assert not matches("a … c", "a b d")
    assert not matches("a", "a b")
