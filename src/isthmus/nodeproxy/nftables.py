"""Programs the kernel by nftables: one table per family, with kube-proxy's names and shapes.

What to write is decided in ``isthmus.services.nftables``; how it gets into the kernel is in
nftables_programs.py. A change is one small transaction, and the ruleset is never read for it.
A full sync writes all of it at once. It reads names first, so that what is there already, also by
a kube-proxy that ran before us, stays hooked into the kernel, and clients stay with the endpoints
that they are bound to. Only a table that is not fit for that is replaced.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

from isthmus.errors import ConfigError
from isthmus.nodeproxy.backend import ApplyError, SyncReport
from isthmus.nodeproxy.nftables_looks import has_rules, has_table
from isthmus.nodeproxy.nftables_programs import NftLibrary, NftProgram
from isthmus.services.model import Family, Update
from isthmus.services.nftables.base import hooked
from isthmus.services.nftables.names import (
    AFFINITY,
    MARKER_CHAIN,
    NFT_FAMILY,
    TABLE,
    bridge_table,
)
from isthmus.services.nftables.renderer import Renderer
from isthmus.services.nftables.ruleset import Changes
from isthmus.services.nftables.text import Found, difference, rebuilt, renewed
from isthmus.services.settings import RuleSettings

# Older programs read rules of everybody's tables, and older kernels come with them (kube-proxy's
# own limits, and its way around them).
_OLDEST_NFT, _OLDEST_KERNEL = (1, 0, 1), (5, 13)
_SKIP_KERNEL_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
# Kernels before 6.2 take that long to see that no element names a chain any more.
_STALE_S = 1.0


class NftablesBackend:
    """The rules of one family in nftables.

    ``library`` False runs the program for every change, as where libnftables is not installed.
    """

    def __init__(
        self,
        family: Family,
        *,
        program: NftProgram | None = None,
        library: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.family = family
        self._word = NFT_FAMILY[family]
        self._bridge = bridge_table(family)
        self._program = program or NftProgram()
        self._library: NftLibrary | None = None
        self._try_library = library
        self._clock = clock
        self._renderer: Renderer | None = None
        #: The kernel has what the renderer has.
        self._current = False
        #: Emptied chains, and when they were.
        self._stale: dict[str, float] = {}

    def start(self) -> None:
        """Look whether nft and the kernel can do it.

        Raises:
            ConfigError: they cannot.
        """
        try:
            said = self._program.version()
            has_table(self._word, TABLE)
        except ApplyError as exc:
            raise ConfigError(f"proxy mode nftables: {exc}") from exc
        except OSError as exc:
            raise ConfigError(
                f"proxy mode nftables: the kernel's nf_tables cannot be used: {exc.strerror}"
            ) from exc
        if _version(said) < _OLDEST_NFT:
            raise ConfigError(f"proxy mode nftables needs nft 1.0.1 or later, not {said.strip()}")
        kernel = os.uname().release
        if _version(kernel) < _OLDEST_KERNEL and not os.environ.get(_SKIP_KERNEL_CHECK):
            raise ConfigError(f"proxy mode nftables needs Linux 5.13 or later, not {kernel}")

    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        """Bring the kernel to the view.

        Raises:
            ApplyError: nothing was changed; the next sync is a full one.
        """
        if self._renderer is None or self._renderer.settings != settings:
            self._renderer, self._current = Renderer(settings), False
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

    def intact(self) -> bool:
        """Whether the table, its rules and the bridge's are still there."""
        if self._renderer is None:
            return True
        try:
            bridge = self._renderer.base.bridge
            return has_rules(self._word, TABLE, MARKER_CHAIN) and (
                not bridge or has_rules("bridge", self._bridge, "prerouting")
            )
        except OSError:
            return False

    def cleanup(self) -> list[str]:
        """Remove the table and the bridge's; what could not be removed, in words."""
        self._renderer, self._current = None, False
        self._stale.clear()
        if self._library is not None:
            self._library.close()
            self._library = None
        said = []
        for family, table in ((self._word, TABLE), ("bridge", self._bridge)):
            try:
                if has_table(family, table):
                    self._program.apply(f"delete table {family} {table}\n")
            except (ApplyError, OSError) as exc:
                said.append(f"table {family} {table} of nftables is still there: {exc}")
        return said

    def _write_whole(self, renderer: Renderer) -> None:
        ruleset = renderer.ruleset()
        bridge_there = self._there("bridge", self._bridge)
        found = self._found()
        if found is not None:
            try:
                self._program.apply(renewed(ruleset, found, bridge_there=bridge_there))
            except ApplyError:
                pass  # somebody made it what it cannot be made from: everything anew
            else:
                self._stale = dict.fromkeys(found.stale(ruleset), self._clock())
                return
        self._program.apply(rebuilt(ruleset, bridge_there=bridge_there))
        self._stale = {}

    def _write_changes(self, changes: Changes) -> None:
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
        if self._try_library and self._library is None:
            self._library = NftLibrary.open()
            self._try_library = self._library is not None
        if self._library is None or not self._library.apply(text):
            self._program.apply(text)  # it says which rule

    def _there(self, family: str, table: str) -> bool:
        try:
            return has_table(family, table)
        except OSError as exc:
            raise ApplyError(f"nf_tables cannot be asked: {exc.strerror}") from exc

    def _found(self) -> Found | None:
        """What our table has; None if there is none, or one that cannot be read."""
        if not self._there(self._word, TABLE):
            return None
        try:
            sets = self._listed("sets", "set")
            affinity = {
                each["name"]: each["timeout"]
                for each in sets
                if each["name"].startswith(AFFINITY) and isinstance(each.get("timeout"), int)
            }
            chains = self._listed("chains", "chain")
            return Found(
                chains=frozenset(each["name"] for each in chains),
                heads={each["name"]: _head(each) for each in chains if "hook" in each},
                sets=frozenset(each["name"] for each in sets),
                maps=frozenset(each["name"] for each in self._listed("maps", "map")),
                affinity=affinity,
            )
        except (ApplyError, KeyError):
            return None

    def _listed(self, what: str, kind: str) -> list[dict[str, Any]]:
        try:
            found = json.loads(self._program.listing(what, self._word))["nftables"]
            each = [entry[kind] for entry in found if kind in entry]
            return [one for one in each if one["table"] == TABLE]
        except (ValueError, KeyError, TypeError) as exc:
            raise ApplyError(f"nft listed {what} in no known way") from exc


def _head(chain: dict[str, Any]) -> str:
    head = hooked(chain["type"], chain["hook"], chain["prio"])
    # Ours let pass what no rule is about. One that does not is somebody's.
    return head if chain.get("policy") == "accept" else f"{head} policy {chain.get('policy')} ;"


def _version(text: str) -> tuple[int, ...]:
    found = _VERSION.search(text)
    return tuple(int(part or 0) for part in found.groups()) if found else ()
