"""Network namespaces of a run: nameless, so that they are gone with the last process in them.

The run moves into one of its own, where ports are free and rules are its own; another can be put
beside it for a program that is to be cut off. Needs root; nothing is made in the machine's own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass

from processes import BenchError, Child, Workspace
from topologies import wait_until

HERE, THERE = "10.77.0.1", "10.77.0.2"
_CLONE_NEWNET = 0x40000000
_LIMIT_S = 20.0
_CUT = "table inet hold { chain in { type filter hook input priority 0; policy drop; }; \
chain out { type filter hook output priority 0; policy drop; }; }"


def own_network() -> bool:
    """Move this thread and all that it starts into a new namespace; False without the right to."""
    if os.geteuid() != 0:
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        return False
    _run(["ip", "link", "set", "lo", "up"])
    return True


@dataclass(frozen=True, slots=True)
class Beside:
    """A namespace with a cable to ours: THERE is its address, HERE is ours on that cable."""

    holder: Child

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put before a command, it runs in there."""
        return ("nsenter", f"--target={self.holder.pid}", "--net", "--")

    def cut(self) -> None:
        """Drop every packet in and out; nobody is told."""
        _run([*self.prefix, "nft", _CUT])

    def mend(self) -> None:
        """Let them through again."""
        _run([*self.prefix, "nft", "delete table inet hold"])


def beside(space: Workspace) -> Beside:
    """Make a namespace that lives as long as a process in it, which the workspace ends."""
    holder = space.start("namespace", ["unshare", "--net", "sleep", "3600"])
    made = Beside(holder)
    _wait_for_own(holder)
    _run(["ip", "link", "add", "hold0", "type", "veth", "peer", "name", "hold1"])
    _run(["ip", "link", "set", "hold1", "netns", str(holder.pid)])
    _run(["ip", "address", "add", f"{HERE}/24", "dev", "hold0"])
    _run(["ip", "link", "set", "hold0", "up"])
    _run([*made.prefix, "ip", "address", "add", f"{THERE}/24", "dev", "hold1"])
    _run([*made.prefix, "ip", "link", "set", "hold1", "up"])
    _run([*made.prefix, "ip", "link", "set", "lo", "up"])
    return made


def _wait_for_own(holder: Child) -> None:
    """unshare(1) has moved when its namespace is not ours any more."""
    ours = os.readlink("/proc/thread-self/ns/net")
    wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != ours, (holder,), "a namespace")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
