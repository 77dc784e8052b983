"""The reference pages are what the declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.flagdocs import PAGES, page, write
from isthmus.settings.options import options_of

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == page(name), "run: python -m isthmus.cli.flagdocs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_every_flag(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / name).read_text(encoding="utf-8")
    for option in options_of(PAGES[name].settings_class):
        assert f"`--{option.flag}" in text


@pytest.mark.parametrize("name", PAGES)
def test_every_row_has_four_cells(name: str) -> None:
    rows = [line for line in page(name).splitlines() if line.startswith("|")]
    assert rows
    assert {line.replace("\\|", "").count("|") for line in rows} == {5}
