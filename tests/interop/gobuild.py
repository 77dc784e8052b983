"""Builds the Go programs of this directory, once for each version of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The first build downloads modules and compiles grpc.
BUILD_TIMEOUT_S = 300


def build(name: str, package: str = ".") -> Path:
    """The program made of the module in the directory ``name``, from the user's cache.

    Skips the test, with the reason, where Go is missing or cannot build it.
    """
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no go in PATH: {name} cannot be built")
    sources = HERE / name
    digest = hashlib.sha256()
    for source in sorted(sources.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "isthmus" / "interop" / digest.hexdigest()[:16] / name
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh = binary.with_name(f"{name}.{os.getpid()}")
        built = subprocess.run(
            [go, "build", "-mod=readonly", "-o", str(fresh), package],
            cwd=sources,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        if built.returncode:
            pytest.skip(f"{name} could not be built: {built.stderr.strip()[-300:]}")
        fresh.replace(binary)
    return binary


H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec"


def build_all() -> None:
    """Build every program: for tests that are in a network of their own, without an outside."""
    for module in sorted(HERE.glob("*/go.mod")):
        name = module.parent.name
        try:
            build(name, H2SPEC if name == "h2spec" else ".")
        except pytest.skip.Exception as why:
            print(why)


if __name__ == "__main__":
    build_all()
