"""The ALPN names of Isthmus links, which settings read without the messages and their library."""

from __future__ import annotations

import re
from collections.abc import Iterable

ALPN = "isthmus/1"
#: The same protocol between two servers, one of which passes dials to its agents. A name of its
#: own: to a server that knows nothing of this, the other would be one more agent.
RELAY_ALPN = "isthmus-relay/1"
# A name of ALPN has 255 bytes (RFC 7301 §3.1), and this goes into logs and flags as it is.
_ASKABLE = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)


def is_askable(server_id: str) -> bool:
    """Tell whether a server of this id can be asked for by ALPN."""
    return _ASKABLE.fullmatch(server_id) is not None


def alpn_asking_for(server_id: str) -> str:
    """The protocol of a link to one certain server; the id has to be askable."""
    return f"{ALPN}@{server_id}"


def is_ours(alpn: str | None) -> bool:
    """Tell whether this is our own protocol, with or without a server's id."""
    return alpn is not None and (alpn == ALPN or alpn.startswith(f"{ALPN}@"))


def asked_for(names: Iterable[str]) -> str:
    """Which server the first of the offered protocols that names one asks for; empty: any."""
    for name in names:
        protocol, at, server_id = name.partition("@")
        if protocol == ALPN and at:
            return server_id if is_askable(server_id) else ""
    return ""
