"""The small values that every layer speaks of: targets, identities and ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import NewType

AgentId = NewType("AgentId", str)
ServerId = NewType("ServerId", str)
DialId = NewType("DialId", int)
TunnelId = NewType("TunnelId", int)
Network = NewType("Network", str)

# Underscores are not legal in host names (RFC 1123 §2.1) but real DNS has them.
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_MAX_NAME_CHARS = 253


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a dial wants to go: an IPv4 or IPv6 address or a name, and a port.

    ``str()`` writes it as a URL authority does (RFC 3986 §3.2.2), IPv6 in brackets;
    ``parse()`` is the inverse.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"port out of range: {self.port}")
        if not self.host or len(self.host) > _MAX_NAME_CHARS:
            raise ValueError("host is empty" if not self.host else "host name is too long")
        if not is_address(self.host) and not _NAME.fullmatch(self.host):
            raise ValueError(f"not a host name or address: {self.host!r}")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Read ``host:port`` or ``[v6]:port``.

        Raises:
            ValueError: the text is not a host and a port; the message says what is wrong.
        """
        host, colon, port = text.rpartition(":")
        if not colon:
            raise ValueError(f"no port in {text!r}")
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError(f"not a port: {port!r}")
        if host.startswith("[") or host.endswith("]"):
            host = host.removeprefix("[").removesuffix("]")
            if not _is_v6(host):
                raise ValueError(f"not an IPv6 address in brackets: {text!r}")
        elif ":" in host:
            raise ValueError(f"an IPv6 address needs brackets: {text!r}")
        return cls(host, int(port))


def is_address(host: str) -> bool:
    """Tell whether the host is a literal IPv4 or IPv6 address, which needs no resolver."""
    # Every address ends in a digit, a hex letter or a colon, and names mostly do not start so:
    # ip_address() costs 3 µs and most of it is raising, so ask the cheap questions first.
    if not (":" in host or host[-1:].isdigit()):
        return False
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_v6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is at the other end of a connection, as its transport proved it."""

    name: str
    groups: tuple[str, ...] = ()
    kind: str = "certificate"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Identity("anonymous", kind="none")
