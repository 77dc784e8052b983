"""docs/tutorial.md, typed word by word: every command is run, and what it shows is compared.

A block of commands that begins with a comment about another terminal is left running. A block of
text after commands is what they print; … stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from machine import environment, lab, nothing_left

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
LIMIT_S = 120.0
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """A block of commands, and what it is said to print; None if nothing is said."""

    text: str
    prints: str | None

    @property
    def stays(self) -> bool:
        """Whether it is for another terminal."""
        return bool(re.match(r"# In a \w+ terminal", self.text))


def commands(document: str) -> list[Command]:
    """The commands of a document, in order."""
    found: list[Command] = []
    for kind, text in _BLOCK.findall(document):
        if kind == "sh":
            found.append(Command(text, None))
        else:
            found[-1] = Command(found[-1].text, text)
    return found


def pattern(shown: str) -> str:
    """A regular expression for what is shown: … is anything, a line of it any lines."""
    lines = [".*" if line == "…" else re.escape(line).replace("…", "[^\n]*")
             for line in shown.strip().splitlines()]  # fmt: skip
    return "\n".join(lines)


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with this very isthmus in it."""
    program = tmp_path / "isthmus"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m isthmus.cli.main "$@"\n')
    program.chmod(0o755)
    return {**environment(), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def taken_down() -> Iterator[None]:
    """No lab is left, however far the tutorial got."""
    with nothing_left():
        try:
            yield
        finally:
            lab("down", "--all")


@pytest.mark.timeout(300)
def test_every_command(taken_down: None, shell_environment: dict[str, str]) -> None:
    with ExitStack() as terminals:
        for command in commands(TUTORIAL.read_text()):
            argv = ["bash", "-c", command.text]
            if command.stays:
                assert command.prints is None
                process = subprocess.Popen(
                    argv, env=shell_environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                terminals.callback(process.wait)
                terminals.callback(process.kill)
                continue
            done = subprocess.run(
                argv, env=shell_environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            printed = "\n".join(
                line for line in done.stdout.splitlines() if not line.startswith("lab: ")
            )
            assert done.returncode == 0, f"{command.text}\n{printed}"
            if command.prints is not None:
                assert re.fullmatch(pattern(command.prints), printed.strip(), re.DOTALL), (
                    f"{command.text}\nprinted:\n{printed}\nthe tutorial says:\n{command.prints}"
                )


def test_the_tutorial_has_commands() -> None:
    found = commands(TUTORIAL.read_text())
    assert len(found) > 15 and sum(one.stays for one in found) == 2
    assert sum(one.prints is not None for one in found) > 10


def test_what_is_shown_is_compared() -> None:
    assert re.fullmatch(pattern("a … c\n"), "a b c")
    assert not re.fullmatch(pattern("a … c\n"), "a b d")
    assert re.fullmatch(pattern("first\n…\n"), "first\nand\nmore", re.DOTALL)
