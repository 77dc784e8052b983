"""What a page's source has to mind, so that every reader of Markdown shows it as it is meant."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from doc_blocks import ROOT

_ITEM = re.compile(r" *([-+*]|\d+[.)]) +\S")
_PIPE = re.compile(r"(?<!\\)\|")
_ENDS_PROSE = ("#", "<!--", "|")


def prose(page: Path) -> list[str]:
    """The lines of a page, empty where they are code."""
    found, code = [], False
    for line in page.read_text("utf-8").splitlines():
        fence = line.lstrip().startswith("```")
        found.append("" if code or fence else line)
        code ^= fence
    return found


def test_no_line_within_a_paragraph_looks_like_an_item_of_a_list() -> None:
    wrong = []
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        lines = prose(page)
        for number, (before, line) in enumerate(pairwise(lines), 2):
            in_item = before.startswith("  ") or _ITEM.match(before)
            in_prose = before.strip() and not before.lstrip().startswith(_ENDS_PROSE)
            if _ITEM.match(line) and in_prose and not in_item:
                wrong.append(f"{page.relative_to(ROOT)}:{number}: {line}")
    assert wrong == []


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    wrong = []
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        cells = 0
        for number, line in enumerate(prose(page), 1):
            found = len(_PIPE.findall(line)) if line.startswith("|") else 0
            if cells and found not in (0, cells):
                wrong.append(f"{page.relative_to(ROOT)}:{number}: {line}")
            cells = (cells or found) if found else 0
    assert wrong == []


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = spec_from_file_location("docs_hooks", ROOT / "tools" / "docs_hooks.py")
    assert spec is not None and spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("url", "edit"), [("", ""), ("https://git.example/isthmus", "edit/main/docs/")]
)
def test_a_page_has_an_edit_link_where_the_repository_is_known(
    url: str, edit: str, hooks: ModuleType
) -> None:
    config = SimpleNamespace(repo_url=url, edit_uri=None)
    assert hooks.on_config(config).edit_uri == edit


def test_a_pipe_in_a_table_is_shown_without_its_backslash(hooks: ModuleType) -> None:
    page = "<p>a\\|b</p><table><td><code>x\\|y</code></td></table>"
    shown = "<p>a\\|b</p><table><td><code>x|y</code></td></table>"
    assert hooks.on_page_content(page, page=None) == shown
