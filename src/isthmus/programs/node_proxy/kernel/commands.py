"""Runs the programs that program the kernel, with a time limit; and iptables' own programs.

The errors of iptables-restore are searched for the rejected line.
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

#: iptables-restore takes minutes in a large cluster.
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        """Whether a signal ended the program: how far it got is then unknown."""
        return was_killed(self.code)

    @property
    def complaint(self) -> str:
        """The error output on one line, preceded by the signal if there was one."""
        text = " ".join((self.err or self.out).split())
        ending = ending_of(self.code)
        if self.killed:
            return f"{ending}: {text}" if text else ending
        return text or ending


def run(
    argv: Sequence[str], *, input: str = "", timeout_s: float = TIMEOUT_S, keeps_out: bool = True
) -> CommandResult:
    """Run a program to its end; blocks. ``code`` tells whether it failed.

    Without ``keeps_out`` its standard output is discarded.

    Raises:
        ApplyError: the program is missing, may not be run, or was ended after the time limit.
    """
    try:
        # The messages are parsed: run without the user's locale.
        done = subprocess.run(
            list(argv), input=input, stdout=subprocess.PIPE if keeps_out else subprocess.DEVNULL,
            stderr=subprocess.PIPE, encoding="utf-8", errors="replace", timeout=timeout_s,
            check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise ApplyError(f"{argv[0]} timed out after {timeout_s:g} s") from exc
    except OSError as exc:
        raise ApplyError(f"cannot run {argv[0]}: {exc.strerror or exc}") from exc
    return CommandResult(done.returncode, done.stdout or "", done.stderr)


#: How long iptables waits for the xtables lock (seconds; -w of legacy iptables).
LOCK_WAIT_S = 5
#: Restoring thousands of Services takes minutes if the table cannot be listed first.
RESTORE_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0
_MAX_ERROR_CHARS = 2000
_LOCKED = "holding the xtables lock"
_LINE = re.compile(r"\bline:? (\d+)\b")
_NAMED = re.compile(r"(?:Chain|chain|target) ['`]([^'`]+)'")
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?: \((\w+)\))?")
#: The first versions with iptables-restore --wait and with MASQUERADE --random-fully.
_MIN_VERSION = (1, 6, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesPrograms:
    """The names of a family's programs, and a command prefix.

    ``variant`` is ``nft`` or ``legacy``, or empty for the machine's default. ``prefix`` is a
    command that runs another, such as ``ip netns exec NAME``.
    """

    family: IpFamily
    variant: str = ""
    prefix: tuple[str, ...] = ()

    def command(self, suffix: str = "") -> tuple[str, ...]:
        """The start of a command line: ``iptables``, or with a suffix ``iptables-save``."""
        name = "iptables" if self.family is IpFamily.IPV4 else "ip6tables"
        parts = (name, self.variant, suffix)
        return (*self.prefix, "-".join(part for part in parts if part))


@dataclass(slots=True, kw_only=True)
class IptablesCommands:
    """iptables, iptables-save and iptables-restore of one family."""

    programs: IptablesPrograms
    #: Whether iptables keeps its rules in nf_tables; set by ``check``.
    nft: bool = field(default=False, init=False)

    def check(self) -> None:
        """Check that the programs and the kernel work.

        Raises:
            ConfigError: they do not; the message says why.
        """
        command = self.programs.command()
        name = command[-1]
        try:
            printed = run((*command, "--version"), timeout_s=COMMAND_TIMEOUT_S).out
        except ApplyError as error:
            raise ConfigError(f"cannot run {name}: {error}") from error
        found = _VERSION.search(printed)
        if found is None:
            raise ConfigError(f"unknown version of {name}: {printed.strip()[:80]!r}")
        version = tuple(int(part) for part in found.groups()[:3])
        if version < _MIN_VERSION:
            at_least = ".".join(map(str, _MIN_VERSION))
            raise ConfigError(f"{name} has version {found[0]}: at least {at_least} is required")
        self.nft = found[4] == "nf_tables"
        try:
            why = self.failure("-t", "nat", "-S", "POSTROUTING")
        except ApplyError as error:
            why = str(error)
        # A held lock is no error: the sync is retried, but this check is not.
        if why and _LOCKED not in why:
            raise ConfigError(f"{name} cannot read the nat table: {why}")

    def failure(self, *arguments: str) -> str:
        """Run iptables; returns the reason if it failed, or nothing."""
        wait = ("-w", str(LOCK_WAIT_S))
        done = run((*self.programs.command(), *wait, *arguments), timeout_s=COMMAND_TIMEOUT_S)
        return _why(done.code, done.err) if done.code else ""

    def rules(self, table: str, chain: str) -> list[str] | None:
        """The rules of a chain; None if it does not exist.

        Raises:
            ApplyError: the chain cannot be read.
        """
        wait = ("-w", str(LOCK_WAIT_S))
        command = (*self.programs.command(), *wait, "-t", table, "-S", chain)
        done = run(command, timeout_s=COMMAND_TIMEOUT_S)
        if done.code == 0:
            return [line for line in done.out.splitlines() if line.startswith("-A ")]
        # iptables(8): exit code 4 is a resource problem, such as a held lock.
        if done.code == 1:
            return None
        raise ApplyError(f"{self.programs.command()[-1]} failed: {_why(done.code, done.err)}")

    def save(self) -> str:
        """The rules of all tables, as iptables-save prints them.

        Raises:
            ApplyError: iptables-save failed.
        """
        command = self.programs.command("save")
        done = run(command, timeout_s=COMMAND_TIMEOUT_S)
        if done.code:
            raise ApplyError(f"{command[-1]} failed: {_why(done.code, done.err)}")
        return done.out

    def restore(self, text: str) -> None:
        """Run iptables-restore.

        Raises:
            ApplyError: it failed; the table of the rejected rule is unchanged.
        """
        command = self.programs.command("restore")
        arguments = ("-w", str(LOCK_WAIT_S), "--noflush", "--counters")
        # The listing of a table is as large as the input: discard it.
        done = run((*command, *arguments), input=text, timeout_s=RESTORE_TIMEOUT_S, keeps_out=False)
        if done.code:
            error = _why(done.code, done.err)
            raise ApplyError(f"{command[-1]} failed: {error}", rule=rule_meant(done.err, text))


def rule_meant(error: str, text: str) -> str:
    """The line of the input that iptables-restore rejected, or nothing."""
    found = _LINE.search(error)
    if found is None:
        return ""
    lines = text.splitlines()
    number = int(found[1])
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if line != "COMMIT":
        return line
        # A jump to a missing chain is detected at the end, and the error names only the chain.
    named = _NAMED.search(error)
    ends = f"-j {named[1]}" if named else ""
    return next((each for each in lines[:number] if ends and each.endswith(ends)), "")


def _why(code: int, error: str) -> str:
    """Why a program failed: its error output and the signal, if any."""
    text = _short(error)
    if was_killed(code):
        return f"{ending_of(code)}: {text}" if text else ending_of(code)
    return text or ending_of(code)


def _short(error: str) -> str:
    lines = [line.strip() for line in error.splitlines()]
    # On machines with both kinds of rules every command prints this warning.
    telling = [line for line in lines if line and not line.startswith(("#", "Try `"))]
    return "; ".join(telling)[:_MAX_ERROR_CHARS]
