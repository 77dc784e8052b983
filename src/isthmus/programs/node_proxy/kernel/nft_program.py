"""Runs ``nft`` for what we cannot write ourselves: the words of detectors of other packages.

Our own rules go to the kernel by netlink (nftables_kernel.py). nft is a process of its own: an nft
that crashes, as versions before 1.1.2 do beside sets of later ones, is an error with the signal's
name, nothing is changed by it, and the next sync starts another.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from isthmus.net.child_endings import ending_of, was_killed
from isthmus.programs.node_proxy.kernel.backend import ApplyError

NFT: Final = "nft"
_MAX_SAID_BYTES = 64 * 1024
_MAX_PRINTED_BYTES = 4096
_MAX_RULE_CHARS = 300
# "/dev/stdin:12:3-40: Error: …"; the program names what it reads, the text itself has no names.
_PLACE = re.compile(r"^\S*:(\d+):(\d+)-(\d+): Error: (.*)$", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+){0,2}")
_FAULT = re.compile(r"^(?:Error|netlink): (.*)$", re.MULTILINE)


class CrashError(ApplyError):
    """nft was ended by a signal."""


class NftProgram:
    """Runs ``nft``, each time for at most ``limit_s``."""

    def __init__(self, *, limit_s: float = 300.0) -> None:
        self._limit_s = limit_s

    def apply(self, text: str) -> None:
        """Hand over one transaction.

        Raises:
            ApplyError: it was refused, and nothing changed; or there is no program.
        """
        code, _, said = self._run(["-f", "-"], text.encode())
        if was_killed(code):
            raise CrashError(crash(code))
        if code:
            raise refusal(said, text)

    def lists_sets(self) -> None:
        """Have it read the sets of every table, as it does before it writes.

        Raises:
            ApplyError: it cannot.
        """
        code, _, said = self._run(["--terse", "list", "sets"], b"")
        if was_killed(code):
            raise CrashError(crash(code))
        if code:
            raise ApplyError(f"nft cannot list sets: {_first_fault(said)}")

    def version(self) -> str:
        """What it says of its version.

        Raises:
            ApplyError: there is no such program, or it does not run.
        """
        code, printed, said = self._run(["--version"], b"")
        if code:
            why = ending_of(code) if was_killed(code) else _first_fault(said)
            raise ApplyError(f"nft does not run: {why}")
        return printed.decode(errors="replace")

    def _run(self, words: Sequence[str], text: bytes) -> tuple[int, bytes, str]:
        # What it prints goes to files: however much that is, only the beginning is read.
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
            try:
                done = subprocess.run(
                    [NFT, *words], input=text, stdout=printed, stderr=said,
                    timeout=self._limit_s, check=False, env={**os.environ, "LC_ALL": "C"},
                )  # fmt: skip
            except FileNotFoundError as exc:
                raise ApplyError("there is no program nft on this machine") from exc
            except subprocess.TimeoutExpired as exc:
                raise ApplyError(f"nft did not finish within {self._limit_s:g} s") from exc
            except OSError as exc:
                raise ApplyError(f"nft cannot be run: {exc.strerror}") from exc
            printed.seek(0)
            said.seek(0)
            return (
                done.returncode,
                printed.read(_MAX_PRINTED_BYTES),
                said.read(_MAX_SAID_BYTES).decode(errors="replace"),
            )


def crash(code: int) -> str:
    """What to say of an nft that a signal ended, and what to do."""
    return (
        f"nft was {ending_of(code)}; nft before 1.1.2 crashes where a later"
        " nft made a set in any table: update nft"
    )


def version_of(text: str) -> tuple[int, ...]:
    """The first version that a text has, of up to four numbers; empty for none."""
    found = _VERSION.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def crashes_on_later_sets(version: str) -> bool:
    """Whether this nft dies of sets that nft 1.1.2 and later make; distributions may have fixed it.

    The fix came with 1.1.2, and for those who stay with 1.0.6 with 1.0.6.1.
    """
    found = version_of(version)
    return () < found < (1, 1, 2) and found[:4] != (1, 0, 6, 1)


def refusal(said: str, text: str) -> ApplyError:
    """Read what nft said of a text, and find the line that it was about."""
    placed = _PLACE.search(said)
    if placed is None:
        return ApplyError(f"nft refused the rules: {_first_fault(said)}")
    line, first, last = (int(placed[each]) for each in (1, 2, 3))
    lines = text.split("\n", line)
    rule = lines[line - 1].strip() if len(lines) >= line else ""
    if len(rule) > _MAX_RULE_CHARS:
        around = max(0, first - _MAX_RULE_CHARS // 4)
        rule = f"…{rule[around : min(last, first + _MAX_RULE_CHARS // 2) + _MAX_RULE_CHARS // 4]}…"
    return ApplyError(f"nft refused the rules, {placed[4]}", rule=rule)


def _first_fault(said: str) -> str:
    found = _FAULT.search(said)
    if found:
        return found[1]
    return next((line.strip() for line in said.splitlines() if line.strip()), "it did not say why")
