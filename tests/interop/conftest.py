"""Builds the Go yamux peer, and makes the helpers of this directory importable by its tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Tests are imported by path (importlib mode), which leaves their own directory unsearched.
sys.path.insert(0, str(Path(__file__).parent))

SOURCES = Path(__file__).parent / "yamuxpeer"


@pytest.fixture(scope="session")
def yamuxpeer() -> Path:
    """Build the peer once for these sources, outside the tree."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go in PATH: the yamux peer cannot be built")
    sum_ = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        sum_.update((SOURCES / name).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "isthmus" / "interop" / sum_.hexdigest()[:16] / "yamuxpeer"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_name(f"yamuxpeer.{os.getpid()}")
        built = subprocess.run(
            [go, "build", "-mod=readonly", "-o", str(fresh), "."],
            cwd=SOURCES,
            capture_output=True,
            text=True,
            timeout=100,
        )
        if built.returncode:
            pytest.skip(f"the yamux peer could not be built: {built.stderr.strip()[-300:]}")
        fresh.replace(binary)
    return binary
