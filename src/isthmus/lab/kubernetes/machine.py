"""Makes a host of a lab a machine: processes, mounts, a name and cgroups of its own.

``python -m isthmus.lab.kubernetes.machine PLAN`` becomes the machine's first process, which waits
for orphans and nothing else; when it ends, the kernel ends everything in the machine, containers
included. Programs come in by ``inside``. The files of this machine are there as they are, but what
a node writes goes to folders of its own, and settings of the kernel that a kubelet would change for
everybody are a picture of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus.lab.kubernetes import cgroups
from isthmus.lab.plan import Names
from isthmus.lab.python import module

READY = "ready"
_NAMESPACES = ("--mount", "--uts", "--ipc", "--cgroup", "--pid")
#: What a node writes below these lies in a layer of its own.
_LAYERED = ("/etc", "/var/lib", "/opt")
#: These are its own altogether. An overlay cannot lie on an overlay.
_OWN = ("/var/lib/containerd", "/var/lib/kubelet", "/var/log", "/tmp")
#: What a kubelet wants these to be; they are the whole machine's.
_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_CGROUPS = "/sys/fs/cgroup"
_JOIN = 'for f in $1; do echo $$ > "$f" || exit 1; done; shift; exec "$@"'
#: What a machine needs of the one that it is on. A runc of Go modules alone knows no seccomp.
NEEDS = ("unshare", "nsenter", "mount", "runc")


def command(token: str, host: str, *, state: Path, see: Sequence[Path]) -> list[str]:
    """Write the command that is a machine; ``see`` are folders that it has to find in their place.

    Raises:
        OSError: this machine does not allow cgroups.
    """
    state.mkdir(parents=True)
    files = cgroups.make(token, host)
    plan = {
        "host": host,
        "state": str(state),
        "see": [str(path) for path in dict.fromkeys(see)],
        "etc": f"/etc/netns/{Names(token).host(host)}",
        "cgroups": [[str(one.point), one.kind, one.options] for one in cgroups.hierarchies()],
    }
    (state / "plan").write_text(json.dumps(plan))
    (state / "procs").write_text(" ".join(files))
    return [
        *_joining(" ".join(files)),
        *("nsenter", f"--net=/run/netns/{Names(token).host(host)}"),
        *("unshare", *_NAMESPACES, "--fork", "--kill-child", "--propagation", "private"),
        *module("isthmus.lab.kubernetes.machine", str(state)),
    ]


def _joining(files: str) -> list[str]:
    return ["sh", "-c", _JOIN, "sh", files]


def is_up(state: Path, pid: int) -> bool:
    """Whether a machine that was started as ``pid`` is ready to run something inside."""
    if not (state / READY).exists():
        return False
    (state / "pid").write_text(str(child_of(pid)))
    return True


def child_of(pid: int) -> int:
    """The number of the one child of a process, 0 if it has none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return 0


def inside(state: Path, argv: Sequence[str]) -> list[str]:
    """Write the command that runs another in a machine.

    Raises:
        OSError: the machine is not there.
    """
    pid, files = (state / "pid").read_text(), (state / "procs").read_text()
    every = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    return [*_joining(files), "nsenter", "--target", pid, *every, "--wd=/", "--", *argv]


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def folder(state: Path, place: str) -> str:
    """Where a machine keeps what lies at a place in it."""
    found = state / place.strip("/").replace("/", "-")
    found.mkdir(parents=True, exist_ok=True)
    return str(found)


def _mount_files(plan: dict[str, Any]) -> None:
    state = Path(plan["state"])
    kept = [path for path in plan["see"] if _is_hidden(path)]
    behind = state / "behind"
    for number, path in enumerate(kept):  # before what hides them
        (behind / str(number)).mkdir(parents=True)
        _mount("--rbind", path, str(behind / str(number)))
    _mount("--make-rprivate", "/")
    for place in _LAYERED:
        upper, work = folder(state, place), folder(state, f"{place}-work")
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        _mount("-t", "overlay", "overlay", place, "-o", options)
    for place in _OWN:
        own = folder(state, place)
        Path(place).mkdir(parents=True, exist_ok=True)
        _mount("--bind", own, place)
    os.chmod("/tmp", 0o1777)
    _mount("-t", "tmpfs", "tmpfs", "/run", "-o", "mode=755")
    for place in ("lock", "netns", "containerd"):
        Path("/run", place).mkdir()
    for number, path in enumerate(kept):
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--rbind", str(behind / str(number)), path)
    for each in Path(plan["etc"]).iterdir() if os.path.isdir(plan["etc"]) else ():
        _mount("--bind", str(each), f"/etc/{each.name}")


def _is_hidden(path: str) -> bool:
    places = ("/run", *_OWN)
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _mount_kernel(plan: dict[str, Any]) -> None:
    """Have /proc and /sys of this machine: its processes, its links, its cgroups."""
    _mount("-t", "proc", "proc", "/proc")
    state = Path(plan["state"])
    for name, value in _SETTINGS.items():
        if os.path.exists(f"/proc/sys/{name}"):
            own = state / name.replace("/", "-")
            own.write_text(f"{value}\n")
            _mount("--bind", str(own), f"/proc/sys/{name}")
    links = [
        (path.name, os.readlink(path)) for path in Path(_CGROUPS).iterdir() if path.is_symlink()
    ]
    _mount("-t", "sysfs", "sysfs", "/sys")
    found = plan["cgroups"]
    if [point for point, _, _ in found] != [_CGROUPS]:
        _mount("-t", "tmpfs", "tmpfs", _CGROUPS, "-o", "mode=755")
        for name, to in links:
            os.symlink(to, f"{_CGROUPS}/{name}")
    for point, kind, options in found:
        Path(point).mkdir(exist_ok=True)
        _mount("-t", kind, kind, point, *(("-o", options) if options else ()))


def main(words: Sequence[str]) -> int:
    """Be the first process of a machine, until told to end."""
    state = Path(words[0])
    plan = json.loads((state / "plan").read_text())
    numbers = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    socket.sethostname(plan["host"])
    _mount_files(plan)
    _mount_kernel(plan)
    _mount("--make-rshared", "/")
    (state / READY).touch()
    while signal.sigwait(numbers) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
