"""How much of a server the nodes may take: descriptors, dials under way, dials in a second.

Of all of them together, and of one link: an agent that asks for too much is refused, and the
others are not. What is done with a dial is node_dials.py.
"""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from isthmus.links.server_side import AgentLink
from isthmus.net.descriptors import descriptors
from isthmus.text.pacing import TokenBucket

#: Of one link: dials that wait for their answer, each of which may wait for the resolver.
MOST_PENDING_PER_LINK = 1024
#: Of one link: a node that lost all its connections has them back at once; one that asks and asks,
#: and takes back what it asked for, uses up neither the server's time nor its audit log.
BURST_PER_LINK, PER_S_PER_LINK = 4096, 500.0


def most_open() -> int:
    """How many dials and tunnels of nodes there may be: each takes a descriptor, of all half."""
    return max(2, descriptors() // 2)


class NodeBounds:
    """Counts the dials and tunnels of nodes, and says what is too much."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_per_link = most // 2  # one agent cannot take what all others need
        #: By the id of a link: dials and tunnels; and of these the dials that have no answer yet.
        self.open: Counter[int] = Counter()
        self.pending: Counter[int] = Counter()
        self._buckets: WeakKeyDictionary[AgentLink, TokenBucket] = WeakKeyDictionary()

    def too_fast(self, link: AgentLink, *, now: float) -> str:
        """Count one more question; why it is not even looked at, or ""."""
        bucket = self._buckets.get(link)
        if bucket is None:
            bucket = TokenBucket(rate=PER_S_PER_LINK, burst=BURST_PER_LINK, now=now)
            self._buckets[link] = bucket
        if bucket.allows(now=now):
            return ""
        return f"this agent asks for more than {PER_S_PER_LINK:.0f} connections in a second"

    def too_many(self, link_id: int) -> str:
        """Why there can be no further dial; or ""."""
        if self.open.total() >= self.most:
            return f"this server has {self.most} connections of nodes"
        if self.open[link_id] >= self.most_per_link:
            return f"this agent has {self.most_per_link} connections to the control plane"
        if self.pending[link_id] >= MOST_PENDING_PER_LINK:
            return f"{MOST_PENDING_PER_LINK} dials of this agent wait for their answers"
        return ""

    def began(self, link_id: int) -> None:
        """A dial is under way."""
        self.open[link_id] += 1
        self.pending[link_id] += 1

    def answered(self, link_id: int) -> None:
        """It is not any more."""
        _less(self.pending, link_id)

    def ended(self, link_id: int) -> None:
        """A dial that failed, or a tunnel, is gone."""
        _less(self.open, link_id)


def _less(counts: Counter[int], key: int) -> None:
    """Count down; a key that has nothing left is forgotten."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
