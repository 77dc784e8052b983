"""No page, README or fragment has the phrases that read as translated (STYLE, "Prose")."""

from __future__ import annotations

import re
from pathlib import Path

import odd_phrases
import pytest
from doc_blocks import ROOT
from test_site import prose

#: Written by commands: their texts are those of flags, metrics and checks, with tests of their own.
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "changes/*.md", "deploy/**/*.md", "examples/**/*.md")
    for page in sorted(ROOT.glob(pattern))
    if GENERATED not in page.parents
]
PHRASES = odd_phrases.pattern(odd_phrases.IN_PAGES)
_QUOTED = re.compile(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"")


def odd(page: Path) -> list[str]:
    """The lines with such a phrase; what is quoted, code and links do not count."""
    found = []
    for number, line in enumerate(prose(page), 1):
        phrase = PHRASES.search(_QUOTED.sub("`", line))
        if phrase:
            found.append(f"{page.relative_to(ROOT)}:{number}: {phrase[0].strip()!r} in {line}")
    return found


def test_no_page_reads_as_translated() -> None:
    found = [line for page in PAGES for line in odd(page)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "The recipe for who has no Helm",
        "An agent of ours that meets a server of ours",
        "Carry so many connections",
        "What is said of it is on another page",
        "Call this server so",
        "A worker that says nonsense",
        "Show on one screen how the programs are",
        "Let it be so",
        "Tell traffic of this node's pods by this",
        "A sidecar wants `--allow-unauthenticated` in so many words",
        "The figures are held against haproxy's",
        "The manifest is written anew",
    ],
)
def test_such_a_phrase_is_found(text: str, tmp_path: Path) -> None:
    assert PHRASES.search(_QUOTED.sub("`", text))


@pytest.mark.parametrize(
    "text",
    [
        "It waits so that others can go on",
        "Not so long as a minute",
        "An Isthmus agent connected to an Isthmus server",
        "The page lists who may read it",
        'Show what "is said" there, or `for who` it is',
    ],
)
def test_plain_sentences_are_fine(text: str) -> None:
    assert not PHRASES.search(_QUOTED.sub("`", text))
