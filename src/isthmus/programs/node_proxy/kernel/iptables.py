"""Programs the kernel by iptables-restore, as kube-proxy's mode ``iptables`` does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from isthmus.programs.node_proxy.kernel.backend import ApplyError, SyncReport
from isthmus.programs.node_proxy.kernel.iptables_commands import IptablesCommands, IptablesPrograms
from isthmus.programs.node_proxy.kernel.iptables_writing import restore_input
from isthmus.programs.node_proxy.kernel.nfacct import ensure_counters
from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.iptables.base import COUNTERS, Jump
from isthmus.programs.node_proxy.rules.iptables.ruleset import (
    OWN_CHAINS,
    IptablesRenderer,
    IptablesRendering,
    IptablesRuleset,
    TableWrite,
)
from isthmus.programs.node_proxy.rules.iptables.saved import (
    SavedRules,
    SavedTable,
    cleanup_writes,
    full_writes,
    parse_saved,
    put_back,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings

logger = logging.getLogger(__name__)

# By these chains one sees that somebody flushed a table: the chain is gone, or its rules are.
_WITNESSES = (
    ("mangle", base.CANARY, 0),
    ("filter", base.FORWARD, 2),
    ("nat", base.POSTROUTING, 3),
)


class IptablesBackend:
    """Programs one family with iptables; see ``Backend``.

    A full sync reads what is there, writes everything and removes what is stale; any other one
    writes only chains that changed since the last, and reads nothing.
    """

    def __init__(
        self,
        family: IpFamily,
        *,
        variant: str = "",
        prefix: Sequence[str] = (),
        ensure_accounting: Callable[[Sequence[str]], None] = ensure_counters,
    ) -> None:
        self.family = family
        programs = IptablesPrograms(family=family, variant=variant, prefix=tuple(prefix))
        self._commands = IptablesCommands(programs=programs)
        self._ensure_accounting = ensure_accounting
        self._renderer: IptablesRenderer | None = None
        self._written = False
        self._may_list = True

    def start(self) -> None:
        """Look whether programs and kernel can do it.

        Raises:
            ConfigError: they cannot, and in one sentence why.
        """
        self._commands.check()

    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        """Bring the kernel to the view.

        Raises:
            ApplyError: nothing was changed; the next sync is a full one.
        """
        renderer = self._renderer
        if renderer is None or renderer.settings != settings:
            renderer, full = IptablesRenderer(settings), True
        full = full or not self._written
        self._renderer = renderer
        rendering = renderer.render(update.view)
        self._written = False
        written = self._write_all(rendering.ruleset) if full else self._write_change(rendering)
        self._written = True
        return SyncReport(
            full=full,
            rules=rendering.ruleset.counts(),
            written={write.table: write.count for write in written if write.table != "mangle"},
            no_local_endpoints=rendering.ruleset.no_local_endpoints(),
        )

    def intact(self) -> bool:
        """Whether what was written once is still there; nobody flushed it."""
        if not self._written:
            return True
        try:
            for table, chain, least in _WITNESSES:
                rules = self._commands.rules(table, chain)
                if rules is None or len(rules) < least:
                    return False
        except ApplyError as error:
            # Busy, or out of memory: no reason to write everything again.
            logger.warning("cannot look for a flush of the rules: %s", error)
        return True

    def cleanup(self) -> list[str]:
        """Remove all that is ours, from any run; what could not be removed, in words."""
        self._renderer, self._written = None, False
        try:
            saved = self._saved()
            writes, kept = cleanup_writes(saved)
        except ApplyError as error:
            return [str(error)]
        left = list(kept)
        for write in writes:
            try:
                self._restore((write,), there=saved.table("nat"))
            except ApplyError as error:
                left.append(f"rules in {write.table} stay: {error}")
        left += [
            f"rules in {table} stay: the table has rules of nft's own, which iptables cannot list"
            for table in sorted(saved.incompatible)
        ]
        return left

    def _write_all(self, ruleset: IptablesRuleset) -> tuple[TableWrite, ...]:
        if ruleset.settings.accounting:
            self._ensure_accounting(COUNTERS)
        saved = self._saved()
        writes = full_writes(ruleset, saved, self._has_jump)
        try:
            self._restore(writes, there=saved.table("nat"))
        except ApplyError:
            self._put_back(saved)
            raise
        return writes

    def _write_change(self, rendering: IptablesRendering) -> tuple[TableWrite, ...]:
        writes = (rendering.filter, rendering.nat)
        there = SavedTable(count=rendering.ruleset.counts()["nat"])
        try:
            self._restore(writes, there=there)
        except ApplyError:
            if rendering.filter and rendering.nat:
                self._try((rendering.filter_back,))
            raise
        return writes

    def _restore(self, writes: Sequence[TableWrite], *, there: SavedTable) -> None:
        may_list = self._commands.nft and self._may_list
        text = restore_input(writes, there=there, may_list=may_list)
        if text:
            self._commands.restore(text)

    def _put_back(self, before: SavedRules) -> None:
        """Undo what was written before something failed: each table is a transaction."""
        try:
            now = parse_saved(self._commands.save())
        except ApplyError as error:
            logger.warning("cannot look what the failed sync left: %s", error)
            return
        self._try([put_back(name, before.table(name), now.table(name)) for name in OWN_CHAINS])

    def _try(self, writes: Sequence[TableWrite]) -> None:
        try:
            self._restore(writes, there=SavedTable())
        except ApplyError as error:
            logger.warning("cannot undo all that the failed sync did: %s", error)

    def _saved(self) -> SavedRules:
        saved = parse_saved(self._commands.save())
        # Listing a table that iptables has no words for would be an error.
        self._may_list = "nat" not in saved.incompatible
        return saved

    def _has_jump(self, jump: Jump) -> bool:
        return not self._commands.failure("-t", jump.table, "-C", jump.source, *jump.args)
