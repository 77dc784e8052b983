"""`make release` as a whole, in a clone of this repository: dist/ is filled, nothing is tagged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from wheels import ROOT

from isthmus import __version__
from isthmus.lab.kubernetes.layers import why_not

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(3600)]
LIMIT_S = 3600.0


def git(*args: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(["git", *args], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_everything_a_release_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if why_not():
        pytest.skip(why_not())
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{clone}/src:{clone}/tools:{clone}/tests/interop",
        "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct", cwd=clone),
    }
    done = subprocess.run(
        [sys.executable, "-m", "release", "--rehearsal"],
        cwd=clone, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n{done.stdout}", end="")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines[:-1]) and len(lines) == 11
    argv = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(argv, cwd=clone / "dist", check=True, timeout=LIMIT_S)
    bills = {path.name: path.read_text() for path in (clone / "dist").glob("*.cdx.json")}
    assert bills.keys() == {
        f"isthmus-{__version__}-py3-none-any.whl.cdx.json",
        f"isthmus-{__version__}-image.tar.cdx.json",
    }
    for name, text in bills.items():
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None, name
    image = {each["name"] for each in json.loads(bills.popitem()[1])["components"]}
    assert {"isthmus", "uvloop"} & image
    assert git("tag", "--list", cwd=clone) == git("tag", "--list")
