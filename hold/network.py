"""Network namespaces of a run: without names, so that they disappear with their last process.

The run moves into its own namespace, where ports are free and rules affect nothing else; a second
one holds a program that is to be cut off. Needs root; the machine's namespace is not changed.
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
    """Move this thread and its children into a new namespace; False without permission."""
    if os.geteuid() != 0:
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        return False
    _run(["ip", "link", "set", "lo", "up"])
    return True


@dataclass(frozen=True, slots=True)
class Beside:
    """A namespace with a cable to this one: THERE is its address, HERE this side's."""

    holder: Child

    @property
    def prefix(self) -> tuple[str, ...]:
        """A command prefix that runs the command in the namespace."""
        return ("nsenter", f"--target={self.holder.pid}", "--net", "--")

    def cut(self) -> None:
        """Drop every packet in both directions."""
        _run([*self.prefix, "nft", _CUT])

    def mend(self) -> None:
        """Stop dropping packets."""
        _run([*self.prefix, "nft", "delete table inet hold"])


def beside(space: Workspace) -> Beside:
    """Make a namespace that lives as long as its process, which the workspace ends."""
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
    """Wait until unshare(1) has moved to a namespace of its own."""
    ours = os.readlink("/proc/thread-self/ns/net")
    wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != ours, (holder,), "a namespace")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
