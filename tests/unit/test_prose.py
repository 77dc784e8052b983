"""Docstrings, comments and messages are written in plain technical English (odd_phrases.py)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import odd_phrases
import pytest

SOURCE = Path(__file__).parents[2] / "src" / "isthmus"
#: Where none of the phrases is left. What is not listed has MOST of them in all, and only loses.
CLEAN = (
    "values.py", "errors.py", "logs.py", "wire", "tunnel", "net", "links", "kube", "dial",
    "programs", "tools", "cli", "client", "testing",
    "frame", "manifests", "settings", "text",
)  # fmt: skip
MOST = 30
ODD = odd_phrases.pattern(odd_phrases.IN_PROSE)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every comment and every literal of more than a word, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"\s+", " ", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def found(path: Path) -> Iterator[str]:
    for line, text in texts(path.read_text()):
        for phrase in ODD.finditer(text):
            near = text[max(0, phrase.start() - 30) : phrase.end() + 30]
            yield f"{path.relative_to(SOURCE)}:{line}: {phrase[0]!r} in {near!r}"


def modules(under: Path) -> list[Path]:
    paths = [under] if under.is_file() else sorted(under.rglob("*.py"))
    return [path for path in paths if not path.stem.endswith("_pb2")]


@pytest.mark.parametrize("room", CLEAN)
def test_a_clean_room_stays_clean(room: str) -> None:
    paths = modules(SOURCE / room)
    assert paths
    assert [each for path in paths for each in found(path)] == []


def test_the_other_rooms_only_lose_odd_phrases() -> None:
    clean = {path for room in CLEAN for path in modules(SOURCE / room)}
    left = [each for path in modules(SOURCE) if path not in clean for each in found(path)]
    assert len(left) <= MOST, "\n".join(left)


@pytest.mark.parametrize(
    "text",
    [
        "cannot do without it",
        "an agent of ours that meets a server of ours",
        "what is not wrong and may still not be meant",
        "worker says nonsense",
        "for who changes it",
        "ask again and\nagain",
    ],
)
def test_odd_phrases_are_found(text: str) -> None:
    ((_, comment),) = texts(f"# {text}\n") if "\n" not in text else [(1, re.sub(r"\s+", " ", text))]
    assert ODD.search(comment)


def test_docstrings_comments_and_messages_are_texts() -> None:
    source = '"""A doc\nstring."""\nraise E(f"cannot read {x}")  # a reason\ny = "word"\n'
    assert [text for _, text in texts(source)] == ["A doc string.", "cannot read ", "# a reason"]
