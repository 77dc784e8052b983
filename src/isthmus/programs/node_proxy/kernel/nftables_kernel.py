"""Talks to the kernel's nf_tables without nft: sends transactions, and reads the proxy's own table.

nft and libnftables read the sets of every table of the host before they write a rule to one, and
crash on a set that a newer nft made (nft before 1.1.2, kubernetes/kubernetes#136786). This module
reads nothing for a change; for a full sync it reads its own table, and of other tables only which
chain belongs to which. Blocks.

Processor time with n Services of ten endpoints each, Linux 6.18, for one changed endpoint and for
everything; nft is the program, including its start:

========  ==================  ==================
Services  one: this, nft      all: this, nft
========  ==================  ==================
1,000     1.3 ms, 11 ms       0.28 s, 0.24 s
3,000     3.9 ms, 25 ms       1.3 s, 1.3 s
10,000    15 ms, 200 ms       13 s, 13 s
========  ==================  ==================

Of the 13 s for all of 10,000, this module takes 1.4; the kernel walks all sets for each new one.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import weakref
from collections.abc import Iterator

from isthmus.net.rules_nft_encoding import FAMILIES, HOOKS, SUBSYSTEM, NftBatch
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.netlink import (
    DUMP,
    NETFILTER,
    Netlink,
    attribute,
    attributes,
)
from isthmus.programs.node_proxy.rules.nftables.base import AFFINITY, hooked
from isthmus.programs.node_proxy.rules.nftables.ruleset import ExistingTable

# linux/netlink.h and socket.h
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_SO_SNDBUFFORCE = 32
_ERROR = 2
_CAPPED, _WITH_ATTRIBUTES = 0x100, 0x200
_HEADER = struct.Struct("=IHHII")
_SAID_TEXT, _SAID_OFFSET = 1, 2
_READ_BYTES = 64 * 1024
# Room for a message's overhead in the socket buffer.
_SLACK_BYTES = 64 * 1024
_MAX_RULE_CHARS = 300
# linux/netfilter/nf_tables.h
_GET_TABLE, _GET_CHAIN, _GET_RULE, _GET_SET = (SUBSYSTEM | each for each in (1, 4, 7, 10))
_TABLE_NAME, _RULE_TABLE, _RULE_CHAIN = 1, 1, 2
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE = 1, 3, 4, 5, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_SET_TABLE, _SET_NAME, _SET_FLAGS, _SET_TIMEOUT = 1, 2, 3, 11
_ANONYMOUS, _MAP = 0x1, 0x8
_ACCEPT = 1
_LOOKS = 5
_HOOK_NAMES = {number: name for name, number in HOOKS.items()}


class NftTransactions:
    """One socket, kept open, in the network namespace of the thread that opens it.

    Closing a socket waits until the kernel has destroyed what transactions removed.
    """

    def __init__(self) -> None:
        """Open the socket.

        Raises:
            OSError: the kernel has no netfilter.
        """
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
        try:
            sock.bind((0, 0))
            sock.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
            sock.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        except OSError:
            sock.close()
            raise
        self._sock = sock
        self._room = 0
        # A backend lives as long as its program, so the process's end closes the socket.
        weakref.finalize(self, sock.close)

    def close(self) -> None:
        self._sock.close()

    def apply(self, batch: NftBatch, text: str) -> None:
        """Send one transaction; ``text`` is its source.

        Raises:
            ApplyError: it was rejected, and nothing changed.
        """
        data = batch.finished()
        self._make_room(len(data))
        try:
            # The kernel executes the transaction and queues its answers before this call returns.
            self._sock.send(data)
            answers = list(self._answers())
        except OSError as exc:
            raise ApplyError(f"cannot send rules to the kernel: {_reason(exc)}") from exc
        # With more errors than the socket has room for, ENOBUFS is reported before the first ones.
        refusals = [each for each in answers if each[0] not in (0, errno.ENOBUFS)] or answers
        for code, sequence, note, offset in refusals:
            if code:
                why = note or os.strerror(code)
                line = _line(text, batch.line_at(sequence, offset))
                raise ApplyError(f"the kernel rejected the rules: {why}", rule=line)
        if not answers:
            raise ApplyError("the kernel sent no answer to the rules")

    def _make_room(self, size: int) -> None:
        size += _SLACK_BYTES
        if size <= self._room:
            return
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, size)
        except PermissionError:  # in a user namespace; net.core.wmem_max is the limit there
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self._room = size

    def _answers(self) -> Iterator[tuple[int, int, str, int]]:
        """Error number (0 for none), sequence number, the kernel's message, and its offset."""
        while True:
            try:
                read = memoryview(self._sock.recv(_READ_BYTES, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                yield errno.ENOBUFS, 0, "", 0
                continue
            while len(read) >= _HEADER.size:
                size, kind, flags, sequence, _ = _HEADER.unpack_from(read)
                message, read = read[_HEADER.size : size], read[(max(size, 16) + 3) & ~3 :]
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", message)
                    yield -code, sequence, *_extended(message, flags)


def _extended(message: memoryview, flags: int) -> tuple[str, int]:
    """The extended error: a text, and an offset in the request."""
    if not flags & _WITH_ATTRIBUTES:
        return "", 0
    asked = _HEADER.size if flags & _CAPPED else _HEADER.unpack_from(message, 4)[0]
    found = attributes(message[4 + ((asked + 3) & ~3) :])
    note, offset = found.get(_SAID_TEXT), found.get(_SAID_OFFSET)
    text = bytes(note).rstrip(b"\0").decode(errors="replace") if note is not None else ""
    return text, struct.unpack("=I", offset)[0] if offset is not None else 0


def _line(text: str, at: int) -> str:
    if not at:
        return ""
    lines = text.split("\n", at)
    line = lines[at - 1].strip() if len(lines) >= at else ""
    return line if len(line) <= _MAX_RULE_CHARS else f"{line[:_MAX_RULE_CHARS]}…"


def _reason(exc: OSError) -> str:
    if exc.errno == errno.EMSGSIZE:
        return f"{exc.strerror}; raise the sysctl net.core.wmem_max, or run as root"
    return exc.strerror or str(exc)


# Queries. One takes 0.05 ms however many rules there are; ``nft list chain`` reads the whole
# ruleset: 90 ms with 1,000 Services, 700 with 3,000.

# The errors for a missing table, chain, or family.
_NOT_THERE = {errno.ENOENT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}


def has_table(family: str, table: str) -> bool:
    """Whether a table exists in "ip", "ip6" or "bridge".

    Raises:
        OSError: nf_tables is not available, or access is denied.
    """
    return _is_there(_GET_TABLE, 0, family, _named(_TABLE_NAME, table))


def has_rules(family: str, table: str, chain: str) -> bool:
    """Whether a chain exists and has a rule.

    Raises:
        OSError: nf_tables is not available, or access is denied.
    """
    which = _named(_RULE_TABLE, table) + _named(_RULE_CHAIN, chain)
    return _is_there(_GET_RULE, DUMP, family, which)


def _is_there(kind: int, flags: int, family: str, which: bytes) -> bool:
    with Netlink(NETFILTER) as kernel:
        try:
            # One answer is enough; the others are discarded.
            return next(kernel.ask(kind, flags, _asked(family) + which), None) is not None
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise OSError(error.errno, "nf_tables did not answer") from error


def found_in(family: str, table: str) -> ExistingTable:
    """Read the names in a table, and the timeouts of its sets of clients.

    Raises:
        OSError: nf_tables is not available, or the table keeps changing.
    """
    last: OSError | None = None
    for _ in range(_LOOKS):
        try:
            return _found(family, table)
        except InterruptedError as exc:
            last = exc
    assert last is not None
    raise last


def _found(family: str, table: str) -> ExistingTable:
    chains: set[str] = set()
    heads: dict[str, str] = {}
    sets: set[str] = set()
    maps: set[str] = set()
    affinity: dict[str, int] = {}
    with Netlink(NETFILTER) as kernel:
        for each in _dumped(kernel, _GET_CHAIN, family, _CHAIN_TABLE, table):
            chains.add(name := _text(each[_CHAIN_NAME]))
            if _CHAIN_HOOK in each:
                heads[name] = _head(each)
        for each in _dumped(kernel, _GET_SET, family, _SET_TABLE, table):
            flags = _number(each[_SET_FLAGS]) if _SET_FLAGS in each else 0
            if flags & _ANONYMOUS:
                continue
            name = _text(each[_SET_NAME])
            (maps if flags & _MAP else sets).add(name)
            if name.startswith(AFFINITY) and _SET_TIMEOUT in each:
                affinity[name] = _number(each[_SET_TIMEOUT]) // 1000
    return ExistingTable(
        chains=frozenset(chains),
        heads=heads,
        sets=frozenset(sets),
        maps=frozenset(maps),
        affinity=affinity,
    )


def _dumped(
    kernel: Netlink, kind: int, family: str, table_kind: int, table: str
) -> Iterator[dict[int, memoryview]]:
    """All objects of a kind in the table; kernels may include those of other tables."""
    for message in kernel.ask(kind, DUMP, _asked(family) + _named(table_kind, table)):
        found = attributes(message[4:])
        if _text(found[table_kind]) == table:
            yield found


def _head(chain: dict[int, memoryview]) -> str:
    hook = attributes(chain[_CHAIN_HOOK])
    (priority,) = struct.unpack(">i", hook[_HOOK_PRIORITY])
    number = _number(hook[_HOOK_NUMBER])
    head = hooked(_text(chain[_CHAIN_TYPE]), _HOOK_NAMES.get(number, str(number)), priority)
    # The node proxy's chains have policy accept; show the policy of a chain that does not.
    policy = _number(chain[_CHAIN_POLICY]) if _CHAIN_POLICY in chain else _ACCEPT
    return head if policy == _ACCEPT else f"{head} policy {policy} ;"


def _asked(family: str) -> bytes:
    """The start of every request: nfgenmsg, with a family and version 0."""
    return struct.pack("=BBH", FAMILIES[family], 0, 0)


def _named(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _text(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def _number(value: memoryview) -> int:
    return int.from_bytes(value, "big")
