"""Talks to the kernel's nf_tables without nft: hands transactions over, and reads our own table.

nft, and the library behind it, read the sets of every table of the host before they write a rule
to one. A set that a newer nft made ends them with a segmentation fault (nft before 1.1.2,
kubernetes/kubernetes#136786). Here nobody's table is read for a change; for a full sync our own is,
and of other tables' chains only whose they are. Blocks.

Processor time with n Services of ten endpoints each, Linux 6.18, for one endpoint that changed and
for everything; nft is the program, its start included:

========  ==================  ==================
Services  one: this, nft      all: this, nft
========  ==================  ==================
1,000     1.3 ms, 11 ms       0.28 s, 0.24 s
3,000     3.9 ms, 25 ms       1.3 s, 1.3 s
10,000    15 ms, 200 ms       13 s, 13 s
========  ==================  ==================

Of all of 10,000, 1.4 s are ours; the kernel walks all sets of the table for each new one.
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
# What sending needs beside the bytes themselves.
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
    """One kept socket, of the namespace of the thread that makes it.

    Kept, because closing one waits until the kernel has destroyed what transactions removed.
    """

    def __init__(self) -> None:
        """Open it.

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
        # Backends live as long as their program; nobody else would close it.
        weakref.finalize(self, sock.close)

    def close(self) -> None:
        self._sock.close()

    def apply(self, batch: NftBatch, text: str) -> None:
        """Hand over one transaction; ``text`` is what it was compiled from.

        Raises:
            ApplyError: it was refused, and nothing changed.
        """
        data = batch.finished()
        self._make_room(len(data))
        try:
            # The kernel does it all, answers included, before this call returns.
            self._sock.send(data)
            answers = list(self._answers())
        except OSError as exc:
            raise ApplyError(f"the kernel cannot be given rules: {_told(exc)}") from exc
        # Where more is refused than the socket has room for, ENOBUFS overtakes the first refusals.
        refusals = [each for each in answers if each[0] not in (0, errno.ENOBUFS)] or answers
        for code, sequence, said, offset in refusals:
            if code:
                why = said or os.strerror(code)
                line = _line(text, batch.line_at(sequence, offset))
                raise ApplyError(f"the kernel refused the rules, {why}", rule=line)
        if not answers:
            raise ApplyError("the kernel did not answer to the rules")

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
        """Error number (0 for none), sequence number, and the kernel's message with its place."""
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
    """What the kernel says of an error beside its number: a text, and where in the message."""
    if not flags & _WITH_ATTRIBUTES:
        return "", 0
    asked = _HEADER.size if flags & _CAPPED else _HEADER.unpack_from(message, 4)[0]
    found = attributes(message[4 + ((asked + 3) & ~3) :])
    said, offset = found.get(_SAID_TEXT), found.get(_SAID_OFFSET)
    text = bytes(said).rstrip(b"\0").decode(errors="replace") if said is not None else ""
    return text, struct.unpack("=I", offset)[0] if offset is not None else 0


def _line(text: str, at: int) -> str:
    if not at:
        return ""
    lines = text.split("\n", at)
    line = lines[at - 1].strip() if len(lines) >= at else ""
    return line if len(line) <= _MAX_RULE_CHARS else f"{line[:_MAX_RULE_CHARS]}…"


def _told(exc: OSError) -> str:
    if exc.errno == errno.EMSGSIZE:
        return f"{exc.strerror}; raise the sysctl net.core.wmem_max, or run as root"
    return exc.strerror or str(exc)


# What there is. A single look takes 0.05 ms however many rules there are; ``nft list chain`` reads
# the whole ruleset for it: 90 ms with 1,000 Services, 700 with 3,000.

# What a kernel says that has no such table, chain, or family.
_NOT_THERE = {errno.ENOENT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}


def has_table(family: str, table: str) -> bool:
    """Whether there is such a table in "ip", "ip6" or "bridge".

    Raises:
        OSError: the kernel does not answer such questions, or not to us.
    """
    return _is_there(_GET_TABLE, 0, family, _named(_TABLE_NAME, table))


def has_rules(family: str, table: str, chain: str) -> bool:
    """Whether a chain is there and has any rule.

    Raises:
        OSError: the kernel does not answer such questions, or not to us.
    """
    which = _named(_RULE_TABLE, table) + _named(_RULE_CHAIN, chain)
    return _is_there(_GET_RULE, DUMP, family, which)


def _is_there(kind: int, flags: int, family: str, which: bytes) -> bool:
    with Netlink(NETFILTER) as kernel:
        try:
            # The first answer tells; nobody reads the others.
            return next(kernel.ask(kind, flags, _asked(family) + which), None) is not None
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise OSError(error.errno, "nf_tables does not answer") from error


def found_in(family: str, table: str) -> ExistingTable:
    """Read the names that a table has, and the timeouts of its sets of clients.

    Raises:
        OSError: the kernel does not answer such questions, or the table changes all the time.
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
    """Everything of a kind that the table has; kernels may give that of other tables too."""
    for message in kernel.ask(kind, DUMP, _asked(family) + _named(table_kind, table)):
        found = attributes(message[4:])
        if _text(found[table_kind]) == table:
            yield found


def _head(chain: dict[int, memoryview]) -> str:
    hook = attributes(chain[_CHAIN_HOOK])
    (priority,) = struct.unpack(">i", hook[_HOOK_PRIORITY])
    number = _number(hook[_HOOK_NUMBER])
    head = hooked(_text(chain[_CHAIN_TYPE]), _HOOK_NAMES.get(number, str(number)), priority)
    # Ours let pass what no rule is about. One that does not is somebody's.
    policy = _number(chain[_CHAIN_POLICY]) if _CHAIN_POLICY in chain else _ACCEPT
    return head if policy == _ACCEPT else f"{head} policy {policy} ;"


def _asked(family: str) -> bytes:
    """The beginning of every question: nfgenmsg, of a family and version 0."""
    return struct.pack("=BBH", FAMILIES[family], 0, 0)


def _named(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _text(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def _number(value: memoryview) -> int:
    return int.from_bytes(value, "big")
