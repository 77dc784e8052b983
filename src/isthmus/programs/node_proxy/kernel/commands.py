"""Runs the programs that talk to the kernel: iptables, ipset and their like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.net.child_endings import ending_of, was_killed
from isthmus.programs.node_proxy.kernel.backend import ApplyError

#: iptables-restore of a large cluster takes minutes.
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a program ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, as a crash does: what it did until then is not known."""
        return was_killed(self.code)

    @property
    def complaint(self) -> str:
        """What went wrong, in the program's own words, on one line; a crash is named first."""
        said = " ".join((self.err or self.out).split())
        ending = ending_of(self.code)
        if self.killed:
            return f"{ending}: {said}" if said else ending
        return said or ending


def run(argv: Sequence[str], *, input: str = "", timeout_s: float = TIMEOUT_S) -> CommandResult:
    """Run a program to its end; blocks. A program that fails is told by ``code``.

    Raises:
        ApplyError: it is not there, may not be run, or took too long and was ended.
    """
    try:
        # Their messages are read: not in the language of whoever started us.
        done = subprocess.run(
            list(argv), input=input, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise ApplyError(f"{argv[0]} took longer than {timeout_s:g} s") from exc
    except OSError as exc:
        raise ApplyError(f"{argv[0]} cannot be run: {exc.strerror or exc}") from exc
    return CommandResult(done.returncode, done.stdout, done.stderr)
