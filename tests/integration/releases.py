"""The release before this one, as source beside the current one: what neighbours still run."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RECORDED = Path(__file__).with_name("previous-release.txt")


def previous_source(into: Path) -> Path:
    """Unpack the package of the previous release; the directory to put into PYTHONPATH.

    That is the newest tag before this commit, or, while there is none, the commit that
    previous-release.txt names. Only a copy of the sources without all of their history may lack it.
    """
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history of the repository is not here, and no previous release in it")
    revision = _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^") or _recorded()
    ran = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "src/isthmus"],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, f"{_RECORDED.name}: {ran.stderr.decode().strip()}"
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into / "src"


def _recorded() -> str:
    lines = _RECORDED.read_text().splitlines()
    return next(line for line in lines if line and not line.startswith("#"))


def _git(*args: str) -> str:
    ran = subprocess.run(
        ["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False, timeout=60
    )
    return ran.stdout.strip() if ran.returncode == 0 else ""
