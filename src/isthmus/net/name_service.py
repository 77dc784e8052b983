"""Follows resolv.conf, hosts and nsswitch.conf: each lookup sees the files as they are now.

A file is read again when its stat(2) has changed, which is asked for at every lookup (2 µs a file).
One that is gone counts as empty. One that cannot be read, is no plain file or is too long keeps
what was read last; where nothing was, the C library is left to make sense of it.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.net.plain_file import read_bytes
from isthmus.net.rules_name_files import (
    NameSource,
    ResolvConf,
    parse_hosts,
    parse_nsswitch,
    parse_resolv_conf,
)

DNS_PORT = 53
#: A hosts file of 8 MiB is read in 0.4 s, once; the others are a few lines.
MOST_HOSTS_BYTES = 8 * 1024 * 1024
MOST_CONF_BYTES = 64 * 1024
#: "Make sense of it yourself": a source that only the C library knows.
_UNKNOWN: tuple[NameSource, ...] = (NameSource("unreadable"),)
_TICK_NS = 100_000_000
_log = logging.getLogger("isthmus.names")

T = TypeVar("T")
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePaths:
    """Where the files are, and the port of the DNS servers."""

    resolv_conf: str = "/etc/resolv.conf"
    hosts: str = "/etc/hosts"
    nsswitch: str = "/etc/nsswitch.conf"
    dns_port: int = DNS_PORT


#: Of every resolver that is told of no others.
SYSTEM = NamePaths()


class _Followed(Generic[T]):
    """One file as a value."""

    def __init__(self, path: str, read: Callable[[str], T], most_bytes: int, unread: T) -> None:
        self._path = path
        self._read = read
        self._most_bytes = most_bytes
        self._stamp: _Stamp | None = None
        self._trouble = ""
        self._value = unread

    @property
    def value(self) -> T:
        """What was read last; whether that is still so is not asked."""
        return self._value

    def current(self) -> T:
        try:
            at = os.stat(self._path)
            stamp = (at.st_mtime_ns, at.st_size, at.st_ino, at.st_dev)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                return self._keep(exc.strerror or str(exc))
            stamp = (0, 0, 0, 0)
        if stamp != self._stamp:
            try:
                self._value = self._read(self._text() if any(stamp) else "")
            except OSError as exc:
                return self._keep(exc.strerror or str(exc))
            # A file that was just written may be written again in the same tick of its clock; one
            # from the future (a clock was set back) is not read for every lookup until then.
            fresh = 0 <= time.time_ns() - stamp[0] < _TICK_NS
            self._stamp, self._trouble = None if fresh else stamp, ""
        return self._value

    def _text(self) -> str:
        return read_bytes(self._path, most_bytes=self._most_bytes).decode("utf-8", "replace")

    def _keep(self, trouble: str) -> T:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("cannot read %s: %s; using what it said before", self._path, trouble)
        return self._value


class NameService:
    """What the files say."""

    def __init__(self, paths: NamePaths | None = None) -> None:
        paths = paths if paths is not None else SYSTEM
        self.dns_port = paths.dns_port
        self._conf: _Followed[ResolvConf | None] = _Followed(
            paths.resolv_conf, _resolv_conf, MOST_CONF_BYTES, None
        )
        self._hosts: _Followed[Mapping[str, tuple[str, ...]] | None] = _Followed(
            paths.hosts, parse_hosts, MOST_HOSTS_BYTES, None
        )
        self._order = _Followed(paths.nsswitch, parse_nsswitch, MOST_CONF_BYTES, _UNKNOWN)

    def order(self) -> tuple[NameSource, ...]:
        """Look at the files, and say where names are looked up, in this order.

        It is the C library's business where a file is unreadable.
        """
        if self._conf.current() is None or self._hosts.current() is None:
            return _UNKNOWN
        return self._order.current()

    def in_hosts(self, name: str) -> tuple[str, ...]:
        """The addresses that the hosts file had for a name when ``order`` was asked for."""
        return (self._hosts.value or {}).get(name.lower().removesuffix("."), ())

    def conf(self) -> ResolvConf:
        """Whom to ask by DNS; of the same moment."""
        return self._conf.value or ResolvConf()


def _resolv_conf(text: str) -> ResolvConf:
    return parse_resolv_conf(text, socket.gethostname())
