"""Runs this tree's ``isthmus`` command, installed or not, optionally under cProfile.

usage: launch.py [--cprofile=FILE] ARGUMENTS OF isthmus...
"""

from __future__ import annotations

import cProfile
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))


def main() -> None:
    """Pass the arguments to the command; a profile is written however it ends."""
    profile = None
    if sys.argv[1:] and sys.argv[1].startswith("--cprofile="):
        profile = sys.argv.pop(1).partition("=")[2]
    sys.argv[0] = "isthmus"
    from isthmus.cli.main import main as isthmus

    if profile is None:
        sys.exit(isthmus())
    profiler = cProfile.Profile()
    try:
        profiler.runcall(isthmus)
    finally:
        profiler.dump_stats(profile)


if __name__ == "__main__":
    main()
