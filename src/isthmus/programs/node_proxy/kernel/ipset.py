"""The ipsets of ipvs mode in the kernel, by ``ipset restore`` and ``ipset save``."""

from __future__ import annotations

import re

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.commands import run
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet, undone
from isthmus.programs.node_proxy.rules.model import IpFamily

MIN_VERSION = (6, 0)
_IPSET = "ipset"
_VERSION = re.compile(r"v(\d+)\.(\d+)")
_IN_LINE = re.compile(r"in line (\d+)")


def version() -> tuple[int, int]:
    """The version of the program, and so whether it is there and the kernel has ipsets.

    Raises:
        ApplyError: it is not, or the kernel has none.
    """
    done = run([_IPSET, "--version"])
    found = _VERSION.search(done.out)
    if done.code or found is None:
        raise ApplyError(f"ipset says no version: {done.complaint}")
    listed = run([_IPSET, "list", "-n"])
    if listed.code:
        raise ApplyError(f"the kernel has no ipsets: {listed.complaint}")
    return int(found[1]), int(found[2])


def complete(family: IpFamily) -> bool:
    """Whether every set of ours is there.

    Raises:
        ApplyError: they cannot be listed.
    """
    done = run([_IPSET, "list", "-n"])
    if done.code:
        raise ApplyError(f"ipset list: {done.complaint}")
    return {each.of(family) for each in IpSet} <= set(done.out.split())


def present(family: IpFamily) -> dict[IpSet, frozenset[str]]:
    """The entries of every set of ours that there is.

    Raises:
        ApplyError: they cannot be read.
    """
    done = run([_IPSET, "save"])
    if done.code:
        raise ApplyError(f"ipset save: {done.complaint}")
    names = {each.of(family): each for each in IpSet}
    found: dict[IpSet, set[str]] = {}
    for line in done.out.splitlines():
        verb, name, *rest = line.split()
        if name not in names:
            continue
        entries = found.setdefault(names[name], set())
        if verb == "add":
            entries.add(rest[0])
    return {each: frozenset(entries) for each, entries in found.items()}


def restore(lines: list[str]) -> None:
    """Carry out a batch; one that fails is taken back, but for sets that it created.

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


def destroy(family: IpFamily) -> list[str]:
    """Remove every set of ours; what could not be removed, in words.

    Raises:
        ApplyError: they cannot be listed.
    """
    wrong = []
    for each in present(family):
        done = run([_IPSET, "destroy", each.of(family)])
        if done.code:
            wrong.append(f"the ipset {each.of(family)} stays: {done.complaint}")
    return wrong
