"""The ipsets and the iptables rules of ipvs mode in the kernel, by their programs."""

from __future__ import annotations

import re
import shutil

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.commands import (
    CommandResult,
    IptablesCommands,
    IptablesPrograms,
    run,
)
from isthmus.programs.node_proxy.rules.ipvs.rules import CHAINS, FILTER, JUMPS, MORE_CHAINS
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet, undone
from isthmus.programs.node_proxy.rules.model import IpFamily

MIN_IPSET = (6, 0)
_IPSET = "ipset"
_VERSION = re.compile(r"v(\d+)\.(\d+)")
_IN_LINE = re.compile(r"in line (\d+)")


class IpvsSets:
    """Writes, reads and removes the sets of one family."""

    def __init__(self, family: IpFamily) -> None:
        self._names = {each.of(family): each for each in IpSet}

    def version(self) -> tuple[int, int]:
        """The version of the program, and so whether it is there and the kernel has ipsets.

        Raises:
            ApplyError: it is not, or the kernel has none.
        """
        done = run([_IPSET, "--version"])
        found = _VERSION.search(done.out)
        if done.code or found is None:
            raise ApplyError(f"ipset says no version: {done.complaint}")
        _worked(run([_IPSET, "list", "-n"]), "the kernel has no ipsets")
        return int(found[1]), int(found[2])

    def complete(self) -> bool:
        """Whether every set is there.

        Raises:
            ApplyError: they cannot be listed.
        """
        listed = _worked(run([_IPSET, "list", "-n"]), "ipset list")
        return self._names.keys() <= set(listed.split())

    def entries(self) -> dict[IpSet, frozenset[str]]:
        """The entries of every set that there is.

        Raises:
            ApplyError: they cannot be read.
        """
        found: dict[IpSet, set[str]] = {}
        for line in _worked(run([_IPSET, "save"]), "ipset save").splitlines():
            verb, name, *rest = line.split()
            if name not in self._names:
                continue
            entries = found.setdefault(self._names[name], set())
            if verb == "add":
                entries.add(rest[0])
        return {each: frozenset(entries) for each, entries in found.items()}

    def destroy(self) -> list[str]:
        """Remove every set; what could not be removed, in words.

        Raises:
            ApplyError: they cannot be listed.
        """
        there = self.entries()
        wrong = []
        for name in (name for name, each in self._names.items() if each in there):
            done = run([_IPSET, "destroy", name])
            if done.code:
                wrong.append(f"the ipset {name} stays: {done.complaint}")
        return wrong


def restore_sets(lines: list[str]) -> None:
    """Carry out a batch of ``ipset restore``; one that fails is taken back, except created sets.

    Raises:
        ApplyError: a line was not taken; it says which.
    """
    if not lines:
        return
    done = run([_IPSET, "restore", "-exist"], input="\n".join([*lines, ""]))
    if not done.code:
        return
    at = _IN_LINE.search(done.complaint)
    number = int(at[1]) if at else 0
    # Of a program that crashed nobody knows how far it came: what was there before stays.
    if number > 1:
        run([_IPSET, "restore", "-exist"], input="\n".join([*undone(lines[: number - 1]), ""]))
    rule = lines[number - 1] if 0 < number <= len(lines) else ""
    raise ApplyError(f"ipset restore: {done.complaint}", rule=rule)


def _worked(done: CommandResult, what: str) -> str:
    if done.code:
        raise ApplyError(f"{what}: {done.complaint}")
    return done.out


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
            if not self._commands.failure(*place, "-C", jump.source, *jump.args):
                continue
            why = self._commands.failure(*place, "-I", jump.source, *jump.args)
            if why:
                raise ApplyError(f"iptables failed: {why}", rule=" ".join(jump.args))

    def present(self) -> bool:
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
            while not self._commands.failure(*place, "-C", jump.source, *jump.args):
                why = self._commands.failure(*place, "-D", jump.source, *jump.args)
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
