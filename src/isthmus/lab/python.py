"""Running a module of Isthmus with this Python."""

from __future__ import annotations

import sys


def module(name: str, *args: str) -> list[str]:
    """The command that runs a module.

    With -P: without it ``-m`` searches the current directory first, and any user who can write
    there could make root run anything.
    """
    return [sys.executable, "-P", "-m", name, *args]
