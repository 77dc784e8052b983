"""ALPN names of Isthmus links, kept apart so that settings need no protobuf library."""

from __future__ import annotations

import re
from collections.abc import Iterable

ALPN = "isthmus/1"
#: The same protocol between two servers, one of which relays dials to its agents. A separate
#: name: a server without relaying would take the other for an agent.
RELAY_ALPN = "isthmus-relay/1"
#: A link that lost its connection goes on by another one, with the server of this id.
RESUME_ALPN = "isthmus/1r"
# An ALPN name has at most 255 bytes (RFC 7301 §3.1), and the id appears in logs and flags as is.
_ASKABLE = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)


def is_askable(server_id: str) -> bool:
    return _ASKABLE.fullmatch(server_id) is not None


def alpn_asking_for(server_id: str) -> str:
    """The ALPN name for a link to one particular server; the id must be askable."""
    return f"{ALPN}@{server_id}"


def alpn_resuming(server_id: str) -> str:
    """The protocol of a connection by which a link with this server goes on; the id is askable."""
    return f"{RESUME_ALPN}@{server_id}"


def is_resuming(alpn: str | None) -> bool:
    """Tell whether a link goes on by this connection, rather than a new one beginning."""
    return alpn is not None and alpn.startswith(f"{RESUME_ALPN}@")


def is_ours(alpn: str | None) -> bool:
    """Whether this is Isthmus's own protocol, with or without a server's id."""
    return alpn is not None and (alpn == ALPN or alpn.startswith(f"{ALPN}@"))


def asked_for(names: Iterable[str]) -> str:
    """The server id in the first offered protocol that names one; empty: any server."""
    for name in names:
        protocol, at, server_id = name.partition("@")
        if protocol in (ALPN, RESUME_ALPN) and at:
            return server_id if is_askable(server_id) else ""
    return ""
