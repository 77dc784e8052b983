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
import struct
import time
from collections.abc import Callable

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.kernel.backend import ApplyError, KernelBackend, SyncReport
from isthmus.programs.node_proxy.kernel.nft_program import CrashError, NftProgram, version_of
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
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesChanges, NftablesRenderer
from isthmus.programs.node_proxy.rules.nftables.text import (
    ExistingTable,
    difference,
    rebuilt,
    renewed,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

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
