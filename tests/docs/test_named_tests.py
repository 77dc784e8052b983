"""Tests that documents name as proof exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"(?<![\w/])tests/[\w/]+\.py(?:::(\w+))?")
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if NAMED.search(page.read_text())
]


def missing(text: str) -> list[str]:
    found = []
    for name in NAMED.finditer(text):
        file = ROOT / name[0].partition("::")[0]
        if not file.is_file() or (name[1] and f"def {name[1]}(" not in file.read_text()):
            found.append(name[0])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_a_test_that_is_not_there_is_found() -> None:
    assert missing("see `tests/docs/test_named_tests.py::test_nothing` and `tests/no.py`") == [
        "tests/docs/test_named_tests.py::test_nothing",
        "tests/no.py",
    ]
