"""The firewall rule that keeps other machines from an address: packets from uplinks are dropped.

An address on a dummy interface or on lo is reachable for every neighbour that routes it here,
whatever its scope. The rule runs where packets for this host arrive, after any translation of
service addresses and before other filters, which cannot overrule a drop. With nftables it is in
its own table, which nft lists and this module writes by netlink: nft itself reads the sets of
every table of the host before it writes to one, and crashes if a newer nft created one of them
(programs/node_proxy/kernel/nftables_kernel.py). Without nft, iptables is used, in a separate chain.
There is one rule per address, shared by the agents of a host. Input for iptables contains only
addresses and checked names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from isthmus.errors import ConfigError
from isthmus.net.child_endings import ending_of, was_killed
from isthmus.net.rules_nft_encoding import (
    APPEND,
    CREATE,
    FAMILIES,
    HOOKS,
    VERDICT,
    Compare,
    NftBatch,
    NftMessage,
    attribute,
    compare,
    element,
    element_lists,
    immediate,
    lookup,
    meta,
    name,
    nested,
    number,
    payload,
    user_data,
    verdict,
)
from isthmus.net.settings_bind import check_interface

TOOL_TIMEOUT_S = 15.0
_BEFORE_FILTERS = -10
_COMMENT = "isthmus agent"
_ELEMENTS = re.compile(r"elements\s*=\s*\{([^}]*)\}")
_NAME = re.compile(r'"([^"]*)"')
_CHAIN, _SET, _SET_ID = "input", "uplinks", 1
# linux/netfilter.h and linux/netfilter/nf_tables.h
_NETLINK_NETFILTER = 12
_INET = 1
_ACCEPT, _DROP = 1, 0
_META_IIFNAME, _META_NFPROTO = 6, 15
_NETWORK_HEADER = 1
_NAME_BYTES = 16
# The data type that nft lists as "ifname", and the byte order of its keys, the host's.
_IFNAME_TYPE, _HOST_ORDER = 41, user_data((0, b"\1\0\0\0"))
# linux/netlink.h
_ERROR = 2
_ANSWER = struct.Struct("=IHHIIi")
_READ_BYTES = 64 * 1024
_LIMIT_S = 15.0


class UplinkGuard(Protocol):
    """The rule for one address in one firewall; every method blocks for a short time."""

    def keep(self, uplinks: Iterable[str], *, exact: bool) -> bool:
        """Create the rule if it is missing; returns whether any part of it was.

        Other agents that share the address may know more uplinks, which stay unless ``exact``.

        Raises:
            ConfigError: the firewall refuses.
        """

    def present(self) -> bool:
        """Whether the rule exists; needs the same privilege as creating it."""

    def remove(self) -> bool:
        """Remove the rule if it exists; returns whether it did."""


def guard(
    address: IPv4Address | IPv6Address, uplinks: Iterable[str], *, exact: bool
) -> UplinkGuard:
    """Create the rule with the first firewall that works here; see UplinkGuard.keep.

    Raises:
        ConfigError: none works; the message has the error of each.
    """
    wanted = list(uplinks)
    refusals = []
    for candidate in _candidates(address):
        try:
            candidate.keep(wanted, exact=exact)
        except ConfigError as error:
            refusals.append(str(error))
        else:
            return candidate
    said = "; ".join(refusals) or "neither nft nor iptables is in the PATH"
    raise ConfigError(
        f"cannot keep other machines from {address} ({said}); with --uplink-interface=none the"
        " agent leaves that to your own firewall"
    )


def remove_guards(address: IPv4Address | IPv6Address) -> bool:
    """Remove the rule from every firewall here; returns whether there was one."""
    return any([candidate.remove() for candidate in _candidates(address)])


def has_guard(address: IPv4Address | IPv6Address) -> bool:
    """Whether a firewall here has the rule; changes nothing, but needs privilege."""
    return any(candidate.present() for candidate in _candidates(address))


def _candidates(address: IPv4Address | IPv6Address) -> list[UplinkGuard]:
    found: list[UplinkGuard] = []
    if shutil.which("nft"):
        found.append(NftGuard(address))
    if shutil.which(_tool(address)) and shutil.which(f"{_tool(address)}-restore"):
        found.append(IptablesGuard(address))
    return found


def _tool(address: IPv4Address | IPv6Address) -> str:
    return "iptables" if address.version == 4 else "ip6tables"


class NftGuard:
    """An nftables table: a set of uplinks and one chain at the input hook."""

    def __init__(self, address: IPv4Address | IPv6Address) -> None:
        self._address = address
        self._table = "isthmus_agent_" + re.sub(r"[.:]", "_", address.exploded)
        # The output of nft without the uplinks: its wording differs between versions.
        self._shape = ""

    def keep(self, uplinks: Iterable[str], *, exact: bool) -> bool:
        """Create or update the table."""
        wanted = set(uplinks)
        listed = self._list()
        there = _nft_uplinks(listed)
        if not exact:
            wanted |= there
        if self._shape and _nft_shape(listed) == self._shape and there == wanted:
            return False
        names = _checked(wanted)
        apply(guard_table(self._table, self._address, names, priority=_BEFORE_FILTERS))
        self._shape = _nft_shape(self._list())
        return _nft_shape(listed) != self._shape or not wanted <= there

    def present(self) -> bool:
        return "daddr" in self._list()

    def remove(self) -> bool:
        if not self._list():
            return False
        apply(without_table(self._table))
        return True

    def _list(self) -> str:
        try:
            return _run(["nft", "list", "table", "inet", self._table])
        except ConfigError:
            return ""  # writing it will report the error, unless the table is just missing


def _nft_uplinks(listed: str) -> set[str]:
    elements = _ELEMENTS.search(listed)
    return set(_NAME.findall(elements[1])) if elements else set()


def _nft_shape(listed: str) -> str:
    return " ".join(_ELEMENTS.sub("", listed).split())


class IptablesGuard:
    """An iptables chain, jumped to first from mangle's INPUT.

    In mangle, because rules of the filter table, wherever they are, cannot accept a packet first.
    """

    def __init__(self, address: IPv4Address | IPv6Address) -> None:
        self._tool = _tool(address)
        # At most 28 characters, fewer than an IPv6 address may have.
        short = hashlib.sha256(address.packed).hexdigest()[:16]
        self._chain = f"ISTHMUS-{address if address.version == 4 else short}"
        target = f"{address}/{address.max_prefixlen}"
        why = ("-m", "comment", "--comment", _COMMENT)
        self._jump = ("INPUT", "-d", target, *why, "-j", self._chain)

    def keep(self, uplinks: Iterable[str], *, exact: bool) -> bool:
        """Create or update the chain and the jump to it."""
        wanted = set(uplinks)
        listed = self._list()
        there = set() if listed is None else {_iptables_uplink(line) for line in listed}
        if not exact:
            wanted |= there - {""}
        jumped = self._works("-C", *self._jump)
        if listed is not None and jumped and there == wanted:
            return False
        rules = [f"-A {self._chain} -i {name} -j DROP" for name in _checked(wanted)]
        # Naming the chain flushes it, all in one transaction.
        lines = ["*mangle", f":{self._chain} - [0:0]", *rules, "COMMIT"]
        _run([f"{self._tool}-restore", "-w", "5", "--noflush"], "\n".join(lines) + "\n")
        if not jumped:
            self._run("-I", *self._jump)
        return listed is None or not jumped or not wanted <= there

    def present(self) -> bool:
        """Whether the chain and the jump to it exist."""
        return self._list() is not None and self._works("-C", *self._jump)

    def remove(self) -> bool:
        if self._list() is None:
            return False
        while self._works("-C", *self._jump):
            self._run("-D", *self._jump)
        self._run("-F", self._chain)
        self._run("-X", self._chain)
        return True

    def _list(self) -> list[str] | None:
        """The rules of the chain; None if it does not exist."""
        try:
            lines = self._run("-S", self._chain).splitlines()
        except ConfigError:
            return None
        return [line for line in lines if line.startswith("-A ")]

    def _works(self, *args: str) -> bool:
        try:
            self._run(*args)
        except ConfigError:
            return False
        return True

    def _run(self, *args: str) -> str:
        return _run([self._tool, "-w", "5", "-t", "mangle", *args])


def _iptables_uplink(line: str) -> str:
    """The interface of one of our rules; empty for any other rule."""
    words = line.split()
    return words[3] if words[2:3] == ["-i"] and words[4:] == ["-j", "DROP"] else ""


def _checked(names: Iterable[str]) -> list[str]:
    """The names in order, each valid for the firewalls: the kernel allows more than they do.

    Raises:
        ConfigError: an invalid name.
    """
    found = sorted(names)
    for each in found:
        check_interface("uplink-interface", each)
    return found


def _run(argv: Sequence[str], text: str = "") -> str:
    """Run a program in the namespace of this thread; returns its output.

    Raises:
        ConfigError: it failed; the message has its first line.
    """
    try:
        done = subprocess.run(
            argv,
            input=text,
            text=True,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            start_new_session=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{argv[0]}: {error}") from error
    if done.returncode:
        first = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "")
        crashed = was_killed(done.returncode)
        why = first if first and not crashed else ending_of(done.returncode)
        raise ConfigError(f"{argv[0]}: {why}")
    return done.stdout


# The nftables table, in bytes.


def guard_table(
    table: str, address: IPv4Address | IPv6Address, uplinks: Sequence[str], *, priority: int
) -> NftBatch:
    """Build the transaction that replaces the table without a moment lacking the rule."""
    batch = without_table(table)
    here = name(1, table)
    batch.add(NftMessage.NEW_TABLE, _INET, here + number(2, 0), line=0, flags=CREATE)
    keys = number(4, _IFNAME_TYPE) + number(5, _NAME_BYTES) + number(10, _SET_ID)
    uplink_set = here + name(2, _SET)
    kept = attribute(13, _HOST_ORDER)
    batch.add(
        NftMessage.NEW_SET, _INET, uplink_set + number(3, 0) + keys + kept, line=0, flags=CREATE
    )
    names = (element(each.encode().ljust(_NAME_BYTES, b"\0")) for each in uplinks)
    for listed, _ in element_lists(names):
        batch.add(NftMessage.NEW_ELEMENTS, _INET, uplink_set + listed, line=0, flags=CREATE)
    hook = nested(4, number(1, HOOKS["input"]), number(2, priority))
    chain = here + name(3, _CHAIN) + hook + number(5, _ACCEPT) + name(7, "filter")
    batch.add(NftMessage.NEW_CHAIN, _INET, chain, line=0, flags=CREATE)
    rule = here + name(2, _CHAIN) + nested(4, *_drop(address))
    batch.add(NftMessage.NEW_RULE, _INET, rule, line=0, flags=CREATE | APPEND)
    return batch


def without_table(table: str) -> NftBatch:
    """Build the transaction that removes the table, if it exists."""
    batch = NftBatch()
    batch.add(NftMessage.NEW_TABLE, _INET, name(1, table) + number(2, 0), line=0)
    batch.add(NftMessage.DELETE_TABLE, _INET, name(1, table), line=0)
    return batch


def _drop(address: IPv4Address | IPv6Address) -> tuple[bytes, ...]:
    """The expressions of ``ip daddr ADDRESS iifname @uplinks drop``."""
    family, offset = (FAMILIES["ip"], 16) if address.version == 4 else (FAMILIES["ip6"], 24)
    return (
        meta(_META_NFPROTO, 1),
        compare(Compare.EQUAL, bytes((family,))),
        payload(1, _NETWORK_HEADER, offset, len(address.packed)),
        compare(Compare.EQUAL, address.packed),
        meta(_META_IIFNAME, 1),
        lookup(_SET, set_id=_SET_ID),
        immediate(VERDICT, verdict(_DROP)),
    )


def apply(batch: NftBatch) -> None:
    """Send the kernel a transaction, in the network namespace of this thread.

    Raises:
        ConfigError: the kernel refused it, and nothing changed.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.settimeout(_LIMIT_S)
            kernel.bind((0, 0))
            kernel.send(batch.finished())
            answer = kernel.recv(_READ_BYTES)
    except OSError as error:
        raise ConfigError(f"nftables: {error.strerror or error}") from error
    _, kind, _, _, _, code = _ANSWER.unpack_from(answer)
    if kind != _ERROR or code:
        raise ConfigError(f"nftables: {os.strerror(-code) if code else 'unexpected answer'}")
