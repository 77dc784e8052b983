"""Programs the kernel by nftables: one table per family, with kube-proxy's names and shapes.

What to write is decided in ``isthmus.programs.node_proxy.rules.nftables``; how it gets into the
kernel is in nftables_kernel.py. A change is one small transaction, and nobody's rules are read for
it; nft runs only for what a detector of another package says in words that we do not know. A full
sync writes everything at once. It reads names first, so that what is there already, also by a
kube-proxy that ran before us, stays hooked into the kernel, and clients stay with the endpoints
that they are bound to. Only a table that is not fit for that is replaced.
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


# Older programs read rules of everybody's tables, and older kernels come with them (kube-proxy's
# own limits, and its way around them).
_OLDEST_NFT, _OLDEST_KERNEL = (1, 0, 1), (5, 13)
_SKIP_KERNEL_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"
# Kernels before 6.2 take that long to see that no element names a chain any more.
_STALE_S = 1.0


class NftablesBackend(KernelBackend):
    """The rules of one family in nftables.

    ``program`` is for what we cannot write ourselves; ``always_nft`` has it do everything.
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
        #: The kernel has what the renderer has.
        self._current = False
        #: Emptied chains, and when they were.
        self._stale: dict[str, float] = {}

    @override
    def start(self) -> None:
        try:
            has_table(self._word, TABLE)
        except OSError as exc:
            raise ConfigError(
                f"proxy mode nftables: the kernel's nf_tables cannot be used: {exc.strerror}"
            ) from exc
        kernel = os.uname().release
        if version_of(kernel) < _OLDEST_KERNEL and not os.environ.get(_SKIP_KERNEL_CHECK):
            raise ConfigError(f"proxy mode nftables needs Linux 5.13 or later, not {kernel}")

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
        said = []
        for family, table in ((self._word, TABLE), ("bridge", self._bridge)):
            try:
                if has_table(family, table):
                    self._apply(f"delete table {family} {table}\n")
            except (ApplyError, OSError) as exc:
                said.append(f"table {family} {table} of nftables is still there: {exc}")
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None
        return said

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
                pass  # somebody made it what it cannot be made from: everything anew
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
            # Perhaps one of those is in use again by somebody's hand; they can wait.
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
            raise ApplyError(f"these rules are not valid, {exc}", rule=exc.rule) from exc
        if self._transactions is None:
            try:
                self._transactions = NftTransactions()
            except OSError as exc:
                raise ApplyError(f"the kernel's netfilter cannot be used: {exc.strerror}") from exc
        self._transactions.apply(batch, text)

    def _apply_by_nft(self, text: str) -> None:
        if not self._program_fits:
            said = self._program.version()
            if version_of(said) < _OLDEST_NFT:
                raise ApplyError(f"these rules need nft 1.0.1 or later, not {said.strip()}")
            self._program_fits = True
        self._program.apply(text)

    def _there(self, family: str, table: str) -> bool:
        try:
            return has_table(family, table)
        except OSError as exc:
            raise ApplyError(f"nf_tables cannot be asked: {exc.strerror}") from exc

    def _found(self) -> ExistingTable | None:
        """What our table has; None if there is none, or one that cannot be read."""
        if not self._there(self._word, TABLE):
            return None
        try:
            return found_in(self._word, TABLE)
        except (OSError, KeyError, struct.error):
            return None
