"""Every file, folder, target and tool that CONTRIBUTING.md names exists."""

from __future__ import annotations

import re

import pytest
from doc_blocks import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TABLE = [line for line in TEXT.splitlines() if line.startswith("| ")][1:]
TARGETS = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
#: In the table, what is not below these is below src/isthmus.
_TOP = ("tests", "docs", "tools/trace-dial", "mkdocs.yml", "src", "changes", ".ci", "bench")
_NO_PATH = re.compile(r"make |isthmus |@|--|ISTHMUS_|[^a-z]*$")


def paths(text: str) -> list[str]:
    """The paths in backticks, without commands and lone words."""
    words = [
        word
        for quoted in re.findall(r"`([^`]+)`", text)
        if not _NO_PATH.match(quoted)
        for word in quoted.split()
    ]
    return [word for word in words if "/" in word or word.endswith((".py", ".yml", ".md"))]


def there(path: str) -> bool:
    place = ROOT if path.startswith(_TOP) else ROOT / "src" / "isthmus"
    return any(place.glob(path.rstrip("/").replace("NAME", "*")))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.split("|")[1].strip())
def test_the_files_of_a_row_are_there(row: str) -> None:
    _, edit, run, seconds = (cell.strip() for cell in row.strip("| ").split(" | "))
    assert paths(edit) and paths(run) and seconds.isdigit()
    assert [path for path in paths(edit) + paths(run) if not there(path)] == []


def test_files_elsewhere_in_the_page_are_there() -> None:
    commands = re.findall(r"(?<![\w/])tests/[\w/.-]*\w", TEXT)
    named = [*commands, *(path for path in paths(TEXT) if path.startswith(_TOP))]
    assert named and [path for path in named if "+" not in path and not there(path)] == []


def test_every_target_is_one_of_the_makefile() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)", TEXT))
    assert {"dev", "test", "check", "interop", "lab", "nightly"} <= named <= set(TARGETS)


@pytest.mark.parametrize("path", ["programs/NAME/nothing.py", "tests/unit/nothing", "nothing.py"])
def test_what_is_missing_is_found(path: str) -> None:
    assert paths(f"`{path}`") == [path] and not there(path)
