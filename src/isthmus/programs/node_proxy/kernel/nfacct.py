"""Counters of nfnetlink_acct, to which rules add packets (``-m nfacct``): made and read.

They belong to a network namespace: that of the thread that asks. Messages are those of
linux/netfilter/nfnetlink_acct.h; pyroute2 does not have them.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.netlink import (
    ACK,
    DUMP,
    NETFILTER,
    Netlink,
    attribute,
    attributes,
)

_SUBSYSTEM = 7 << 8  # NFNL_SUBSYS_ACCT
_NEW, _GET = _SUBSYSTEM | 0, _SUBSYSTEM | 1
_EXCLUSIVE, _CREATE = 0x200, 0x400
_NAME, _PACKETS = 1, 2
_FAMILY = b"\0\0\0\0"  # nfgenmsg: any family, version 0


def ensure_counters(names: Sequence[str]) -> None:
    """Make the counters that are not there.

    Raises:
        ApplyError: the kernel has no such counters, or does not let us.
    """
    try:
        with Netlink(NETFILTER) as kernel:
            for name in names:
                body = _FAMILY + attribute(_NAME, name.encode() + b"\0")
                try:
                    list(kernel.ask(_NEW, ACK | _CREATE | _EXCLUSIVE, body))
                except FileExistsError:
                    continue
                except OSError as error:
                    why = error.strerror or str(error)
                    raise ApplyError(f"cannot make the counter {name}: {why}") from error
    except OSError as error:
        raise ApplyError(f"cannot ask the kernel for counters: {error.strerror}") from error


def counters_work(names: Sequence[str]) -> bool:
    """Whether the kernel has counters for us; the named ones are there then."""
    try:
        ensure_counters(names)
    except ApplyError:
        return False
    return True


def read_counters(names: Sequence[str]) -> dict[str, int]:
    """The packets that were counted, by counter; without those that are not there.

    Raises:
        ApplyError: the kernel has no such counters, or does not let us.
    """
    found: dict[str, int] = {}
    try:
        with Netlink(NETFILTER) as kernel:
            for message in kernel.ask(_GET, DUMP, _FAMILY):
                given = attributes(message[len(_FAMILY) :])
                name = bytes(given.get(_NAME, b"")).rstrip(b"\0").decode(errors="replace")
                packets = given.get(_PACKETS, b"")
                if name in names and len(packets) == 8:
                    found[name] = int.from_bytes(packets, "big")
    except OSError as error:
        raise ApplyError(f"cannot read counters: {error.strerror or error}") from error
    return found
