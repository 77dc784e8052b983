"""The iptables part of ipvs mode in the kernel: its chains and the jumps to them."""

from __future__ import annotations

import shutil

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.iptables_commands import IptablesCommands, IptablesPrograms
from isthmus.programs.node_proxy.rules.ipvs.rules import CHAINS, FILTER, JUMPS, MORE_CHAINS
from isthmus.programs.node_proxy.rules.model import IpFamily


class IpvsRules:
    """Writes and removes the rules of one family."""

    def __init__(self, family: IpFamily) -> None:
        self._commands = IptablesCommands(programs=IptablesPrograms(family=family))

    def check(self) -> None:
        """Look whether iptables can be used here.

        Raises:
            ConfigError: it cannot.
        """
        self._commands.check()

    def restore(self, text: str) -> None:
        """Rewrite the chains, all or none.

        Raises:
            ApplyError: nothing was changed; it says which rule was not taken.
        """
        self._commands.restore(text)

    def ensure_jumps(self) -> None:
        """Put the jumps at the front of the kernel's chains, unless they are somewhere there.

        Raises:
            ApplyError: one could not be put.
        """
        for jump in JUMPS:
            place = ("-t", jump.table)
            if not self._commands.failure(*place, "-C", jump.source, *jump.rule):
                continue
            why = self._commands.failure(*place, "-I", jump.source, *jump.rule)
            if why:
                raise ApplyError(f"iptables failed: {why}", rule=" ".join(jump.rule))

    def present(self) -> bool:
        """Whether nobody flushed them."""
        return bool(self._commands.rules("filter", FILTER))

    def remove(self) -> list[str]:
        """Remove jumps and chains, if there are any; what could not be removed, in words.

        Raises:
            ApplyError: nobody can tell what there is.
        """
        # The one chain that no other mode has tells whether ipvs mode was here.
        there = shutil.which(self._commands.programs.command()[-1]) is not None
        if not there or self._commands.rules("filter", FILTER) is None:
            return []
        wrong = []
        for jump in JUMPS:
            place = ("-t", jump.table)
            while not self._commands.failure(*place, "-C", jump.source, *jump.rule):
                why = self._commands.failure(*place, "-D", jump.source, *jump.rule)
                if why:
                    wrong.append(f"a jump from {jump.source} stays: {why}")
                    break
        chains = [
            (table, chain)
            for table in CHAINS
            # That chain goes last, so that who stops half way comes back to the rest.
            for chain in (*MORE_CHAINS[table], *sorted(CHAINS[table], key=FILTER.__eq__))
            if self._commands.rules(table, chain) is not None
        ]
        # Chains lead into each other: all are emptied before any is removed.
        for verb in ("-F", "-X"):
            for table, chain in chains:
                why = self._commands.failure("-t", table, verb, chain)
                if why:
                    wrong.append(f"the chain {chain} of {table} stays: {why}")
        return wrong
