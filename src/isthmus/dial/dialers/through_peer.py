"""The links to other servers through whose agents a server dials while it has none itself.

A dial asks here only when no agent of our own can take it (through_agent.py). What another
server is asked it passes to its own agents and to nobody else, so that there is one hop at most.
Keeping the links is programs/server/peers_relay.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from isthmus.links.agent_side import PeerLink
from isthmus.values import ServerId


class PeerLinks:
    """The links to other servers, by their ids; at most one to each."""

    def __init__(self) -> None:
        self._links: dict[ServerId, PeerLink] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(list(self._links.values()))

    @property
    def ready(self) -> bool:
        """Some server could pass a dial on now, as far as is known."""
        return any(link.can_relay for link in self._links.values())

    def has(self, server_id: ServerId) -> bool:
        """There is a link to this server already."""
        return server_id in self._links

    def add(self, link: PeerLink) -> None:
        """A link is up."""
        self._links[link.server_id] = link

    def remove(self, link: PeerLink) -> None:
        """A link is gone."""
        if self._links.get(link.server_id) is link:
            del self._links[link.server_id]

    def choose(self, asked: Collection[PeerLink]) -> PeerLink | None:
        """The least loaded one whose server has agents; ``asked`` could not help this dial."""
        usable = [link for link in self._links.values() if link.can_relay and link not in asked]
        return min(usable, key=lambda link: link.weight, default=None)
