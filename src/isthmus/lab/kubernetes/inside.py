"""Runs one command in layers of files, stacked as a container runtime does, as its root.

Started by ``unshare --mount`` with a document on standard input, so that every mount is gone with
the last process. Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def mount(*args: str) -> None:
    """Mount something, or end with what mount said."""
    done = subprocess.run(["mount", *args], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"mount {' '.join(args)}: {done.stderr.strip()}")


def stack(plan: dict[str, Any], root: str) -> None:
    """Put the layers on each other; without an upper one nobody can write."""
    layers = [f"lowerdir={':'.join(plan['layers'])}"]
    if plan["upper"]:
        layers += [f"upperdir={plan['upper']}", f"workdir={plan['work']}"]
    mount("-t", "overlay", "overlay", "-o", ",".join(layers), root)
    for kind in ("dev", "proc"):
        mount("--rbind", f"/{kind}", f"{root}/{kind}")
    for outside, place, mode in plan["binds"]:
        mount("--bind", outside, f"{root}{place}")
        if mode == "ro":
            mount("-o", "remount,bind,ro", f"{root}{place}")


def main() -> None:
    """Read the plan and become the command."""
    plan = json.load(sys.stdin)
    root = plan["root"]
    Path(root).mkdir(exist_ok=True)
    stack(plan, root)
    os.chroot(root)
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.setgroups([])
    os.setgid(plan["gid"])
    os.setuid(plan["uid"])
    os.execve(plan["argv"][0], plan["argv"], plan["environment"])


main()
