"""Builds the image: with podman, buildah or docker, or without any of them as an OCI archive.

usage: PYTHONPATH=tools python -m container [--name isthmus:VERSION] [--archive]

Takes the wheel from dist/ (make dist). With an engine the image is stored under its name; without
one it is written to dist/isthmus-VERSION-image.tar, an OCI archive, and the last line tells how to
load it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from isthmus.lab.kubernetes import archive
from isthmus.lab.kubernetes.layers import Builder, why_not
from isthmus.lab.kubernetes.programs import NotBuiltError

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
ENGINES = ("podman", "buildah", "docker")
_ASK_S = 30.0


def main() -> int:
    """Build the image and print its location."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/isthmus/__init__.py").read_text())
    assert version is not None
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name", default=f"isthmus:{version[1]}", help="name and tag of the image")
    parser.add_argument("--archive", action="store_true", help="write an archive, engine or not")
    args = parser.parse_args()
    wheel = ROOT / "dist" / f"isthmus-{version[1]}-py3-none-any.whl"
    if not wheel.is_file():
        parser.error(f"{wheel.relative_to(ROOT)} is not there; make dist builds it")
    engine = "" if args.archive else next(filter(works, ENGINES), "")
    if engine:
        given = ["--build-arg", f"VERSION={version[1]}", "--tag", args.name]
        return subprocess.run([engine, "build", *given, "--file", CONTAINERFILE, ROOT]).returncode
    if reason := why_not():
        print(f"no podman, buildah or docker, and {reason}", file=sys.stderr)
        return 1
    path = ROOT / "dist" / f"isthmus-{version[1]}-image.tar"
    print("no container engine: building layer by layer, a few minutes the first time", flush=True)
    try:
        image = Builder(ROOT, {"VERSION": version[1]}).build(CONTAINERFILE)
    except NotBuiltError as error:
        print(error, file=sys.stderr)
        return 1
    made_at = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    # A name without a registry, as podman uses it.
    archive.write([(image, [f"localhost/{args.name}"])], path, made_at=made_at)
    print(f"{path.relative_to(ROOT)} ({path.stat().st_size / 1024**2:.0f} MiB)")
    print(f"load it: podman load -i {path.relative_to(ROOT)}")
    print(f"or, on a node: ctr --namespace k8s.io images import {path.relative_to(ROOT)}")
    return 0


def works(engine: str) -> bool:
    """Whether an engine is installed and answers."""
    if not shutil.which(engine):
        return False
    argv = [engine, "info"]
    return subprocess.run(argv, capture_output=True, timeout=_ASK_S).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
