"""Starting a module of ours with this very Python."""

from __future__ import annotations

import sys


def module(name: str, *args: str) -> list[str]:
    """Write the command that runs a module.

    With -P: without it ``-m`` looks for modules in the current directory first, and whoever can
    write there could have root run anything.
    """
    return [sys.executable, "-P", "-m", name, *args]
