"""The nftables table that keeps other machines from an address, written to the kernel by netlink.

nft itself reads the sets of every table of the host before it writes to one, and crashes where a
later nft made one of them (programs/node_proxy/kernel/nftables_kernel.py). Which uplinks are in the
table, and when it is written, is host_only.py's to say. Blocks.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from isthmus.errors import ConfigError
from isthmus.net.rules_nft_encoding import (
    APPEND,
    CREATE,
    FAMILIES,
    HOOKS,
    VERDICT,
    Batch,
    Compare,
    Message,
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

_CHAIN, _SET, _SET_ID = "input", "uplinks", 1
# linux/netfilter.h and linux/netfilter/nf_tables.h
_NETLINK_NETFILTER = 12
_INET = 1
_ACCEPT, _DROP = 1, 0
_META_IIFNAME, _META_NFPROTO = 6, 15
_NETWORK_HEADER = 1
_NAME_BYTES = 16
# The data type that nft lists as "ifname", and the byte order of its keys, which is the host's.
_IFNAME_TYPE, _HOST_ORDER = 41, user_data((0, b"\1\0\0\0"))
# linux/netlink.h
_ERROR = 2
_ANSWER = struct.Struct("=IHHIIi")
_READ_BYTES = 64 * 1024
_LIMIT_S = 15.0


def guard_table(
    table: str, address: IPv4Address | IPv6Address, uplinks: Sequence[str], *, priority: int
) -> Batch:
    """Build the transaction that replaces the table: there is no moment without a rule."""
    batch = without_table(table)
    here = name(1, table)
    batch.add(Message.NEW_TABLE, _INET, here + number(2, 0), line=0, flags=CREATE)
    keys = number(4, _IFNAME_TYPE) + number(5, _NAME_BYTES) + number(10, _SET_ID)
    uplink_set = here + name(2, _SET)
    kept = attribute(13, _HOST_ORDER)
    batch.add(Message.NEW_SET, _INET, uplink_set + number(3, 0) + keys + kept, line=0, flags=CREATE)
    names = (element(each.encode().ljust(_NAME_BYTES, b"\0")) for each in uplinks)
    for listed, _ in element_lists(names):
        batch.add(Message.NEW_ELEMENTS, _INET, uplink_set + listed, line=0, flags=CREATE)
    hook = nested(4, number(1, HOOKS["input"]), number(2, priority))
    chain = here + name(3, _CHAIN) + hook + number(5, _ACCEPT) + name(7, "filter")
    batch.add(Message.NEW_CHAIN, _INET, chain, line=0, flags=CREATE)
    rule = here + name(2, _CHAIN) + nested(4, *_drop(address))
    batch.add(Message.NEW_RULE, _INET, rule, line=0, flags=CREATE | APPEND)
    return batch


def without_table(table: str) -> Batch:
    """Build the transaction that removes the table; it need not be there."""
    batch = Batch()
    batch.add(Message.NEW_TABLE, _INET, name(1, table) + number(2, 0), line=0)
    batch.add(Message.DELETE_TABLE, _INET, name(1, table), line=0)
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


def apply(batch: Batch) -> None:
    """Give the kernel a transaction, in the network namespace of this thread.

    Raises:
        ConfigError: the kernel refused it, and nothing changed; one sentence.
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
