"""The blocks of README.md and of every page of docs/, and what hidden comments say of them.

A comment stands alone on a line and is not seen by readers. Of a page, anywhere in it:

``<!-- machine: NAME -->``     where its commands run (doc_machines.py); ``pki`` without it
``<!-- run by: FILE -->``      another test runs them, and reads the page itself

Of the block below it:

``<!-- not run: WHY -->``      its commands are parsed, and not run
``<!-- output varies: WHY -->``  they are run, and what they print is not compared
``<!-- exit code: N -->``      of its last command, where it is not 0
``<!-- setup: COMMAND -->``    is run before it; may come several times
``<!-- given: PYTHON -->``     the Python block is run, behind this; may come several times
``<!-- file: PATH -->``        the block is the content of this file, which is written
``<!-- part of: KIND -->``     the YAML is a piece of this kind of Kubernetes object
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What commands are written in.
SHELL = frozenset({"sh", "console"})
#: What has no commands in it: pictures, output, log lines.
WORDS = frozenset({"text"})
_FENCE = re.compile(r"( *)```(\S*)(.*)")
_NOTE = re.compile(
    r"\s*<!-- (machine|run by|not run|output varies|exit code|setup|given|file|part of): "
    r"(.*) -->\s*"
)
_OF_A_PAGE = frozenset({"machine", "run by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; ``line`` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str
    notes: tuple[tuple[str, str], ...] = ()
    indented: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def note(self, word: str) -> str:
        """What the comment with this word says, or nothing."""
        return next((text for key, text in self.notes if key == word), "")

    def all_notes(self, word: str) -> list[str]:
        """What every comment with this word says."""
        return [text for key, text in self.notes if key == word]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A document; ``name`` is its path in the repository."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    machine: str
    run_by: str


def read(name: str, text: str) -> Page:
    """Read a page."""
    lines = text.splitlines()
    blocks: list[Block] = []
    of_page: dict[str, str] = {}
    pending: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        note, fence = _NOTE.fullmatch(lines[at]), _FENCE.fullmatch(lines[at])
        if note and note[1] in _OF_A_PAGE:
            of_page[note[1]] = note[2]
        elif note:
            pending.append((note[1], note[2]))
        elif fence:
            end = _end_of_fence(lines, at)
            body = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
            blocks.append(_block(name, at + 2, fence[2], body, pending))
            pending, at = [], end
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            blocks.append(Block(page=name, line=at + 1, language="", text="", indented=True))
            at = next((i for i in range(at, len(lines)) if not lines[i].startswith("    ")), at)
        elif lines[at].strip():
            assert not pending, f"{name}:{at}: a comment about a block, and no block below it"
        at += 1
    assert not pending, f"{name}: a comment about a block, and no block below it"
    return Page(
        name=name,
        text=text,
        blocks=tuple(blocks),
        machine=of_page.get("machine", "pki"),
        run_by=of_page.get("run by", ""),
    )


def _end_of_fence(lines: list[str], at: int) -> int:
    for end in range(at + 1, len(lines)):
        if lines[end].strip() == "```":
            return end
    raise AssertionError(f"line {at + 1}: a block without an end")


def _block(
    page: str, line: int, language: str, body: list[str], notes: list[tuple[str, str]]
) -> Block:
    return Block(
        page=page, line=line, language=language, text="\n".join(body) + "\n", notes=tuple(notes)
    )


@cache
def pages() -> tuple[Page, ...]:
    """Every page, README.md first."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(read(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths)


def shell_blocks(page: Page) -> list[Block]:
    """The blocks of a page that are commands."""
    return [block for block in page.blocks if block.language in SHELL]
