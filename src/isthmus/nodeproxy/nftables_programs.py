"""Two ways to hand a transaction to the kernel: the program ``nft``, and the library behind it.

Measured with n Services of ten endpoints each, on two cores, for one that changed:

========  =======  =======================  ===============
Services  program  library, context kept    the kernel's own
========  =======  =======================  ===============
1,000     24 ms    4.5 ms                   0.9 ms
3,000     50 ms    17 ms                    4 ms
========  =======  =======================  ===============

The program pays for its start, and for its socket: closing one waits until the kernel has
destroyed what transactions removed, so that a library context made anew each time takes 19 ms
and 31. What is left above the kernel's own is nft reading the names of chains and sets; talking
netlink without it would save that, and cost a second spelling of every rule. Whole rulesets go
through the program: they need 80 MB at 3,000 Services, which end with it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Final

from isthmus.nodeproxy.backend import ApplyError

NFT: Final = "nft"
_MAX_SAID_BYTES = 64 * 1024
_MAX_LISTED_BYTES = 64 * 1024 * 1024
_MAX_RULE_CHARS = 300
# "/dev/stdin:12:3-40: Error: …"; the program names what it reads, the text itself has no names.
_PLACE = re.compile(r"^\S*:(\d+):(\d+)-(\d+): Error: (.*)$", re.MULTILINE)
_FAULT = re.compile(r"^(?:Error|netlink): (.*)$", re.MULTILINE)


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
        if code:
            raise refusal(said, text)

    def listing(self, *words: str) -> str:
        """What ``nft --json --terse list …`` prints.

        Raises:
            ApplyError: it could not be listed.
        """
        code, printed, said = self._run(["--json", "--terse", "list", *words], b"")
        if code or len(printed) > _MAX_LISTED_BYTES:
            raise ApplyError(f"nft cannot list {' '.join(words)}: {_first_fault(said)}")
        return printed.decode()

    def version(self) -> str:
        """What it says of its version.

        Raises:
            ApplyError: there is no such program, or it does not run.
        """
        code, printed, said = self._run(["--version"], b"")
        if code:
            raise ApplyError(f"nft does not run: {_first_fault(said)}")
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
                printed.read(_MAX_LISTED_BYTES + 1),
                said.read(_MAX_SAID_BYTES).decode(errors="replace"),
            )


class NftLibrary:
    """libnftables with one kept context; it belongs to the namespace of the thread that made it."""

    # Two contexts at once are not promised to be safe.
    _lock = threading.Lock()

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._context = library.nft_ctx_new(0)
        if not self._context:
            raise OSError("libnftables gave no context")
        library.nft_ctx_buffer_output(self._context)
        library.nft_ctx_buffer_error(self._context)

    @classmethod
    def open(cls) -> NftLibrary | None:
        """Load it; None where it is not installed or cannot be used."""
        try:
            library = ctypes.CDLL("libnftables.so.1")
            library.nft_ctx_new.restype = ctypes.c_void_p
            library.nft_ctx_new.argtypes = [ctypes.c_uint32]
            for name in ("nft_ctx_free", "nft_ctx_buffer_output", "nft_ctx_buffer_error"):
                getattr(library, name).argtypes = [ctypes.c_void_p]
            library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
            with cls._lock:
                return cls(library)
        except (OSError, AttributeError):
            return None

    def apply(self, text: str) -> bool:
        """Hand over one transaction; False when it was refused, and nothing changed.

        It does not say where: the program does.
        """
        with self._lock:
            return not self._library.nft_run_cmd_from_buffer(self._context, text.encode())

    def close(self) -> None:
        """Give the context back."""
        with self._lock:
            context, self._context = self._context, None
            if context:
                self._library.nft_ctx_free(context)


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
