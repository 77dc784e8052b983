"""Whether the gate of KEP-2025 is on at both sides of a link, and who was told of it.

What a server says about it is programs/server/agents.py, what an agent says
programs/agent/server_links.py.
"""

from __future__ import annotations

from enum import Enum, auto

from isthmus.settings.gates import CLUSTER_TO_MASTER

MOST_KNOWN = 10_000


class GateState(Enum):
    """How the gates of two programs fit together."""

    AGREE = auto()
    HERE_ONLY = auto()
    THERE_ONLY = auto()
    SILENT = auto()  # on here, and the peer says nothing of gates: it is konnectivity's, or older


def state_of(*, here: bool, there: frozenset[str] | None) -> GateState:
    """Compare our gate with what a peer says that it can do; None: it says nothing."""
    if there is None:
        return GateState.SILENT if here else GateState.AGREE
    on = CLUSTER_TO_MASTER in there
    if on == here:
        return GateState.AGREE
    return GateState.THERE_ONLY if on else GateState.HERE_ONLY


class Known:
    """What was last seen of each peer; those that are not seen for long are forgotten."""

    def __init__(self) -> None:
        self._last: dict[str, GateState] = {}

    def __len__(self) -> int:
        return len(self._last)

    def is_news(self, peer: str, state: GateState) -> bool:
        """Remember it; tells whether there is something to say that was not said last time."""
        before = self._last.pop(peer, GateState.AGREE)
        while len(self._last) >= MOST_KNOWN:
            del self._last[next(iter(self._last))]
        self._last[peer] = state
        return state not in (before, GateState.AGREE)
