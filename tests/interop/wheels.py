"""Builds what is released from the sources at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LIMIT_S = 300.0


def build_wheel(directory: Path, *, sources: Path = ROOT) -> Path:
    """Build the wheel into a directory, always with the same bytes from the same sources."""
    _build("--wheel", directory, sources)
    (made,) = directory.glob("*.whl")
    return made


def build_sdist(directory: Path) -> Path:
    """Build the source distribution into a directory."""
    _build("--sdist", directory, ROOT)
    (made,) = directory.glob("*.tar.gz")
    return made


def _build(kind: str, directory: Path, sources: Path) -> None:
    argv = [
        sys.executable, "-m", "build", "--no-isolation", kind, f"--outdir={directory}", str(sources)
    ]  # fmt: skip
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
