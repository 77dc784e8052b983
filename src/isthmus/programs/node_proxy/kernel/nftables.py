"""Applies nftables mode: one table per family, with kube-proxy's names and structure.

``isthmus.programs.node_proxy.rules.nftables`` renders; nftables_kernel.py talks to the kernel. A
change is one small transaction that reads no rules; nft is run only for matches of other packages'
detectors that the node proxy cannot compile. A full sync writes everything at once. It first reads
the names in an existing table, also kube-proxy's, so that base chains stay hooked and clients keep
their endpoints. A table that is unfit for that is replaced.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.net.child_endings import ending_of, was_killed
from isthmus.programs.node_proxy.kernel.backend import ApplyError, KernelBackend, SyncReport
from isthmus.programs.node_proxy.kernel.nftables_kernel import (
    NftTransactions,
    found_in,
    has_rules,
    has_table,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, Update
from isthmus.programs.node_proxy.rules.nftables.base import (
    MARKER_CHAIN,
    NFT_FAMILY,
    TABLE,
    bridge_table,
)
from isthmus.programs.node_proxy.rules.nftables.compiling import (
    ForeignRuleError,
    RuleValueError,
    compiled,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import (
    ExistingTable,
    NftablesChanges,
    NftablesRenderer,
    difference,
    rebuilt,
    renewed,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

NFT: Final = "nft"
_MAX_SAID_BYTES = 64 * 1024
_MAX_PRINTED_BYTES = 4096
_MAX_RULE_CHARS = 300
# "/dev/stdin:12:3-40: Error: …"; the first field is the input that nft reads.
_PLACE = re.compile(r"^\S*:(\d+):(\d+)-(\d+): Error: (.*)$", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+){0,2}")
_FAULT = re.compile(r"^(?:Error|netlink): (.*)$", re.MULTILINE)


class CrashError(ApplyError):
    """nft was ended by a signal."""


class NftProgram:
    """Runs ``nft`` with a time limit of ``limit_s``."""

    def __init__(self, *, limit_s: float = 300.0) -> None:
        self._limit_s = limit_s

    def apply(self, text: str) -> None:
        """Apply one transaction.

        Raises:
            ApplyError: nft is missing, or rejected the transaction; nothing changed.
        """
        code, _, errors = self._run(["-f", "-"], text.encode())
        if was_killed(code):
            raise CrashError(crash(code))
        if code:
            raise refusal(errors, text)

    def lists_sets(self) -> None:
        """Let nft read the sets of every table, as it does before it writes.

        Raises:
            ApplyError: it failed.
        """
        code, _, errors = self._run(["--terse", "list", "sets"], b"")
        if was_killed(code):
            raise CrashError(crash(code))
        if code:
            raise ApplyError(f"nft cannot list sets: {_first_fault(errors)}")

    def version(self) -> str:
        """What nft prints as its version.

        Raises:
            ApplyError: nft is missing or does not run.
        """
        code, printed, errors = self._run(["--version"], b"")
        if code:
            why = ending_of(code) if was_killed(code) else _first_fault(errors)
            raise ApplyError(f"cannot run nft: {why}")
        return printed.decode(errors="replace")

    def _run(self, words: Sequence[str], text: bytes) -> tuple[int, bytes, str]:
        # The output goes to files: however long it is, only the beginning is read.
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    [NFT, *words], input=text, stdout=printed, stderr=errors,
                    timeout=self._limit_s, check=False, env={**os.environ, "LC_ALL": "C"},
                )  # fmt: skip
            except FileNotFoundError as exc:
                raise ApplyError("nft is not installed") from exc
            except subprocess.TimeoutExpired as exc:
                raise ApplyError(f"nft timed out after {self._limit_s:g} s") from exc
            except OSError as exc:
                raise ApplyError(f"cannot run nft: {exc.strerror}") from exc
            printed.seek(0)
            errors.seek(0)
            return (
                done.returncode,
                printed.read(_MAX_PRINTED_BYTES),
                errors.read(_MAX_SAID_BYTES).decode(errors="replace"),
            )


def crash(code: int) -> str:
    """The error for an nft that a signal ended, and the remedy."""
    return (
        f"nft was {ending_of(code)}; nft before 1.1.2 crashes if a newer"
        " nft made a set in any table: update nft"
    )


def version_of(text: str) -> tuple[int, ...]:
    """The first version that a text has, of up to four numbers; empty for none."""
    found = _VERSION.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def crashes_on_later_sets(version: str) -> bool:
    """Whether this nft crashes on sets made by nft 1.1.2 or later; distributions may have fixes.

    The fix is in 1.1.2 and, for the 1.0.6 branch, in 1.0.6.1.
    """
    found = version_of(version)
    return () < found < (1, 1, 2) and found[:4] != (1, 0, 6, 1)


def refusal(errors: str, text: str) -> ApplyError:
    """Parse nft's error output for a text, and find the rejected line."""
    placed = _PLACE.search(errors)
    if placed is None:
        return ApplyError(f"nft rejected the rules: {_first_fault(errors)}")
    line, first, last = (int(placed[each]) for each in (1, 2, 3))
    lines = text.split("\n", line)
    rule = lines[line - 1].strip() if len(lines) >= line else ""
    if len(rule) > _MAX_RULE_CHARS:
        around = max(0, first - _MAX_RULE_CHARS // 4)
        rule = f"…{rule[around : min(last, first + _MAX_RULE_CHARS // 2) + _MAX_RULE_CHARS // 4]}…"
    return ApplyError(f"nft rejected the rules: {placed[4]}", rule=rule)


def _first_fault(errors: str) -> str:
    found = _FAULT.search(errors)
    if found:
        return found[1]
    return next((line.strip() for line in errors.splitlines() if line.strip()), "no reason given")


# Older nft versions read the rules of all tables, and older kernels come with them (kube-proxy's
# minimum, and its variable to skip the check).
_OLDEST_NFT, _OLDEST_KERNEL = (1, 0, 1), (5, 13)
_SKIP_KERNEL_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"
# Kernels before 6.2 take that long to notice that no element refers to a chain any more.
_STALE_S = 1.0


class NftablesBackend(KernelBackend):
    """The rules of one family in nftables.

    ``program`` is used for rules that the compiler does not support; ``always_nft`` for all.
    """

    def __init__(
        self,
        family: IpFamily,
        *,
        program: NftProgram | None = None,
        always_nft: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.family = family
        self._word = NFT_FAMILY[family]
        self._bridge = bridge_table(family)
        self._program = program or NftProgram()
        self._program_fits = False
        self._always_nft = always_nft
        self._transactions: NftTransactions | None = None
        self._clock = clock
        self._renderer: NftablesRenderer | None = None
        #: Whether the kernel has the renderer's ruleset.
        self._current = False
        #: Flushed chains to be deleted, with the time of flushing.
        self._stale: dict[str, float] = {}

    @override
    def start(self) -> None:
        try:
            has_table(self._word, TABLE)
        except OSError as exc:
            raise ConfigError(
                f"--proxy-mode=nftables: cannot use the kernel's nf_tables: {exc.strerror}"
            ) from exc
        kernel = os.uname().release
        if version_of(kernel) < _OLDEST_KERNEL and not os.environ.get(_SKIP_KERNEL_CHECK):
            raise ConfigError(
                f"--proxy-mode=nftables: Linux 5.13 or later is required, not {kernel}"
            )

    @override
    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        if self._renderer is None or self._renderer.settings != settings:
            self._renderer, self._current = NftablesRenderer(settings), False
        renderer = self._renderer
        changes = renderer.advance(update.view)
        full = full or not self._current
        self._current = False
        if full:
            self._write_whole(renderer)
        else:
            self._write_changes(changes)
        self._current = True
        return SyncReport(
            full=full,
            rules={TABLE: renderer.rules},
            written={TABLE: renderer.rules if full else changes.rules},
            no_local_endpoints={each: renderer.no_local[each] for each in ("internal", "external")},
        )

    @override
    def intact(self) -> bool:
        if self._renderer is None:
            return True
        try:
            bridge = self._renderer.base.bridge
            return has_rules(self._word, TABLE, MARKER_CHAIN) and (
                not bridge or has_rules("bridge", self._bridge, "prerouting")
            )
        except OSError:
            return False

    @override
    def cleanup(self) -> list[str]:
        self._renderer, self._current = None, False
        self._stale.clear()
        errors = []
        for family, table in ((self._word, TABLE), ("bridge", self._bridge)):
            try:
                if has_table(family, table):
                    self._apply(f"delete table {family} {table}\n")
            except (ApplyError, OSError) as exc:
                errors.append(f"cannot delete nftables table {family} {table}: {exc}")
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None
        return errors

    def _write_whole(self, renderer: NftablesRenderer) -> None:
        ruleset = renderer.ruleset()
        bridge_there = self._there("bridge", self._bridge)
        found = self._found()
        if found is not None:
            try:
                self._apply(renewed(ruleset, found, bridge_there=bridge_there))
            except CrashError:
                raise
            except ApplyError:
                pass  # the table has the wrong types or hooks: replace it
            else:
                self._stale = dict.fromkeys(found.stale(ruleset), self._clock())
                return
        self._apply(rebuilt(ruleset, bridge_there=bridge_there))
        self._stale = {}

    def _write_changes(self, changes: NftablesChanges) -> None:
        now = self._clock()
        for name in changes.chains:
            self._stale.pop(name, None)
        due = [name for name, since in self._stale.items() if now - since >= _STALE_S]
        if not changes and not due:
            return
        try:
            self._apply(difference(self.family, changes, due))
        except ApplyError:
            if not due:
                raise
            # A foreign rule may refer to one of these chains; delete them later.
            self._apply(difference(self.family, changes))
            due = []
        for name in due:
            del self._stale[name]
        self._stale |= dict.fromkeys(changes.chains_removed, now)

    def _apply(self, text: str) -> None:
        if not text:
            return
        if self._always_nft:
            self._apply_by_nft(text)
            return
        try:
            batch = compiled(text)
        except ForeignRuleError:
            self._apply_by_nft(text)
            return
        except RuleValueError as exc:
            raise ApplyError(f"invalid rules: {exc}", rule=exc.rule) from exc
        if self._transactions is None:
            try:
                self._transactions = NftTransactions()
            except OSError as exc:
                raise ApplyError(f"cannot use the kernel's netfilter: {exc.strerror}") from exc
        self._transactions.apply(batch, text)

    def _apply_by_nft(self, text: str) -> None:
        if not self._program_fits:
            version = self._program.version()
            if version_of(version) < _OLDEST_NFT:
                raise ApplyError(f"these rules require nft 1.0.1 or later, not {version.strip()}")
            self._program_fits = True
        self._program.apply(text)

    def _there(self, family: str, table: str) -> bool:
        try:
            return has_table(family, table)
        except OSError as exc:
            raise ApplyError(f"cannot query nf_tables: {exc.strerror}") from exc

    def _found(self) -> ExistingTable | None:
        """The contents of the node proxy's table; None if it is missing or unreadable."""
        if not self._there(self._word, TABLE):
            return None
        try:
            return found_in(self._word, TABLE)
        except (OSError, KeyError, struct.error):
            return None
