"""The machine as a lab has to leave it: namespaces, links, rules, processes and files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import isthmus

LAB = [sys.executable, "-m", "isthmus.cli.main", "lab"]
LIMIT_S = 90.0
PREFIX = "isthmus-lab-"
HOME = Path("/run/isthmus/labs")
_MARK = b"ISTHMUS_LAB="
_RULES = (["nft", "list", "ruleset"], ["iptables-save"], ["ip6tables-save"])
_LOOK_AGAIN_S = 0.05


def environment() -> dict[str, str]:
    """Our own, with this source tree."""
    return {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parent.parent)}


def lab(*args: str, check: bool = True, limit_s: float = LIMIT_S) -> str:
    """Run a lab command; what it printed on its standard output."""
    done = subprocess.run(
        [*LAB, *args], env=environment(), text=True, capture_output=True, timeout=limit_s,
        check=False,
    )  # fmt: skip
    sys.stderr.write(done.stderr)  # pytest shows it when the test fails
    assert not check or done.returncode == 0, f"{args}: {done.stdout}\n{done.stderr}"
    return done.stdout


def processes() -> set[int]:
    """Those that bear a lab's mark, are in a lab's namespace, or guard one."""
    spaces = set()
    for path in Path("/run/netns").glob(f"{PREFIX}*"):
        with suppress(OSError):
            spaces.add(path.stat().st_ino)
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                environ, line = ((entry / name).read_bytes() for name in ("environ", "cmdline"))
                space = (entry / "ns/net").stat().st_ino
                if _MARK in environ or space in spaces or b"isthmus.lab." in line:
                    found.add(int(entry.name))
    return found


def picture() -> dict[str, object]:
    """All of a lab that could be left: the same before and after."""
    rules = {}
    for command in _RULES:
        if shutil.which(command[0]):
            text = subprocess.run(command, text=True, capture_output=True, check=False).stdout
            rules[command[0]] = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        "namespaces": _there(Path("/run/netns")),
        "hosts files": _there(Path("/etc/netns")),
        "labs": _there(HOME),
        "links": sorted(os.listdir("/sys/class/net")),
        "rules": rules,
        "processes": processes(),
    }


def _there(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Look again and again; fail with ``what`` when it never holds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(_LOOK_AGAIN_S)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Whatever happens in the block leaves the machine as it was, soon."""
    before = picture()
    yield
    with suppress(AssertionError):  # the comparison below says more
        wait_until(lambda: picture() == before, "everything is gone", 30.0)
    assert picture() == before
