"""Runs the programs that talk to the kernel: in bounded time, their errors read; and iptables' own.

iptables' programs are found by name, and their errors are read for the line that they mean.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from isthmus.errors import ConfigError
from isthmus.net.child_endings import ending_of, was_killed
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.rules.model import IpFamily

#: iptables-restore of a large cluster takes minutes.
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a program ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, as a crash does: what it did until then is not known."""
        return was_killed(self.code)

    @property
    def complaint(self) -> str:
        """What went wrong, in the program's own words, on one line; a crash is named first."""
        said = " ".join((self.err or self.out).split())
        ending = ending_of(self.code)
        if self.killed:
            return f"{ending}: {said}" if said else ending
        return said or ending


def run(
    argv: Sequence[str], *, input: str = "", timeout_s: float = TIMEOUT_S, keeps_out: bool = True
) -> CommandResult:
    """Run a program to its end; blocks. A program that fails is told by ``code``.

    Without ``keeps_out`` nothing that it writes to standard output is kept.

    Raises:
        ApplyError: it is not there, may not be run, or took too long and was ended.
    """
    try:
        # Their messages are read: not in the language of whoever started us.
        done = subprocess.run(
            list(argv), input=input, stdout=subprocess.PIPE if keeps_out else subprocess.DEVNULL,
            stderr=subprocess.PIPE, encoding="utf-8", errors="replace", timeout=timeout_s,
            check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise ApplyError(f"{argv[0]} took longer than {timeout_s:g} s") from exc
    except OSError as exc:
        raise ApplyError(f"{argv[0]} cannot be run: {exc.strerror or exc}") from exc
    return CommandResult(done.returncode, done.stdout or "", done.stderr)


#: How long a change may wait for others that change rules (seconds, by -w of legacy iptables).
LOCK_WAIT_S = 5
#: A restore of many thousand Services takes minutes where the table cannot be listed first.
RESTORE_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0
_MAX_ERROR_CHARS = 2000
_LOCKED = "holding the xtables lock"
_LINE = re.compile(r"\bline:? (\d+)\b")
_NAMED = re.compile(r"(?:Chain|chain|target) ['`]([^'`]+)'")
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?: \((\w+)\))?")
#: The first that waits for others in iptables-restore, and that masquerades --random-fully.
_MIN_VERSION = (1, 6, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesPrograms:
    """The names of a family's programs, and what to put before each.

    ``variant`` is ``nft`` or ``legacy``, or empty for the one that the machine has chosen.
    ``prefix`` is a command that runs another, as ``ip netns exec NAME`` does.
    """

    family: IpFamily
    variant: str = ""
    prefix: tuple[str, ...] = ()

    def command(self, suffix: str = "") -> tuple[str, ...]:
        """The words that begin a command: ``iptables``, or with a suffix ``iptables-save``."""
        name = "iptables" if self.family is IpFamily.IPV4 else "ip6tables"
        parts = (name, self.variant, suffix)
        return (*self.prefix, "-".join(part for part in parts if part))


@dataclass(slots=True, kw_only=True)
class IptablesCommands:
    """iptables, iptables-save and iptables-restore of one family."""

    programs: IptablesPrograms
    #: Rules are kept by nf_tables; known once ``check`` was called.
    nft: bool = field(default=False, init=False)

    def check(self) -> None:
        """Look whether the programs and the kernel can do it.

        Raises:
            ConfigError: they cannot, and why.
        """
        command = self.programs.command()
        name = command[-1]
        try:
            told = run((*command, "--version"), timeout_s=COMMAND_TIMEOUT_S).out
        except ApplyError as error:
            raise ConfigError(f"cannot run {name}: {error}") from error
        found = _VERSION.search(told)
        if found is None:
            raise ConfigError(f"cannot tell the version of {name} from {told.strip()[:80]!r}")
        version = tuple(int(part) for part in found.groups()[:3])
        if version < _MIN_VERSION:
            at_least = ".".join(map(str, _MIN_VERSION))
            raise ConfigError(f"{name} is {found[0]}; version {at_least} is the oldest that works")
        self.nft = found[4] == "nf_tables"
        try:
            why = self.failure("-t", "nat", "-S", "POSTROUTING")
        except ApplyError as error:
            why = str(error)
        # A lock is somebody's for a moment: a sync is tried again, and this look is not.
        if why and _LOCKED not in why:
            raise ConfigError(f"{name} cannot read the table nat: {why}")

    def failure(self, *arguments: str) -> str:
        """Run iptables; why it failed, or nothing."""
        wait = ("-w", str(LOCK_WAIT_S))
        done = run((*self.programs.command(), *wait, *arguments), timeout_s=COMMAND_TIMEOUT_S)
        return _why(done.code, done.err) if done.code else ""

    def rules(self, table: str, chain: str) -> list[str] | None:
        """The rules of a chain; None if there is no such chain.

        Raises:
            ApplyError: nobody can tell.
        """
        wait = ("-w", str(LOCK_WAIT_S))
        command = (*self.programs.command(), *wait, "-t", table, "-S", chain)
        done = run(command, timeout_s=COMMAND_TIMEOUT_S)
        if done.code == 0:
            return [line for line in done.out.splitlines() if line.startswith("-A ")]
        # iptables(8): 4 is a problem with resources, as a lock that another holds.
        if done.code == 1:
            return None
        raise ApplyError(f"{self.programs.command()[-1]} failed: {_why(done.code, done.err)}")

    def save(self) -> str:
        """What is in the kernel, in all tables.

        Raises:
            ApplyError: iptables-save failed.
        """
        command = self.programs.command("save")
        done = run(command, timeout_s=COMMAND_TIMEOUT_S)
        if done.code:
            raise ApplyError(f"{command[-1]} failed: {_why(done.code, done.err)}")
        return done.out

    def restore(self, text: str) -> None:
        """Have iptables-restore write.

        Raises:
            ApplyError: it did not; the table that the rule is of is as it was.
        """
        command = self.programs.command("restore")
        arguments = ("-w", str(LOCK_WAIT_S), "--noflush", "--counters")
        # A listed table is as large as what we write: it is not kept.
        done = run((*command, *arguments), input=text, timeout_s=RESTORE_TIMEOUT_S, keeps_out=False)
        if done.code:
            error = _why(done.code, done.err)
            raise ApplyError(f"{command[-1]} failed: {error}", rule=rule_meant(done.err, text))


def rule_meant(error: str, text: str) -> str:
    """The line of the input that iptables-restore complained of, or nothing."""
    found = _LINE.search(error)
    if found is None:
        return ""
    lines = text.splitlines()
    number = int(found[1])
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if line != "COMMIT":
        return line
    # A jump to a chain that is not there is noticed at the end only, and then by its name.
    named = _NAMED.search(error)
    ends = f"-j {named[1]}" if named else ""
    return next((each for each in lines[:number] if ends and each.endswith(ends)), "")


def _why(code: int, error: str) -> str:
    """Why a program failed: in its own words, and by which signal if one ended it."""
    said = _short(error)
    if was_killed(code):
        return f"{ending_of(code)}: {said}" if said else ending_of(code)
    return said or ending_of(code)


def _short(error: str) -> str:
    lines = [line.strip() for line in error.splitlines()]
    # The warning comes with each command on a machine that has rules of both kinds.
    telling = [line for line in lines if line and not line.startswith(("#", "Try `"))]
    return "; ".join(telling)[:_MAX_ERROR_CHARS]
