"""What an agent's links say about the mesh: how many servers there are, and which are missing.

Pure; table.py has the links.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.kube.rules_leases import server_count
from isthmus.values import ServerId

#: What a server says of the number of servers is believed up to here.
MOST_SERVERS = 128


class Linked(Protocol):
    """What a link to one server tells about all of them; see links/agent_side.py."""

    @property
    def server_count(self) -> int: ...
    @property
    def servers(self) -> frozenset[ServerId]: ...
    @property
    def was_asked_for(self) -> bool: ...
    @property
    def opened_at(self) -> float: ...
    @property
    def drained_at(self) -> float | None: ...


Links = Mapping[ServerId, Linked]


def known_count(links: Links, leases: int | None, source: str) -> int:
    """How many servers there are, as far as they said; ``source`` as in ``server_count``."""
    said = max((link.server_count for link in links.values()), default=0)
    if leases is not None and links:
        said = server_count(said, leases, source)
    return min(said, MOST_SERVERS)


def named(links: Links) -> set[ServerId]:
    """The servers that others named."""
    return {server for link in links.values() for server in link.servers}


def missing(links: Links) -> list[ServerId]:
    """The servers that others named and that are not linked."""
    return sorted(named(links) - links.keys())[:MOST_SERVERS]


def unsure(links: Links) -> list[ServerId]:
    """The servers whose links may end soon, and that can be asked for."""
    ending = {server for server, link in links.items() if may_end_soon(link, links)}
    return sorted(ending & named(links))


def may_end_soon(link: Linked, links: Links) -> bool:
    """A link may pass through a server that drains: it was asked for before that was said."""
    if not link.was_asked_for or link.drained_at is not None:
        return False
    drained = (other.drained_at for other in links.values())
    return any(at is not None and link.opened_at <= at for at in drained)
