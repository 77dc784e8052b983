"""Reads a Containerfile, as far as ours go: stages, instructions, variables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_KNOWN = {
    "ARG", "FROM", "RUN", "COPY", "ENV", "LABEL", "EXPOSE", "STOPSIGNAL", "WORKDIR", "USER",
    "ENTRYPOINT", "CMD",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word, and the rest with continued lines joined."""

    word: str
    rest: str


@dataclass(slots=True)
class ImageStage:
    """What happens from one FROM to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put variables into a text; an unknown one is an error."""
    return _VARIABLE.sub(lambda found: variables[found[1] or found[2]], text)


def instructions(text: str) -> list[Instruction]:
    """Read them; a comment within a continued line is no part of it."""
    found: list[Instruction] = []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            assert word in _KNOWN, f"no such instruction here: {word}"
            found.append(Instruction(word, rest.strip()))
    return found


def stages(path: Path, arguments: Mapping[str, str]) -> list[ImageStage]:
    """Read a file with these --build-arg values."""
    found: list[ImageStage] = []
    outer = dict(arguments)
    for each in instructions(path.read_text()):
        if each.word == "FROM":
            base, *name = expand(each.rest, outer).split(" AS ")
            found.append(ImageStage(base, name[0] if name else ""))
        elif found:
            found[-1].instructions.append(each)
        else:
            assert each.word == "ARG", "only ARG comes before the first FROM"
            name_, _, value = each.rest.partition("=")
            outer.setdefault(name_, value)
    return found


def assignments(rest: str) -> dict[str, str]:
    """Read ``A=b C="d e"``."""
    return dict(word.split("=", 1) for word in shlex.split(rest))


def exec_form(rest: str) -> list[str]:
    """Read ``["/program", "word"]``."""
    words = json.loads(rest)
    assert isinstance(words, list) and all(isinstance(word, str) for word in words)
    return words
